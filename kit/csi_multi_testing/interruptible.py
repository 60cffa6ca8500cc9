"""An interrupted run ends between two calls to the storage, so that everything it created is known and removed."""

from __future__ import annotations

import threading
from typing import Any, cast

from csi_multi.commands.demo import Interrupt

from .protocol import BackendProtocol

__all__ = ["Interrupt", "interruptible"]


def interruptible(client: BackendProtocol, interrupt: Interrupt) -> BackendProtocol:
    """Return the client; after a signal its next use in the main thread raises KeyboardInterrupt."""
    return cast(BackendProtocol, _InterruptibleClient(client, interrupt))


class _InterruptibleClient:
    def __init__(self, client: BackendProtocol, interrupt: Interrupt) -> None:
        self._client = client
        self._interrupt = interrupt

    def __getattr__(self, name: str) -> Any:
        if threading.current_thread() is threading.main_thread():
            self._interrupt.raise_if_received()
        return getattr(self._client, name)
