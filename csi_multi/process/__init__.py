"""The driver as a process: start, stop, and a child process for demo and tests."""
