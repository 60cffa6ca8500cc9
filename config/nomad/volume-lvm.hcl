# nomad volume create volume-lvm.hcl
id        = "fast"
name      = "fast"
type      = "csi"
plugin_id = "csi-multi"

capacity_min = "10GiB"
capacity_max = "10GiB"

capability {
  access_mode     = "single-node-writer"
  attachment_mode = "file-system"
}

mount_options {
  fs_type     = "xfs"
  mount_flags = ["noatime"]
}

topology_request {
  preferred {
    topology {
      segments {
        "multi.csi.example.com/node" = "node-1"
      }
    }
  }
}

parameters {
  backend = "fast"
  type    = "thin"
}
