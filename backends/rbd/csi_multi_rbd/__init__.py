"""RBD backend: images of a pool and namespace of one Ceph cluster, through the rbd command."""
