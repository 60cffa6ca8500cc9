"""The driver's YAML file: read, validated, with the line of every key."""
