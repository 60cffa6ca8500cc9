"""What the metrics say of RPCs, calls, locks, threads and backends."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from csi_multi_testing.memory import MemoryBackend

from csi_multi.contract import CommandFailed, NotFound, Observer, Unavailable
from csi_multi.contract.observer import observed
from csi_multi.host.command import LocalHost

metrics = pytest.importorskip("csi_multi.telemetry.metrics", reason="needs prometheus-client", exc_type=ImportError)
prometheus = pytest.importorskip("prometheus_client")


def test_an_rpc_is_counted_by_method_code_and_instance(show: Any, make: Any, wanted: Any) -> None:
    shown = show(make("fast"), make("slow"))
    volume = shown.client.CreateVolume(**wanted("v")).volume.volume_id
    shown.client.CreateVolume(**wanted("v", "slow"))
    shown.client.DeleteVolume(volume_id=volume)
    with pytest.raises(grpc.RpcError):
        shown.client.ControllerGetVolume(volume_id=volume)

    samples = shown.scrape()
    assert samples("csi_multi_rpcs_total", method="CreateVolume", code="OK", backend="fast") == [1]
    assert samples("csi_multi_rpcs_total", method="CreateVolume", code="OK", backend="slow") == [1]
    assert samples("csi_multi_rpcs_total", method="ControllerGetVolume", code="NOT_FOUND", backend="fast") == [1]
    assert samples("csi_multi_rpc_seconds_count", method="DeleteVolume", backend="fast") == [1]
    assert samples("csi_multi_rpcs_running") == [0] * 4


def test_a_volume_of_the_default_instance_counts_for_it(show: Any, make: Any, wanted: Any) -> None:
    shown = show(make("fast"), make("slow"), default="slow")
    shown.client.CreateVolume(**wanted("v", ""))

    assert shown.scrape()("csi_multi_rpcs_total", method="CreateVolume", backend="slow") == [1]


def test_a_stream_is_counted_when_it_ends(show: Any, make: Any, wanted: Any) -> None:
    shown = show(make("fast"))
    volume = shown.client.CreateVolume(**wanted("v")).volume.volume_id
    shown.client.CreateSnapshot(name="s", source_volume_id=volume)
    list(shown.client.GetMetadataAllocated(snapshot_id="fast/s"))

    assert shown.scrape()("csi_multi_rpcs_total", method="GetMetadataAllocated", code="OK", backend="fast") == [1]


def test_no_name_that_a_caller_makes_up_becomes_a_label(show: Any, make: Any, wanted: Any) -> None:
    shown = show(make("fast"))
    for number in range(20):
        for call, fields in (
            (shown.client.CreateVolume, wanted("v", f"made-up-{number}")),
            (shown.client.DeleteVolume, {"volume_id": f"made-up-{number}/v"}),
            (shown.client.ControllerGetVolume, {"volume_id": f"fast/made-up-{number}"}),
        ):
            with pytest.raises(grpc.RpcError):
                call(**fields)

    labels = [value for name in shown.scrape().names() for one in shown.scrape().labels(name) for value in one.values()]
    assert not [value for value in labels if "made-up" in value]


class Hanging(MemoryBackend):
    """Its volumes cannot be looked at until a test lets go."""

    def __init__(self, *words: Any) -> None:
        super().__init__(*words)
        self.inside, self.go = threading.Semaphore(0), threading.Event()

    def create_volume(self, request: Any) -> Any:
        self.inside.release()
        self.go.wait(30)
        return super().create_volume(request)

    def list_volumes(self, page: Any) -> Any:
        self.inside.release()
        self.go.wait(30)
        return super().list_volumes(page)

    def check(self) -> None:
        self.go.wait(30)


def test_while_a_backend_hangs_a_scrape_answers_and_shows_its_locks_and_threads(
    show: Any, make: Any, wanted: Any
) -> None:
    shown = show(make("bad", Hanging), make("worse", Hanging), survey=300)
    shown.registry.start(30)
    with ThreadPoolExecutor(4) as pool:
        for number in range(4):
            pool.submit(shown.client.CreateVolume, **wanted(f"v{number}", ("bad", "worse")[number % 2]))
        for name in ("bad", "worse"):
            for _ in range(3):  # two creations and the survey
                assert shown.registry.get(name).backend.inside.acquire(timeout=10)
        began = time.monotonic()
        samples = shown.scrape()
        took = time.monotonic() - began
        for name in ("bad", "worse"):
            shown.registry.get(name).backend.go.set()

    assert took < 15  # a hang lasts for 30
    assert samples("csi_multi_locks_held") == [4]
    assert samples("csi_multi_lock_oldest_seconds") > [0]
    assert samples("csi_multi_threads_in_use", cost="working") == [4]
    assert samples("csi_multi_threads", cost="working") == [10]
    assert samples("csi_multi_backend_rpcs_running", backend="bad") == [2]
    assert samples("csi_multi_rpcs_running", method="CreateVolume", backend="worse") == [2]
    assert shown.scrape()("csi_multi_locks_held") == [0]


def test_an_instance_is_up_or_down_since_a_moment_and_a_broken_one_is_down(show: Any, make: Any) -> None:
    shown = show(make("fast"), make("slow"), make("new"), broken={"bad": "no library"})
    before = time.time()
    shown.registry.get("fast").set_state("")
    shown.registry.get("slow").set_state("no route to host")

    samples = shown.scrape()
    assert samples("csi_multi_backend_up", backend="fast") == [1]
    assert samples("csi_multi_backend_up", backend="slow") == [0]
    assert samples("csi_multi_backend_up", backend="bad") == [0]
    assert samples("csi_multi_backend_up", backend="new") == [], "nobody knows yet"
    (since,) = samples("csi_multi_backend_changed_timestamp_seconds", backend="slow")
    assert before <= since <= time.time()
    shown.registry.get("slow").set_state("another reason")
    assert shown.scrape()("csi_multi_backend_changed_timestamp_seconds", backend="slow") == [since]


def test_versions_and_the_process_are_shown(show: Any, make: Any) -> None:
    samples = show(make("fast")).scrape()

    assert samples("csi_multi_build_info") == [1]
    assert samples("process_resident_memory_bytes") > [0]


@pytest.fixture
def told() -> Any:
    """A listener, and its registry's values: told.value("csi_multi_storage_calls_total", program="true")."""
    registry = prometheus.CollectorRegistry()
    listener = metrics.MetricsListener(registry)
    listener.value = lambda name, **labels: sum(
        one.value
        for family in registry.collect()
        for one in family.samples
        if one.name == name and labels.items() <= one.labels.items()
    )
    return listener


