"""The node engine: formats, mounts, publishes and grows the device that a backend opens, whichever backend it is."""
