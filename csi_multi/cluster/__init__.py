"""One driver over many nodes: the controller sends RPCs for node-local volumes to the node that has them.

The wire is CSI itself over TCP with mutual TLS (docs/cluster.md).
"""
