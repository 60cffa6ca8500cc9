"""The driver as a process: start and stop, its socket, its log, the secrets it keeps out of it."""
