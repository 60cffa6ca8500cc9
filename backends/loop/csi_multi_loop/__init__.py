"""Loop-file backend: sparse files on loop devices."""
