"""What an operator sees of a running driver: metrics and traces. Neither is imported unless it is configured."""

from __future__ import annotations

import importlib
import os
from types import ModuleType
from typing import TYPE_CHECKING

from ..config.document import ConfigError
from ..config.settings import Driver
from ..contract.observer import Listeners
from ..loading.registry import Registry
from ..loading.reload import ConfigReloader
from ..rpc.interceptor import SharedRpcState

if TYPE_CHECKING:
    from .exporter import Board
    from .traces import Traces

ASKING = ("OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


class Telemetry:
    """Its listeners are to be told of everything."""

    def __init__(self, driver: Driver) -> None:
        """Listen on the port for metrics, if there is one. Raises ConfigError and EndpointError."""
        self._board: Board | None = None
        self.listeners: Listeners = ()
        if driver.metrics:
            self._board = _module("board", "driver.metrics", "metrics").Board(driver.metrics, driver.survey_seconds)
            self.listeners += (self._board.metrics,)
        self._traces: Traces | None = None
        if variable := _traced():
            self._traces = _module("traces", variable, "tracing").Traces()
            self.listeners += (self._traces,)

    def serving(self, traffic: SharedRpcState, registry: Registry, reload: ConfigReloader) -> None:
        """Show these from now on: RPCs are served."""
        if self._board:
            self._board.serving(traffic, registry, reload)

    def stopping(self) -> None:
        """Say that no RPC is taken any more; what is still at work can be seen."""
        if self._board:
            self._board.stopping()

    def close(self) -> None:
        if self._traces:
            self._traces.close()
        if self._board:
            self._board.close()


def _traced() -> str:
    """Return the variable that asks for traces, "" if none does: OpenTelemetry's own default is to send them."""
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or os.environ.get("OTEL_TRACES_EXPORTER") == "none":
        return ""
    return next((name for name in ASKING if os.environ.get(name)), "")


def _module(name: str, key: str, extra: str) -> ModuleType:
    """Import what a setting needs. Raises ConfigError where it is not installed."""
    try:
        return importlib.import_module(f".{name}", __package__)
    except ModuleNotFoundError as error:
        raise ConfigError(f"{key} needs the package {error.name!r}: pip install 'csi-multi[{extra}]'") from None
