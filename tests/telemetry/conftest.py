"""A driver in memory whose metrics are shown on a port of loopback, and how to read them."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from csi_multi.config.settings import Driver
from csi_multi.host.command import LocalHost
from csi_multi.loading.registry import Registry
from csi_multi.rpc.capabilities import Mode
from csi_multi.rpc.client import Client
from csi_multi.rpc.interceptor import SharedRpcState
from csi_multi.rpc.server import build_server

MOUNT = {"mount": {}, "access_mode": {"mode": "SINGLE_NODE_WRITER"}}


def _fetch(address: str, path: str = "/metrics", accept: str = "") -> tuple[int, str]:
    """Return status and body."""
    request = urllib.request.Request(f"http://{address}{path}", headers={"Accept": accept} if accept else {})
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


class Samples:
    """What one scrape showed: samples("csi_multi_rpcs_total", method="Probe")."""

    def __init__(self, text: str) -> None:
        from prometheus_client.parser import text_string_to_metric_families

        self.families = list(text_string_to_metric_families(text))
        self._all = [sample for family in self.families for sample in family.samples]

    def __call__(self, name: str, **labels: str) -> list[float]:
        return [one.value for one in self._all if one.name == name and labels.items() <= one.labels.items()]

    def names(self) -> set[str]:
        return {one.name for one in self._all}

    def labels(self, name: str) -> list[dict[str, str]]:
        return [one.labels for one in self._all if one.name == name]


@pytest.fixture(scope="session")
def fetch() -> Callable[..., tuple[int, str]]:
    """fetch("127.0.0.1:9809", "/healthz") is the status and the body."""
    return _fetch


@pytest.fixture(scope="session")
def read() -> Callable[[str], Samples]:
    """read("127.0.0.1:9809") are the samples of one scrape."""
    return lambda address: Samples(_fetch(address)[1])


@dataclass
class Shown:
    client: Client
    registry: Registry
    traffic: SharedRpcState
    exporter: Any

    def scrape(self) -> Samples:
        status, text = _fetch(self.exporter.server.address)
        assert status == 200
        return Samples(text)


@pytest.fixture
def show(tmp_path: Path, make: Any) -> Iterator[Callable[..., Shown]]:
    """show(make("fast"), make("slow")) serves instances and shows their metrics; `survey` seconds, 0: never."""
    exporter = pytest.importorskip(
        "csi_multi.telemetry.exporter", reason="needs prometheus-client", exc_type=ImportError
    )
    ends: list[Callable[[], Any]] = []

    def serve(*instances: Any, broken: Any = None, default: str = "", survey: int = 0) -> Shown:
        shown = exporter.MetricsExporter("127.0.0.1:0", survey)
        registry = Registry(instances, broken, default)
        driver = Driver(name="multi.csi.example.com", node="node-1", alpha=True, default_backend=default, workers=16)
        traffic = SharedRpcState(driver.workers, (shown.listener,))
        server = build_server(driver, registry, LocalHost(), Mode.ALL, traffic)
        endpoint = f"unix:{tmp_path}/{len(ends)}.sock"
        assert server.add_insecure_port(endpoint)
        server.start()
        client = Client(endpoint, timeout=20)
        shown.on_serving(traffic, registry, SimpleNamespace(successful=True, succeeded_at=1.0))
        ends.extend((client.close, lambda: server.stop(0).wait(), shown.on_stopping, shown.close))
        return Shown(client, registry, traffic, shown)

    yield serve
    for end in ends:
        with suppress(Exception):
            end()


@pytest.fixture(scope="session")
def wanted() -> Callable[..., dict[str, Any]]:
    """wanted("v", "fast") are the fields of a CreateVolume request."""
    return lambda name, backend="fast", **more: {
        "name": name,
        "volume_capabilities": [MOUNT],
        "parameters": {"backend": backend} if backend else {},
        **more,
    }
