"""Generated from protos/csi.proto by `make proto`; never edited."""
