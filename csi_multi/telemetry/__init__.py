"""Metrics and traces of a running driver. Their modules are imported only when they are configured."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING

from ..config.document import ConfigError
from ..config.settings import Driver
from ..contract.observer import Listeners
from ..loading.registry import Registry
from ..loading.reload import ConfigReloader
from ..rpc.interceptor import SharedRpcState

if TYPE_CHECKING:
    from .exporter import MetricsExporter
    from .traces import TraceListener

TRACE_VARIABLES = ("OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


class Telemetry:
    """The configured telemetry. Its `listeners` get every RPC, command and API call."""

    def __init__(self, driver: Driver) -> None:
        """Listen on the port for metrics, if there is one. Raises ConfigError and EndpointError."""
        self._exporter: MetricsExporter | None = None
        self.listeners: Listeners = ()
        if driver.metrics:
            module = _import("exporter", "driver.metrics", "metrics")
            files = module.CertificateFiles(driver.metrics_certificate, driver.metrics_key)
            certificate = files if driver.metrics_certificate else None
            self._exporter = module.MetricsExporter(driver.metrics, driver.survey_seconds, certificate)
            self.listeners += (self._exporter.listener,)
        self._traces: TraceListener | None = None
        if variable := _trace_variable():
            self._traces = _import("traces", variable, "tracing").TraceListener()
            self.listeners += (self._traces,)

    def on_serving(
        self,
        shared: SharedRpcState,
        registry: Registry,
        reloader: ConfigReloader,
        refused_answers: Callable[[], int],
    ) -> None:
        """RPCs are served from now on: export their state, too."""
        if self._exporter:
            self._exporter.on_serving(shared, registry, reloader, refused_answers)

    def on_stopping(self) -> None:
        """New RPCs are refused from now on; running ones are still exported."""
        if self._exporter:
            self._exporter.on_stopping()

    def close(self) -> None:
        if self._traces:
            self._traces.close()
        if self._exporter:
            self._exporter.close()


def _trace_variable() -> str:
    """Return the variable that switches traces on; "": none. (OpenTelemetry's own default is to send them.)"""
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or os.environ.get("OTEL_TRACES_EXPORTER") == "none":
        return ""
    return next((name for name in TRACE_VARIABLES if os.environ.get(name)), "")


def _import(name: str, key: str, extra: str) -> ModuleType:
    """Import the module that a setting requires. Raises ConfigError when its packages are not installed."""
    try:
        return importlib.import_module(f".{name}", __package__)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{key} requires the package {error.name!r}; install it with: pip install 'csi-multi[{extra}]'"
        ) from None
