"""The node engine: a device goes in, a mounted path comes out, for every backend alike."""
