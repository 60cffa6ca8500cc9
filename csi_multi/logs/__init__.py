"""What the driver writes about itself: the log on stderr, and the secrets that are kept out of it."""
