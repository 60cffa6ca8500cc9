"""What the driver asks the Kubernetes API itself. Nothing here is needed elsewhere than on Kubernetes."""
