"""Expansions of volumes that grow only while they are attached (Expand.offline is False)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from csi_multi.contract import Backend, Busy, Node

PAUSES = tuple(0.01 * 2**step for step in range(10))  # seconds between tries: ten in all


class GrowingClient(Protocol):
    """What is needed of a client to attach a volume for its expansion."""

    attached: set[tuple[str, str]]  # (handle, node id)

    @property
    def grows_only_attached(self) -> bool: ...
    def node(self) -> Node: ...
    def attach(self, handle: str, node: Node) -> Any: ...
    def detach(self, handle: str, node: Node | None) -> None: ...


def grows_only_attached(backend: type[Backend]) -> bool:
    return not getattr(backend, "offline", True)


@contextmanager
def attached_to_grow(client: GrowingClient, handle: str) -> Iterator[None]:
    """Attach the volume to this node for the block, unless it is attached or grows without."""
    if not client.grows_only_attached or any(handle == one for one, _ in client.attached):
        yield
        return
    node = client.node()
    client.attach(handle, node)
    try:
        yield
    except Exception:
        with suppress(Exception):  # the error of the expansion says more
            _detach(client, handle, node)
        raise
    _detach(client, handle, node)


def _detach(client: GrowingClient, handle: str, node: Node) -> None:
    """Detach as an orchestrator does, which calls again while another call holds the volume."""
    for pause in PAUSES:
        try:
            return client.detach(handle, node)
        except Busy:
            time.sleep(pause)
    return client.detach(handle, node)
