# nomad volume create volume-loop.hcl
id        = "scratch"
name      = "scratch"
type      = "csi"
plugin_id = "csi-multi"

capacity_min = "1GiB"
capacity_max = "1GiB"

capability {
  access_mode     = "single-node-writer"
  attachment_mode = "file-system"
}

mount_options {
  fs_type = "ext4"
}

# The volume is on this node, and so are its jobs. Without this block it is on the node with the most free space.
topology_request {
  required {
    topology {
      segments {
        "multi.csi.example.com/node" = "node-1"
      }
    }
  }
}

parameters {
  backend = "scratch"
}
