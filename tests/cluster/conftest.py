"""A controller and three nodes in this process: their drivers, real certificates, TCP on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from csi_multi_testing.memory import MemoryBackend, MemoryStorage
from csi_multi_testing.memory_snapshots import MemorySnapshots

from csi_multi._proto import csi_pb2 as pb
from csi_multi.cluster.addresses import ConfiguredNodes
from csi_multi.cluster.bootstrap import controller_options
from csi_multi.cluster.credentials import Credentials
from csi_multi.cluster.peer_auth import ControllerOnlyPolicy
from csi_multi.cluster.remote_nodes import RemoteNodes
from csi_multi.commands.certificates import CertificateAuthority
from csi_multi.config.cluster import (
    CONTROLLER_IDENTITY,
    NODE_IDENTITY,
    NODE_PLACEHOLDER,
    Cluster,
    NodeEntry,
    TlsSection,
)
from csi_multi.config.settings import Driver
from csi_multi.contract import (
    ExpandRequest,
    Expansion,
    NodeLocal,
    Page,
    PageRequest,
    Setting,
    Snapshot,
    SnapshotRequest,
    Strings,
    Volume,
    WrongNode,
    ids,
)
from csi_multi.contract import backend as b
from csi_multi.host.command import LocalHost
from csi_multi.loading.instance import Instance
from csi_multi.loading.registry import Registry
from csi_multi.rpc.capabilities import Mode
from csi_multi.rpc.client import Client
from csi_multi.rpc.interceptor import SharedRpcState
from csi_multi.rpc.server import ServerOptions, build_controller_server, build_server

DRIVER = "multi.csi.example.com"
NAMES = ("node-1", "node-2", "node-3")
WORKERS = 8  # the fewest that the configuration admits: each is five threads
MOUNT = pb.VolumeCapability(mount={}, access_mode={"mode": "SINGLE_NODE_WRITER"})


# The methods of the backend in memory, without the features that would hide what is tested: attaching, for one.
METHODS = {
    name: value
    for kind in (MemorySnapshots, MemoryBackend)
    for name, value in vars(kind).items()
    if callable(value) and name not in ("attach", "detach")
}
FEATURES = (
    NodeLocal,
    b.Expand,
    b.Clone,
    b.ListVolumes,
    b.ListSnapshots,
    b.Capacity,
    b.VolumeHealthLister,
    b.Modify,
    b.GroupSnapshots,
    b.ChangedBlocks,
)
Plain = type("Plain", FEATURES, {**METHODS, "contract": (1, 0)})


class LocalMemory(Plain):  # type: ignore[misc,valid-type]
    """Volumes in the memory of one node: handles are <node>/<leaf>, and those of another node are refused."""

    Config = MemoryBackend.Config
    Parameters = MemoryBackend.Parameters
    MutableParameters = MemoryBackend.MutableParameters

    def __init__(self, config: Any, setting: Setting, storage: MemoryStorage) -> None:
        b.Backend.__init__(self, config, setting)
        self.storage = storage

    def leaf(self, name: str) -> str:
        return f"{self.setting.node}/{ids.leaf(name)}"

    def node_of(self, handle: str) -> str:
        return ids.split_local("volume", handle)[0]

    def _here(self, handle: str) -> str:
        node = self.node_of(handle)
        if node != self.setting.node:
            raise WrongNode(f"{handle!r} lives on node {node!r}, this is node {self.setting.node!r}")
        return handle

    def get_volume(self, handle: str) -> Volume:
        return super().get_volume(self._here(handle))

    def delete_volume(self, handle: str, secrets: Strings) -> None:
        super().delete_volume(self._here(handle), secrets)

    def expand_volume(self, request: ExpandRequest) -> Expansion:
        self._here(request.handle)
        return super().expand_volume(request)

    def create_snapshot(self, request: SnapshotRequest) -> Snapshot:
        self._here(request.source)
        return super().create_snapshot(request)

    def get_snapshot(self, handle: str) -> Snapshot:
        return super().get_snapshot(self._here(handle))

    def list_volumes(self, page: PageRequest) -> Page[Volume]:
        return self.storage.listed(
            {handle.partition("/")[2]: one for handle, one in self.storage.volumes.items()}, page
        )

    def list_snapshots(self, page: PageRequest, source: str | None = None) -> Page[Snapshot]:
        found = {key: one for key, one in self.storage.snapshots.items() if source in (None, one.source)}
        return self.storage.listed({handle.partition("/")[2]: one for handle, one in found.items()}, page)


@dataclass
class Machine:
    """One node: its storage, and its driver as long as it runs."""

    name: str
    storage: MemoryStorage = field(default_factory=MemoryStorage)
    others: dict[str, MemoryStorage] = field(default_factory=dict)  # of further instances
    capacity: int = 1 << 40
    port: int = 0
    server: Any = None
    backend: Any = None

    @property
    def volumes(self) -> list[str]:
        """The names that were asked for of what is here."""
        return sorted(volume.stamp.name for volume in self.storage.volumes.values())


class Rig:
    """A controller, reached through its socket by `client`, and the machines it sends RPCs to."""

    def __init__(self, directory: Path, authority: CertificateAuthority, names: tuple[str, ...] = NAMES) -> None:
        self.directory = directory
        self.authority = authority
        self.machines = {name: Machine(name) for name in names}
        self.kind: Any = LocalMemory  # of the instance `disk`
        self.others: tuple[str, ...] = ()  # names of further instances, on all nodes
        self.client: Any = None
        self.nodes: Any = None
        self._running: list[Any] = []

    def tls(self, place: str) -> TlsSection:
        directory = self.authority.directory / place
        files = {key: str(directory / f"{key}.pem") for key in ("ca", "certificate", "key")}
        return TlsSection(**files)

    def start_node(self, name: str, **more: Any) -> Machine:
        """Start (again) the driver of a node, on the port that it had."""
        machine = self.machines[name]
        setting = Setting(instance="disk", driver=DRIVER, cluster="default", node=name, host=LocalHost())
        default = more.pop("default", "disk")
        machine.backend = self.kind(self.kind.Config(capacity=machine.capacity), setting, machine.storage)
        storages = {other: machine.others.setdefault(other, MemoryStorage()) for other in self.others}
        others = [self._local(other, name, storage) for other, storage in storages.items()]
        registry = Registry([Instance("disk", "memory", machine.backend), *others], None, default)
        driver = Driver(name=DRIVER, node=name, alpha=True, default_backend=default, workers=WORKERS)
        part = ServerOptions(
            attach_required=more.pop("attach", True),
            peer_policy=ControllerOnlyPolicy(name, more.pop("identity", CONTROLLER_IDENTITY)),
        )
        machine.server = build_controller_server(driver, registry, SharedRpcState(WORKERS), part)
        credentials = Credentials(more.pop("tls", None) or self.tls(f"nodes/{name}")).server()
        machine.port = machine.server.add_secure_port(f"127.0.0.1:{machine.port}", credentials)
        machine.server.start()
        return machine

    def _local(self, name: str, node: str, storage: MemoryStorage, *, remote: bool = False) -> Instance:
        setting = Setting(instance=name, driver=DRIVER, cluster="default", node=node, host=LocalHost())
        return Instance(name, "memory", LocalMemory(LocalMemory.Config(), setting, storage), remote=remote)

    def stop_node(self, name: str) -> None:
        self.machines[name].server.stop(0).wait()
        self.machines[name].server = None

    def start_controller(self, *others: Instance, **more: Any) -> Client:
        """Start (again) the controller; keywords replace parts of the `cluster:` section."""
        tls = more.pop("tls", None) or self.tls("controller")
        topology = more.pop("topology", {})
        entries = {
            name: NodeEntry(address=f"127.0.0.1:{one.port}", topology=topology.get(name, {}))
            for name, one in self.machines.items()
            if one.port
        }
        default = more.pop("default", "disk")
        cluster = Cluster(**{"nodes": entries, "tls": tls, "attach_required": True, **more})
        self.nodes = RemoteNodes(cluster, ConfiguredNodes(cluster.nodes), Credentials(tls))
        setting = Setting(instance="disk", driver=DRIVER, cluster="default", node="controller", host=LocalHost())
        local = Instance("disk", "memory", self.kind(self.kind.Config(), setting, MemoryStorage()), remote=True)
        driver = Driver(name=DRIVER, node="controller", alpha=True, default_backend=default, workers=WORKERS)
        remote = [self._local(other, "controller", MemoryStorage(), remote=True) for other in self.others]
        registry = Registry([local, *remote, *others], None, default)
        server = build_server(
            driver, registry, LocalHost(), Mode.CONTROLLER, None, controller_options(cluster, self.nodes)
        )
        endpoint = f"unix:{self.directory}/{len(self._running)}.sock"
        assert server.add_insecure_port(endpoint)
        server.start()
        self.client = Client(endpoint, timeout=20)
        self._running.append((self.client, server, self.nodes))
        return self.client

    def close(self) -> None:
        for client, server, nodes in self._running:
            client.close()
            server.stop(0).wait()
            nodes.close()
        for machine in self.machines.values():
            if machine.server:
                machine.server.stop(0).wait()

    def create(self, name: str, **fields: Any) -> Any:
        """Create a volume and return it. `nodes` names the requisite nodes, `preferred` the preferred ones."""
        fields.setdefault("volume_capabilities", [MOUNT])
        if "nodes" in fields or "preferred" in fields:
            fields["accessibility_requirements"] = {
                "requisite": [place(one) for one in fields.pop("nodes", ())],
                "preferred": [place(one) for one in fields.pop("preferred", ())],
            }
        return self.client.CreateVolume(name=name, **fields).volume

    def attempt(self, _request: Any = None, **fields: Any) -> Any:
        """Like create, for `refused`."""
        return self.create(**fields)


def place(node: str) -> pb.Topology:
    return pb.Topology(segments={f"{DRIVER}/node": node})


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    """A CA that has signed for the controller and all nodes."""
    made = CertificateAuthority(tmp_path_factory.mktemp("ca"), LocalHost(), days=2)
    made.sign("controller", CONTROLLER_IDENTITY)
    for name in NAMES:
        made.sign(f"nodes/{name}", NODE_IDENTITY.replace(NODE_PLACEHOLDER, name))
    return made


@pytest.fixture
def rig(tmp_path: Path, authority: CertificateAuthority) -> Iterator[Rig]:
    """Nothing runs yet: for tests that say otherwise how it is to run."""
    made = Rig(tmp_path, authority)
    yield made
    made.close()


@pytest.fixture
def cluster(rig: Rig) -> Rig:
    """A controller and three nodes, all running."""
    for name in NAMES:
        rig.start_node(name)
    rig.start_controller()
    return rig
