"""An orchestrator that retries: it repeats calls by CSI's rules while the driver is killed and started again."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import grpc

from csi_multi.rpc.client import Client

# Codes that are not final: the operation may still run, or the driver is not there (external-provisioner, kubelet).
RETRIED = frozenset(
    {
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
    }
)
TIME_LIMIT = 60.0  # seconds
PAUSE = 0.02  # seconds between tries; a real orchestrator waits longer


class Orchestrator:
    """Calls RPCs until they succeed or fail with a final code. `connect` returns a client of the current driver."""

    def __init__(self, connect: Callable[[], Client]) -> None:
        self._connect = connect
        self.retries = 0

    def call(self, rpc: str, **fields: Any) -> Any:
        """Raises grpc.RpcError for a final code, or for any code after TIME_LIMIT."""
        until = time.monotonic() + TIME_LIMIT
        while True:
            try:
                return getattr(self._connect(), rpc)(**fields)
            except grpc.RpcError as error:
                if error.code() not in RETRIED or time.monotonic() > until:
                    raise
                self.retries += 1
                time.sleep(PAUSE)
            except ValueError:  # the channel was closed during the call: the driver is being replaced
                self.retries += 1
                time.sleep(PAUSE)
