"""What backend authors and our own tests need: shipped with the core, never imported by it."""
