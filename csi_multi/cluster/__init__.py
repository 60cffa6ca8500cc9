"""One driver over many nodes: the controller forwards RPCs for node-local volumes to the node that has them.

The protocol is CSI itself over TCP with mutual TLS (docs/cluster.md).
"""
