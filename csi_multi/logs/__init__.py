"""The driver's log on stderr, and the secrets that are kept out of it."""
