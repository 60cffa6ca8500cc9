# nomad volume create volume-ebs.hcl
id        = "cloud"
name      = "cloud"
type      = "csi"
plugin_id = "csi-multi"

capacity_min = "100GiB"
capacity_max = "100GiB"

capability {
  access_mode     = "single-node-writer"
  attachment_mode = "file-system"
}

mount_options {
  fs_type = "xfs"
}

topology_request {
  required {
    topology {
      segments {
        "multi.csi.example.com/zone" = "eu-west-1a"
      }
    }
  }
}

parameters {
  backend   = "ireland"
  type      = "gp3"
  encrypted = "true"
}
