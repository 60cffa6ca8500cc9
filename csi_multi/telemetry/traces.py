"""RPCs, and the commands and API calls within them, as OpenTelemetry spans.

OpenTelemetry's own variables (OTEL_*) configure the target, the sampling and the name of the service. A span contains
names and ids, never arguments, because arguments may be secrets.
"""

from __future__ import annotations

import logging
import os
from importlib.metadata import entry_points, version
from typing import Any

from opentelemetry import context as contexts
from opentelemetry import propagate, trace
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import SpanKind, Status, StatusCode

from ..config.document import ConfigError
from ..contract.observer import OK, OUTGOING, EndCallback, Rpc
from ..host.supervised import SupervisedCall

log = logging.getLogger(__name__)

EXPORTERS = "opentelemetry_traces_exporter"  # entry point group of OpenTelemetry
PROTOCOLS = {"grpc": "otlp_proto_grpc", "http/protobuf": "otlp_proto_http"}
FAILURE_CODES = frozenset({"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"})
FLUSH_TIMEOUT = 3.0  # seconds that the process waits at its end until the last spans are sent


class TraceListener:
    """A listener that creates spans."""

    def __init__(self, exporters: list[SpanExporter] | None = None) -> None:
        """Send spans to these exporters, by default to those in the environment. Raises ConfigError."""
        attributes = {
            SERVICE_NAME: os.environ.get("OTEL_SERVICE_NAME", "csi-multi"),
            SERVICE_VERSION: version("csi-multi"),
        }
        self._provider = TracerProvider(resource=Resource.create(attributes), shutdown_on_exit=False)
        for exporter in _exporters() if exporters is None else exporters:
            self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("csi-multi", version("csi-multi"))

    def begin_rpc(self, rpc: Rpc) -> EndCallback:
        incoming = {key: value for key, value in rpc.metadata if isinstance(value, str)}
        attributes = {
            "rpc.system": "grpc",
            "rpc.method": rpc.method,
            "csi.backend": rpc.instance,
            "csi.object": rpc.volume,
        }
        span = self._tracer.start_span(
            rpc.method,
            context=propagate.extract(incoming),
            kind=SpanKind.SERVER,
            attributes={key: value for key, value in attributes.items() if value},
        )
        context = contexts.attach(trace.set_span_in_context(span))
        headers: dict[str, str] = {}
        propagate.inject(headers)
        outgoing = OUTGOING.set(tuple(headers.items()))

        def end(code: str) -> None:
            OUTGOING.reset(outgoing)
            contexts.detach(context)
            span.set_attribute("rpc.response.status_code", code)
            if code in FAILURE_CODES:
                span.set_status(Status(StatusCode.ERROR, code))
            span.end()

        return end

    def begin_call(self, instance: str, program: str, operation: str) -> EndCallback:
        if not trace.get_current_span().get_span_context().is_valid:
            return _ignore  # background work and checks belong to no RPC
        span = self._tracer.start_span(
            f"{program} {operation}".rstrip(),
            kind=SpanKind.CLIENT,
            attributes={"csi.backend": instance, "csi.program": program, "csi.operation": operation},
        )

        def end(outcome: str) -> None:
            span.set_attribute("csi.outcome", outcome)
            if outcome != OK:
                span.set_status(Status(StatusCode.ERROR, outcome))
            span.end()

        return end

    def close(self) -> None:
        """Send the remaining spans, within FLUSH_TIMEOUT."""
        if not SupervisedCall("traces", self._provider.force_flush).done(FLUSH_TIMEOUT):
            log.warning("traces: the last spans could not be sent within %g s", FLUSH_TIMEOUT)


def _ignore(outcome: str) -> None:
    pass


def _exporters() -> list[SpanExporter]:
    """Return the exporters in OTEL_TRACES_EXPORTER; by default OTLP, as OpenTelemetry specifies."""
    names = [name.strip() for name in (os.environ.get("OTEL_TRACES_EXPORTER") or "otlp").split(",")]
    return [_exporter(_kind(name)) for name in names if name not in ("", "none")]


def _kind(name: str) -> str:
    if name != "otlp":
        return name
    general = os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", general)
    if protocol not in PROTOCOLS:
        raise ConfigError(
            f"OTEL_EXPORTER_OTLP_PROTOCOL: {protocol!r} is not supported; use one of {', '.join(PROTOCOLS)}"
        )
    return PROTOCOLS[protocol]


def _exporter(kind: str) -> SpanExporter:
    found = {point.name: point for point in entry_points(group=EXPORTERS)}
    if kind not in found:
        installed = ", ".join(sorted(found)) or "none"
        raise ConfigError(f"OTEL_TRACES_EXPORTER: no exporter {kind!r} is installed; installed exporters: {installed}")
    exporter_class: Any = found[kind].load()
    exporter: SpanExporter = exporter_class()
    return exporter
