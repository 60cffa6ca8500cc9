"""What the driver would do for a StorageClass, and why; nothing is changed."""
