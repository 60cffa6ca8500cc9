# A job that uses the volume of volume-loop.hcl: nomad job run app.nomad.hcl
job "app" {
  datacenters = ["dc1"]

  group "app" {
    volume "data" {
      type            = "csi"
      source          = "scratch"
      access_mode     = "single-node-writer"
      attachment_mode = "file-system"
    }

    task "app" {
      driver = "docker"

      config {
        image   = "busybox:1"
        command = "sh"
        args    = ["-c", "date >> /data/log; cat /data/log; sleep infinity"]
      }

      volume_mount {
        volume      = "data"
        destination = "/data"
      }
    }
  }
}
