"""Take over volumes that were made by hand: `csi-multi import`."""
