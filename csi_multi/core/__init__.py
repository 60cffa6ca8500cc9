"""What CSI asks of a driver, over backends that report what is there: idempotency, topology, locks."""
