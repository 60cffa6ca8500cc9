"""The verbs of the command line, except `serve`."""