def test_a_command_is_counted_by_instance_program_and_outcome(told: Any) -> None:
    host = observed(LocalHost(), "fast", (told,))
    host.run("/bin/true")
    with pytest.raises(CommandFailed):
        host.run("false")

    calls = "csi_multi_storage_calls_total"
    assert told.value(calls, backend="fast", program="true", outcome="ok") == 1
    assert told.value(calls, backend="fast", program="false", outcome="Unavailable") == 1
    assert told.value("csi_multi_storage_call_seconds_count", program="true") == 1


def test_without_a_listener_the_host_is_the_bare_one() -> None:
    host = LocalHost()

    assert observed(host, "fast", ()) is host


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (NotFound("x"), "NotFound"),
        (type("Derived", (Unavailable,), {})("x"), "Unavailable"),
        (KeyError("x"), "Unexpected"),
    ],
)
def test_a_call_ends_with_a_class_of_the_contracts_errors(told: Any, error: Exception, outcome: str) -> None:
    with pytest.raises(type(error)), Observer("cloud", (told,))("ec2", "DeleteVolume"):
        raise error

    calls = told.value("csi_multi_storage_calls_total", program="ec2", operation="DeleteVolume", outcome=outcome)
    assert calls == 1


def test_a_backend_that_names_its_calls_after_volumes_does_not_fill_the_memory(told: Any) -> None:
    observe = Observer("cloud", (told,))
    for number in range(metrics.MAX_OPERATIONS + 50):
        with observe("api", f"volume-{number}"):
            pass

    assert told.value("csi_multi_storage_calls_total") == metrics.MAX_OPERATIONS + 50
    assert told.value("csi_multi_storage_calls_total", program="other") == 50


def test_only_a_programs_own_verbs_are_told(told: Any) -> None:
    host = observed(LocalHost(), "fast", (told,))
    host.run("echo", "secret")
    host.run("echo", "--word", "secret")

    assert told.value("csi_multi_storage_calls_total", program="echo", operation="") == 2
