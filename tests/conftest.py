"""Servers over backends in memory, reached through a real socket, for every test of the core."""

from __future__ import annotations

import io
import logging
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
from csi_multi_testing.memory import MemoryBackend, MemoryStorage
from stevedore.extension import ExtensionManager

from csi_multi.config.settings import Config, Driver, load_config
from csi_multi.contract import Backend, Host, Setting
from csi_multi.host.command import LocalHost
from csi_multi.loading.instance import Instance
from csi_multi.loading.registry import Registry
from csi_multi.logs.handlers import set_up_logging
from csi_multi.rpc.capabilities import Mode
from csi_multi.rpc.client import Client
from csi_multi.rpc.interceptor import SharedRpcState
from csi_multi.rpc.server import build_server
from tests.cluster_section import HEAD

DRIVER = "multi.csi.example.com"
NODE = "node-1"


@dataclass
class Served:
    """A driver that answers on a socket, and the storage behind it."""

    client: Client
    registry: Registry
    endpoint: str
    storages: dict[str, MemoryStorage] = field(default_factory=dict)
    shared: Any = None

    def waiting(self) -> int:
        """How many RPCs wait for a slot."""
        return sum(slots.waiting for slots in self.shared.slots.values())

    def backend(self, name: str) -> Any:
        return self.registry.get(name).backend


@dataclass(frozen=True)
class Refusal:
    """How an RPC was refused, as the caller sees it."""

    code: grpc.StatusCode
    text: str
    trailers: tuple[str, ...]


Make = Callable[..., Instance]
Serve = Callable[..., Served]


@pytest.fixture(scope="session")
def refused() -> Callable[..., Refusal]:
    """Call an RPC that must fail; the rules for every error are checked on the way (csi-spec 2.1)."""

    def call(method: Any, request: Any = None, **fields: Any) -> Refusal:
        with pytest.raises(grpc.RpcError) as found:
            _complete(method(request, **fields))
        error = found.value
        trailers = tuple(key for key, _ in error.trailing_metadata() or ())
        assert error.details(), "every error carries a message for a human"
        assert "grpc-status-details-bin" not in trailers, "status details must be empty"
        return Refusal(error.code(), error.details() or "", trailers)

    return call


def _complete(answer: Any) -> None:
    """Read a stream to its end."""
    if hasattr(answer, "__next__"):
        list(answer)


@pytest.fixture(scope="session")
def make() -> Make:
    """Make an instance: make("fast"), make("fast", OwnBackend, capacity=1)."""

    def instance(
        name: str, kind: type[Backend] = MemoryBackend, storage: MemoryStorage | None = None, **config: Any
    ) -> Instance:
        host: Host = LocalHost()
        setting = Setting(instance=name, driver=DRIVER, cluster="default", node=NODE, host=host)
        options = kind.Config(**config)
        if issubclass(kind, MemoryBackend):
            return Instance(name, kind.__name__, kind(options, setting, storage or MemoryStorage()))
        return Instance(name, kind.__name__, kind(options, setting))

    return instance


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """Serve instances until the end of the session; `serve` is the same for one test."""
    yield from _servers(tmp_path_factory.mktemp("s"))


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Serve instances for one test: serve(make("fast"), make("slow"), alpha=False).client.Probe()."""
    yield from _servers(tmp_path)


def _servers(directory: Path) -> Iterator[Serve]:
    running: list[tuple[Client, grpc.Server]] = []

    def start(
        *instances: Instance,
        alpha: bool = True,
        mode: Mode = Mode.ALL,
        default: str = "",
        broken: dict[str, str] | None = None,
        workers: int = 8,
        **driver: Any,
    ) -> Served:
        registry = Registry(instances, broken, default)
        settings = Driver(name=DRIVER, node=NODE, alpha=alpha, default_backend=default, workers=workers, **driver)
        shared = SharedRpcState(workers)
        server = build_server(settings, registry, LocalHost(), mode, shared)
        endpoint = f"unix:{directory}/{len(running)}.sock"
        assert server.add_insecure_port(endpoint)
        server.start()
        client = Client(endpoint, timeout=20)
        running.append((client, server))
        storages = {one.name: one.backend.storage for one in instances if isinstance(one.backend, MemoryBackend)}
        return Served(client, registry, endpoint, storages, shared)

    yield start
    for client, server in running:
        client.close()
        server.stop(0).wait()


@pytest.fixture
def load(tmp_path: Path) -> Callable[[str], Config]:
    """Load a file with these lines in its `cluster:` section."""

    def loaded(lines: str) -> Config:
        file = tmp_path / "c.yaml"
        file.write_text(HEAD + lines)
        return load_config(file)

    return loaded


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """Everything that is logged, at every level, as the driver writes it."""
    text = io.StringIO()
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    root.handlers.clear()
    set_up_logging("debug", "json", text)
    yield text
    root.handlers[:] = before
    root.setLevel(level)


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """install("kind", source) makes a package whose class Own is registered, as pip would."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    number = 0

    def package(kind: str, source: str, attribute: str = "Own", version: str = "1.0") -> str:
        nonlocal number
        number += 1
        name = f"csi_fake_{tmp_path.name}_{number}".replace("-", "_")
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(source))
        facts = tmp_path / f"{name}-{version}.dist-info"
        facts.mkdir()
        (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (facts / "entry_points.txt").write_text(f"[csi_multi.backends]\n{kind} = {name}:{attribute}\n")
        ExtensionManager.ENTRY_POINT_CACHE.clear()
        return name

    yield package
    ExtensionManager.ENTRY_POINT_CACHE.clear()
    for name in [name for name in sys.modules if name.startswith("csi_fake_")]:
        del sys.modules[name]
