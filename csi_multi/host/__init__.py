"""What this machine has and does: commands, block devices, the mount table. Backends may import it."""
