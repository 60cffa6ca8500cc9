"""A driver process that sends its traces to a collector: one that takes them, and one that is not there."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from csi_multi.process.driver_process import DriverProcess

pytestmark = [pytest.mark.root, pytest.mark.slow]
service = pytest.importorskip(
    "opentelemetry.proto.collector.trace.v1.trace_service_pb2", reason="needs the extra `tracing`"
)

EXPORT = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
MOUNT = {"mount": {}, "access_mode": {"mode": "SINGLE_NODE_WRITER"}}
CONFIG = """\
driver: {{name: traced.csi-multi.example, node: n1, default_backend: a}}
backends:
  a: {{kind: loop, directory: {directory}/a}}
"""


class Collector(grpc.GenericRpcHandler):
    """Takes what OTLP sends over gRPC, on a port of loopback."""

    def __init__(self) -> None:
        self.spans: queue.Queue[Any] = queue.Queue()
        self.services: set[str] = set()
        self._server = grpc.server(ThreadPoolExecutor(2))
        self._server.add_generic_rpc_handlers((self,))
        self.address = f"http://127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def service(self, details: Any) -> Any:
        if details.method == EXPORT:
            return grpc.unary_unary_rpc_method_handler(
                self._export,
                request_deserializer=service.ExportTraceServiceRequest.FromString,
                response_serializer=service.ExportTraceServiceResponse.SerializeToString,
            )
        return None

    def _export(self, request: Any, context: Any) -> Any:
        for resource in request.resource_spans:
            self.services |= {
                one.value.string_value for one in resource.resource.attributes if one.key == "service.name"
            }
            for scope in resource.scope_spans:
                for span in scope.spans:
                    self.spans.put(span)
        return service.ExportTraceServiceResponse()

    def until(self, name: str) -> Any:
        """Return the next span of this name."""
        while (span := self.spans.get(timeout=20)).name != name:
            pass
        return span

    def close(self) -> None:
        self._server.stop(0).wait()


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.close()


def driver(directory: Path, endpoint: str) -> DriverProcess:
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_BSP_SCHEDULE_DELAY": "60000"}
    return DriverProcess(directory, CONFIG.format(directory=directory), environment=environment)


def test_what_was_done_is_at_the_collector_when_the_process_has_ended(tmp_path: Path, collector: Collector) -> None:
    process = driver(tmp_path, collector.address)
    client = process.start()
    client.CreateVolume(name="v", volume_capabilities=[MOUNT], capacity_range={"required_bytes": 1 << 25})
    client.close()
    assert process.stop() == 0

    span = collector.until("CreateVolume")
    facts = {one.key: one.value.string_value for one in span.attributes}
    assert (facts["csi.backend"], facts["rpc.response.status_code"]) == ("a", "OK")
    assert collector.services == {"csi-multi"}


def test_a_collector_that_is_not_there_costs_no_rpc_and_little_of_the_end(tmp_path: Path) -> None:
    process = driver(tmp_path, "http://127.0.0.1:1")
    client = process.start()
    for number in range(20):
        client.CreateVolume(name=f"v{number}", volume_capabilities=[MOUNT], capacity_range={"required_bytes": 1 << 25})
    client.close()
    began = time.monotonic()

    assert process.stop() == 0
    assert time.monotonic() - began < 15  # the exporter itself would go on for a minute
