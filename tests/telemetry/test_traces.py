"""RPCs as spans, with their commands and API calls as children, in the trace that the caller began."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from csi_multi_testing.memory import MemoryBackend

from csi_multi.config.document import ConfigError
from csi_multi.config.settings import Driver
from csi_multi.contract import CommandFailed, Host, Observer
from csi_multi.contract.observer import OUTGOING, Rpc, observed
from csi_multi.host.command import LocalHost
from csi_multi.loading.registry import Registry
from csi_multi.rpc.capabilities import Mode
from csi_multi.rpc.client import Client
from csi_multi.rpc.interceptor import SharedRpcState
from csi_multi.rpc.server import build_server
from csi_multi.telemetry import Telemetry

traces = pytest.importorskip("csi_multi.telemetry.traces", reason="needs opentelemetry-sdk", exc_type=ImportError)
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Storage(MemoryBackend):
    """Runs a command, makes a call and fails at one, as real backends do."""

    host: Host
    observe: Observer
    outgoing: tuple[tuple[str, str], ...] = ()

    def create_volume(self, request: Any) -> Any:
        self.host.run("echo", "--secret", "hunter2")
        with self.observe("ec2", "CreateVolume"):
            self.outgoing = OUTGOING.get()
        return super().create_volume(request)

    def get_volume(self, handle: str) -> Any:
        if handle == "odd":
            self.host.run("false")
        return super().get_volume(handle)


@pytest.fixture
def traced(tmp_path: Path, make: Any) -> Any:
    """traced() are the spans so far; traced.client calls the driver."""
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    memory = InMemorySpanExporter()
    listener = traces.TraceListener([memory])
    instance = make("fast", Storage)
    instance.backend.host = observed(LocalHost(), "fast", (listener,))
    instance.backend.observe = Observer("fast", (listener,))
    driver = Driver(name="multi.csi.example.com", node="node-1", alpha=True, workers=16)
    server = build_server(driver, Registry([instance]), LocalHost(), Mode.ALL, SharedRpcState(16, (listener,)))
    assert server.add_insecure_port(f"unix:{tmp_path}/s.sock")
    server.start()

    def spans() -> dict[str, Any]:
        listener.close()
        return {span.name: span for span in memory.get_finished_spans()}

    spans.backend = instance.backend  # type: ignore[attr-defined]
    spans.listener = listener  # type: ignore[attr-defined]
    spans.endpoint = f"unix:{tmp_path}/s.sock"  # type: ignore[attr-defined]
    spans.client = Client(spans.endpoint, timeout=20)  # type: ignore[attr-defined]
    yield spans
    spans.client.close()  # type: ignore[attr-defined]
    server.stop(0).wait()


def test_an_rpc_is_a_span_and_its_commands_and_calls_are_its_children(traced: Any, wanted: Any) -> None:
    traced.client.CreateVolume(**wanted("v"))

    spans = traced()
    rpc = spans["CreateVolume"]
    assert set(spans) == {"CreateVolume", "echo", "ec2 CreateVolume"}
    assert rpc.attributes["rpc.method"] == "CreateVolume"
    assert (rpc.attributes["csi.backend"], rpc.attributes["csi.object"]) == ("fast", "v")
    assert rpc.attributes["rpc.response.status_code"] == "OK"
    for name in ("echo", "ec2 CreateVolume"):
        assert spans[name].parent.span_id == rpc.context.span_id
        assert spans[name].attributes["csi.outcome"] == "ok"


def test_no_argument_is_in_any_span(traced: Any, wanted: Any) -> None:
    traced.client.CreateVolume(**wanted("v", secrets={"key": "hunter2"}))

    assert "hunter2" not in "".join(span.to_json() for span in traced().values())


def test_what_fails_says_how(traced: Any) -> None:
    with pytest.raises(grpc.RpcError):
        traced.client.ControllerGetVolume(volume_id="fast/odd")

    spans = traced()
    assert spans["false"].attributes["csi.outcome"] == "Unavailable"
    assert not spans["false"].status.is_ok
    assert spans["ControllerGetVolume"].attributes["rpc.response.status_code"] == "UNAVAILABLE"
    assert spans["ControllerGetVolume"].attributes["csi.object"] == "fast/odd"
    assert not spans["ControllerGetVolume"].status.is_ok


def test_the_callers_trace_goes_on_and_is_handed_on(traced: Any, wanted: Any) -> None:
    from csi_multi._proto import csi_pb2 as pb

    with grpc.insecure_channel(traced.endpoint) as channel:
        call = channel.unary_unary(
            "/csi.v1.Controller/CreateVolume", request_serializer=pb.CreateVolumeRequest.SerializeToString
        )
        call(pb.CreateVolumeRequest(**wanted("v")), metadata=(("traceparent", PARENT),), timeout=10)

    rpc = traced()["CreateVolume"]
    assert f"{rpc.context.trace_id:032x}-{rpc.parent.span_id:016x}" == PARENT[3:-3]
    assert dict(traced.backend.outgoing)["traceparent"] == f"{PARENT[:36]}{rpc.context.span_id:016x}-01"


def test_work_that_belongs_to_no_rpc_makes_no_span(traced: Any) -> None:
    traced.backend.host.run("true")
    with pytest.raises(CommandFailed):
        traced.backend.host.run("false")

    assert traced() == {}
    assert OUTGOING.get() == ()


def test_one_rpc_is_not_within_another_that_its_thread_served_before(traced: Any, wanted: Any) -> None:
    for name in ("v", "w"):
        traced.client.CreateVolume(**wanted(name))
    traced.client.DeleteVolume(volume_id="fast/v")

    spans = traced()
    assert {spans[name].parent for name in ("CreateVolume", "DeleteVolume")} == {None}


def test_nothing_of_an_rpc_is_left_in_its_thread(traced: Any) -> None:
    for method in ("First", "Second"):
        traced.listener.begin_rpc(Rpc(method))("OK")
        assert OUTGOING.get() == ()
        assert not traces.trace.get_current_span().get_span_context().is_valid

    assert {span.name: span.parent for span in traced().values()} == {"First": None, "Second": None}


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        ({}, False),
        ({"OTEL_SERVICE_NAME": "storage"}, False),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}, False),
        ({"OTEL_SDK_DISABLED": "true", "OTEL_TRACES_EXPORTER": "otlp"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}, True),
        ({"OTEL_TRACES_EXPORTER": "console"}, True),
    ],
)
def test_traces_are_made_when_opentelemetrys_variables_ask_for_them(
    clean: Callable[[dict[str, str]], None], variables: dict[str, str], wanted: bool
) -> None:
    clean(variables)

    assert bool(Telemetry(Driver(name="multi.csi.example.com", node="n")).listeners) is wanted


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "no exporter 'zipkin' is installed; installed exporters: .*console"),
        (
            {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"},
            "'http/json' is not supported; use one of grpc, http/protobuf",
        ),
    ],
)
def test_what_cannot_be_sent_is_an_error_at_the_start(clean: Any, variables: dict[str, str], reason: str) -> None:
    clean(variables)

    with pytest.raises(ConfigError, match=reason):
        Telemetry(Driver(name="multi.csi.example.com", node="n"))


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, str]], None]:
    """Have these variables of OpenTelemetry, and no others."""
    import os

    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    return lambda variables: [monkeypatch.setenv(name, value) for name, value in variables.items()]  # type: ignore[func-returns-value,return-value]
