# nomad volume create volume-rbd.hcl
id        = "shared"
name      = "shared"
type      = "csi"
plugin_id = "csi-multi"

capacity_min = "20GiB"
capacity_max = "20GiB"

# Several nodes can use the volume at once as a raw block device. A volume with a filesystem has one writer.
capability {
  access_mode     = "multi-node-multi-writer"
  attachment_mode = "block-device"
}

capability {
  access_mode     = "single-node-writer"
  attachment_mode = "block-device"
}

# The node's key for Ceph: nodes have no keyring.
secrets {
  userID  = "csi-node"
  userKey = "the key that `ceph auth get-key client.csi-node` prints"
}

parameters {
  backend = "ceph"
}
