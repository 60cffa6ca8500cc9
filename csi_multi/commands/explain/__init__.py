"""`csi-multi explain`: what the driver would do for a StorageClass, and why; it changes nothing."""
