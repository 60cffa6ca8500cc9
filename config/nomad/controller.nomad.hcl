# The driver's controller. From this directory: nomad job run controller.nomad.hcl
job "csi-multi-controller" {
  type        = "service"
  datacenters = ["dc1"]
  priority    = 90

  group "controller" {
    count = 2

    update {
      max_parallel = 1
    }

    # The two controllers run on different nodes.
    constraint {
      operator = "distinct_hosts"
      value    = "true"
    }

    # However often the driver ends, it comes back. By default Nomad gives up after three times in half an hour.
    restart {
      attempts = 5
      interval = "1m"
      delay    = "2s"
      mode     = "delay"
    }

    task "driver" {
      driver       = "docker"
      kill_timeout = "120s" # time for running calls to finish; to kill the driver after that is safe

      csi_plugin {
        id             = "csi-multi"
        type           = "controller"
        mount_dir      = "/csi"
        health_timeout = "60s"
      }

      config {
        image        = "csi-multi-controller:0.1.0"
        args         = ["serve", "--config=/local/config.yaml", "--mode=controller"]
        cap_drop     = ["all"]
        security_opt = ["no-new-privileges"]
      }

      # Nomad's socket directory belongs to root.
      user = "root"

      env {
        CSI_ENDPOINT = "unix:///csi/csi.sock"
      }

      # The driver reads a changed file while it runs.
      template {
        data        = file("csi-multi.yaml")
        destination = "local/config.yaml"
        change_mode = "noop"
      }

      # nomad var put nomad/jobs/csi-multi-controller \
      #   ca=@ca.pem certificate=@certificate.pem key=@key.pem keyring=@csi.keyring
      template {
        data        = "{{ with nomadVar \"nomad/jobs/csi-multi-controller\" }}{{ .ca }}{{ end }}"
        destination = "secrets/ca.crt"
        change_mode = "noop"
      }

      template {
        data        = "{{ with nomadVar \"nomad/jobs/csi-multi-controller\" }}{{ .certificate }}{{ end }}"
        destination = "secrets/tls.crt"
        change_mode = "noop"
      }

      template {
        data        = "{{ with nomadVar \"nomad/jobs/csi-multi-controller\" }}{{ .key }}{{ end }}"
        destination = "secrets/tls.key"
        perms       = "600"
        change_mode = "noop"
      }

      template {
        data        = "{{ with nomadVar \"nomad/jobs/csi-multi-controller\" }}{{ .keyring }}{{ end }}"
        destination = "secrets/csi.keyring"
        perms       = "600"
        change_mode = "noop"
      }

      resources {
        cpu        = 100
        memory     = 128
        memory_max = 512
      }
    }
  }
}
