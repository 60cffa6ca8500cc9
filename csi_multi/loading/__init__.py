"""Backend packages: found, validated, called with limits on threads and time, replaced at a reload."""
