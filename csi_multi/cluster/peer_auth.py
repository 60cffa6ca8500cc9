"""The authorization on a node's cluster port: only the controller may call, and only with RPCs for this node."""

from __future__ import annotations

import grpc

from ..contract.errors import PermissionDenied, Unavailable
from ..rpc.peers import RemotePeerPolicy, TrailingMetadata
from .remote_node import NODE_KEY


class ControllerOnlyPolicy(RemotePeerPolicy):
    """The certificate of the caller, signed by the CA, must contain the controller's DNS name.

    The RPC must be for this node, because an address may have passed to another machine, and one certificate may serve
    for all nodes. NODE_KEY in the trailing metadata marks responses of this driver.
    """

    def __init__(self, node: str, identity: str) -> None:
        self._trailing: TrailingMetadata = ((NODE_KEY, node),)
        self._node = node
        self._identity = identity

    def admit(self, context: grpc.ServicerContext) -> TrailingMetadata:
        names = sorted(name.decode("utf-8", "replace") for name in context.auth_context().get("peer_dns", ()))
        if self._identity not in names:
            raise PermissionDenied(
                f"node {self._node!r} accepts only RPCs of {self._identity!r}, but the certificate of this caller is "
                f"for {', '.join(names) or 'no DNS name'}; give the controller a certificate with that DNS name, or "
                "set cluster.controller_identity"
            )
        meant = next((value for key, value in context.invocation_metadata() if key == NODE_KEY), self._node)
        if meant != self._node:
            raise Unavailable(
                f"this is node {self._node!r}, but the RPC is for node {meant!r}; correct the address of node {meant!r}"
            )
        return self._trailing
