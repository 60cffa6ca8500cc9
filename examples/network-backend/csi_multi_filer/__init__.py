"""An example of a backend for csi_multi whose storage all nodes reach: volumes as files in a shared directory."""
