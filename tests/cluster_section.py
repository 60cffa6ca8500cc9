"""A configuration file up to its `cluster:` section, and the section's certificates."""

from __future__ import annotations

HEAD = """\
driver: {name: multi.csi.example.com, node: node-1}
backends:
  scratch: {kind: loop, directory: /srv/scratch}
cluster:
"""
TLS = "  tls: {ca: /tls/ca.pem, certificate: /tls/certificate.pem, key: /tls/key.pem}\n"
