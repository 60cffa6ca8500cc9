"""Who may call a server: asked before the message of an RPC is read, and again right before the work begins."""

from __future__ import annotations

import grpc

from ..contract.errors import Timeout

TrailingMetadata = tuple[tuple[str, str | bytes], ...]


class PeerPolicy:
    """Who may call, what the trailing metadata of every response contains, and whether RPCs get an id.

    This class admits every caller. The interceptor asks the policy before it reads the message of an RPC.
    """

    assigns_request_ids = False  # to RPCs that came without an id

    def admit(self, context: grpc.ServicerContext) -> TrailingMetadata:
        """Return trailing metadata for the response. Raises PermissionDenied."""
        return ()

    def check_caller(self, context: grpc.ServicerContext) -> None:
        """Called with all locks and slots held, right before the work begins. Raises Timeout."""


class RequestIdPolicy(PeerPolicy):
    """Everybody may call, and RPCs may be forwarded: the id connects the logs of the two drivers."""

    assigns_request_ids = True


class RemotePeerPolicy(PeerPolicy):
    """Callers come over a network, which may lose them."""

    def check_caller(self, context: grpc.ServicerContext) -> None:
        """Refuse the work for a caller that is gone: by now it may have sent the request elsewhere."""
        if not context.is_active():
            raise Timeout("the caller disconnected before the work began")
