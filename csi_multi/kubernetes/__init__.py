"""What the driver itself does with the Kubernetes API: the nodes of a cluster, the startup taint, the drain hook."""
