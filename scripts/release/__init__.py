"""Prepare a release of all distributions: `make release VERSION=x.y.z`. docs/releasing.md goes through it."""
