"""One CSI driver, many storage backends."""
