"""The machine: commands, block devices, the mount table. Backends may import this package."""
