"""An example of a third-party backend for csi_multi: scratch volumes in memory."""
