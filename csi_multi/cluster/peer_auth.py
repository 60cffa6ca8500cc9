"""A node's side: only the controller may call, and what this driver says itself carries a mark."""

from __future__ import annotations

import grpc

from ..contract.errors import PermissionDenied, Unavailable
from ..rpc.interceptor import RemotePeerPolicy, TrailingMetadata
from .remote_node import MARK


class ControllerOnly(RemotePeerPolicy):
    """The certificate of the caller, signed by the CA, must carry the controller's DNS name.

    And it must mean this node: addresses are given to other machines, and one certificate may do for all nodes.
    """

    def __init__(self, node: str, identity: str) -> None:
        self._answer: TrailingMetadata = ((MARK, node),)
        self._node = node
        self._identity = identity

    def admit(self, context: grpc.ServicerContext) -> TrailingMetadata:
        names = sorted(name.decode("utf-8", "replace") for name in context.auth_context().get("peer_dns", ()))
        if self._identity not in names:
            raise PermissionDenied(
                f"node {self._node!r} serves only {self._identity!r}; the certificate of this caller names "
                f"{', '.join(names) or 'nobody'}: give the controller a certificate with that DNS name, or set "
                "cluster.controller_identity"
            )
        meant = next((value for key, value in context.invocation_metadata() if key == MARK), self._node)
        if meant != self._node:
            raise Unavailable(f"this is node {self._node!r}, not {meant!r}: correct its address, or wait until it is")
        return self._answer
