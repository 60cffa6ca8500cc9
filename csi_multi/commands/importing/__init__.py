"""`csi-multi import`: take over volumes that were created by hand."""
