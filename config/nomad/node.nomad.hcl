# The driver on every node. From this directory: nomad job run node.nomad.hcl
# Clients must allow it: plugin "docker" { config { allow_privileged = true, volumes { enabled = true } } }
job "csi-multi-node" {
  type        = "system"
  datacenters = ["dc1"]
  priority    = 100

  update {
    max_parallel = 1
  }

  group "node" {
    # However often the driver ends, it comes back. By default Nomad gives up after three times in half an hour.
    restart {
      attempts = 5
      interval = "1m"
      delay    = "2s"
      mode     = "delay"
    }

    task "driver" {
      driver       = "docker"
      kill_timeout = "60s"

      csi_plugin {
        id             = "csi-multi"
        type           = "node"
        mount_dir      = "/csi"
        health_timeout = "60s"
      }

      config {
        image        = "csi-multi-node:0.1.0"
        args         = ["serve", "--config=/local/config.yaml", "--mode=node", "--node=${node.unique.name}"]
        privileged   = true
        network_mode = "host"
        pid_mode     = "host" # lvm with namespace: host, and rbd-nbd

        # docs/deploy.md lists which backend needs which of these. Nomad itself mounts /dev, and
        # docker makes a directory that the client lacks.
        volumes = [
          "/lib/modules:/lib/modules:ro",
          "/sys:/sys",
          "/var/lib/csi-multi:/var/lib/csi-multi:rslave",
        ]
      }

      env {
        CSI_ENDPOINT = "unix:///csi/csi.sock"
      }

      template {
        data        = file("csi-multi.yaml")
        destination = "local/config.yaml"
        change_mode = "noop"
      }

      # nomad var put nomad/jobs/csi-multi-node ca=@ca.pem certificate=@certificate.pem key=@key.pem
      template {
        data        = "{{ with nomadVar \"nomad/jobs/csi-multi-node\" }}{{ .ca }}{{ end }}"
        destination = "secrets/ca.crt"
        change_mode = "noop"
      }

      template {
        data        = "{{ with nomadVar \"nomad/jobs/csi-multi-node\" }}{{ .certificate }}{{ end }}"
        destination = "secrets/tls.crt"
        change_mode = "noop"
      }

      template {
        data        = "{{ with nomadVar \"nomad/jobs/csi-multi-node\" }}{{ .key }}{{ end }}"
        destination = "secrets/tls.key"
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
