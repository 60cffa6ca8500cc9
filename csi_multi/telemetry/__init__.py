"""What an operator sees of a running driver: metrics and traces. Neither is imported unless it is configured."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

from ..config import ConfigError, Driver
from ..host.observe import Listeners
from ..registry import Registry
from ..reload import Reload
from ..rpc.interceptor import Traffic

if TYPE_CHECKING:
    from .board import Board


class Telemetry:
    """Its listeners are to be told of everything."""

    def __init__(self, driver: Driver) -> None:
        """Listen on the port for metrics, if there is one. Raises ConfigError and EndpointError."""
        self._board: Board | None = None
        self.listeners: Listeners = ()
        if driver.metrics:
            self._board = _module("board", "driver.metrics", "metrics").Board(driver.metrics, driver.survey_seconds)
            self.listeners += (self._board.metrics,)

    def serving(self, traffic: Traffic, registry: Registry, reload: Reload) -> None:
        """Show these from now on: RPCs are served."""
        if self._board:
            self._board.serving(traffic, registry, reload)

    def stopping(self) -> None:
        """Say that no RPC is taken any more; what is still at work can be seen."""
        if self._board:
            self._board.stopping()

    def close(self) -> None:
        if self._board:
            self._board.close()


def _module(name: str, key: str, extra: str) -> ModuleType:
    """Import what a setting needs. Raises ConfigError where it is not installed."""
    try:
        return importlib.import_module(f".{name}", __package__)
    except ModuleNotFoundError as error:
        raise ConfigError(f"{key} needs the package {error.name!r}: pip install 'csi-multi[{extra}]'") from None
