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
    """Attributes are read from the client and set on it: checks change its storage for a while."""

    _client: BackendProtocol
    _interrupt: Interrupt

    def __init__(self, client: BackendProtocol, interrupt: Interrupt) -> None:
        vars(self).update(_client=client, _interrupt=interrupt)

    def __getattr__(self, name: str) -> Any:
        if threading.current_thread() is threading.main_thread():
            self._interrupt.raise_if_received()
        return getattr(self._client, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._client, name, value)
