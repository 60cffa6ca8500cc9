"""The rules of CSI that are the same for all backends: idempotency, topology, locks."""
