"""One driver over a controller and three nodes, each in a network of its own, with loop devices and mutual TLS."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any

import grpc
import pytest

from csi_multi._proto import csi_pb2 as pb
from tests.cluster.namespaces import NAMES, Network

pytestmark = pytest.mark.root

Code = grpc.StatusCode
MIB = 1 << 20
SIZE = 16 * MIB
DRIVER = "cluster.csi-multi.example"
BLOCK = pb.VolumeCapability(block={}, access_mode={"mode": "SINGLE_NODE_WRITER"})
PATIENCE = 30.0  # seconds for a node that is back to be found


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    made = Network(tmp_path_factory.mktemp("net"))
    try:
        made.up()
        yield made
    finally:
        made.down()


@pytest.fixture
def client(network: Network) -> Any:
    return network.clients["controller"]


def at(*nodes: str) -> dict[str, Any]:
    return {"requisite": [{"segments": {f"{DRIVER}/node": node}} for node in nodes]}


def create(client: Any, name: str, *nodes: str, timeout: float = 60, **fields: Any) -> str:
    fields.setdefault("capacity_range", {"required_bytes": SIZE})
    if nodes:
        fields["accessibility_requirements"] = at(*nodes)
    answer = client.CreateVolume(name=name, volume_capabilities=[BLOCK], timeout=timeout, **fields)
    return str(answer.volume.volume_id)


def listed(client: Any) -> list[str]:
    return [entry.volume.volume_id for entry in client.ListVolumes().entries]


def test_volumes_are_made_listed_and_deleted_where_the_topology_wants_them(network: Network, client: Any) -> None:
    ids = [create(client, f"topology-{node}", node) for node in NAMES]

    assert ids == [f"scratch/{node}/topology-{node}" for node in NAMES]
    assert [network.volumes(node) for node in NAMES] == [[f"topology-{node}"] for node in NAMES]
    assert listed(client) == ids
    for one in ids:
        client.DeleteVolume(volume_id=one)
    assert listed(client) == []
    assert [network.volumes(node) for node in NAMES] == [[], [], []]


def test_each_node_reports_its_own_place_and_capacity(network: Network, client: Any) -> None:
    for node in NAMES:
        info = network.clients[node].NodeGetInfo()
        assert dict(info.accessible_topology.segments) == {f"{DRIVER}/node": node}
        assert client.GetCapacity(accessible_topology=info.accessible_topology).available_capacity > SIZE
    assert client.GetCapacity(accessible_topology=at("node-9")["requisite"][0]).available_capacity == 0


def test_snapshots_clones_and_growth_happen_on_the_node_of_the_volume(network: Network, client: Any) -> None:
    volume = create(client, "source", "node-2")

    snapshot = client.CreateSnapshot(name="snap", source_volume_id=volume).snapshot.snapshot_id
    restored = create(client, "restored", volume_content_source={"snapshot": {"snapshot_id": snapshot}})
    cloned = create(client, "cloned", volume_content_source={"volume": {"volume_id": volume}})
    grown = client.ControllerExpandVolume(volume_id=volume, capacity_range={"required_bytes": 2 * SIZE})

    assert network.volumes("node-2") == ["cloned", "restored", "source"]
    assert grown.capacity_bytes == 2 * SIZE
    for one in (restored, cloned, volume):
        client.DeleteVolume(volume_id=one)
    client.DeleteSnapshot(snapshot_id=snapshot)
    assert not client.ListSnapshots().entries


def test_a_volume_made_anew_under_a_name_leaves_the_snapshots_of_the_earlier_one_readable(
    client: Any, refused: Any
) -> None:
    earlier = create(client, "anew", "node-1")
    old = client.CreateSnapshot(name="anew-cut", source_volume_id=earlier).snapshot
    client.DeleteVolume(volume_id=earlier)
    volume = create(client, "anew", "node-1")

    (found,) = client.ListSnapshots().entries
    assert (found.snapshot.snapshot_id, found.snapshot.source_volume_id != volume) == (old.snapshot_id, True)
    assert client.GetSnapshot(snapshot_id=old.snapshot_id).snapshot == found.snapshot
    assert not client.ListSnapshots(source_volume_id=volume).entries
    (by_source,) = client.ListSnapshots(source_volume_id=found.snapshot.source_volume_id).entries
    assert by_source == found
    refusal = refused(client.CreateSnapshot, name="anew-cut", source_volume_id=volume)
    assert refusal.code is Code.ALREADY_EXISTS
    client.DeleteSnapshot(snapshot_id=old.snapshot_id)
    client.DeleteVolume(volume_id=volume)


def test_a_published_volume_can_be_used_on_its_node_and_on_no_other(
    network: Network, client: Any, refused: Any, tmp_path: Path
) -> None:
    volume = create(client, "used", "node-1")
    node, staging, target = network.clients["node-1"], tmp_path / "staging", tmp_path / "target"
    staging.mkdir()
    wrong = refused(client.ControllerPublishVolume, volume_id=volume, node_id="node-2", volume_capability=BLOCK)
    client.ControllerPublishVolume(volume_id=volume, node_id="node-1", volume_capability=BLOCK)
    paths = {"volume_id": volume, "staging_target_path": str(staging), "volume_capability": BLOCK}

    node.NodeStageVolume(**paths)
    node.NodePublishVolume(**paths, target_path=str(target))

    assert target.is_block_device()
    assert wrong.code is Code.FAILED_PRECONDITION
    in_use = refused(client.DeleteVolume, volume_id=volume)
    assert in_use.code is Code.FAILED_PRECONDITION
    node.NodeUnpublishVolume(volume_id=volume, target_path=str(target))
    node.NodeUnstageVolume(volume_id=volume, staging_target_path=str(staging))
    client.ControllerUnpublishVolume(volume_id=volume, node_id="node-1")
    client.DeleteVolume(volume_id=volume)


STRANGER = """
import sys, grpc
ca, place, name, address = sys.argv[1:]
pair = [open(f"{place}/{part}.pem", "rb").read() for part in ("key", "certificate")] if place else []
credentials = grpc.ssl_channel_credentials(open(ca, "rb").read(), *pair)
channel = grpc.secure_channel(address, credentials, options=(("grpc.ssl_target_name_override", name),))
try:
    channel.unary_unary("/csi.v1.Controller/ListVolumes")(b"", timeout=10)
    print("OK")
except grpc.RpcError as error:
    print(error.code().name, error.details())
"""


@pytest.mark.parametrize(
    ("place", "answer"),
    [("controller", "OK"), ("nodes/node-2", "PERMISSION_DENIED"), ("", "UNAVAILABLE")],
    ids=["the controller", "another node", "nobody"],
)
def test_a_node_serves_the_controller_only(network: Network, place: str, answer: str) -> None:
    tls = network.directory / "tls"
    words = (str(tls / "ca.pem"), str(tls / place) if place else "", "node-1.node.csi-multi", "198.51.100.11:9810")

    said = network.run("node-2", sys.executable, "-c", STRANGER, *words).stdout

    assert said.startswith(answer)


def test_the_socket_of_a_node_offers_no_controller(network: Network, refused: Any) -> None:
    assert refused(network.clients["node-1"].ListVolumes).code is Code.UNIMPLEMENTED


# Every RPC that goes to one node: what is there before it, the RPC itself, and what must be true when it is done.
Step = Callable[[Any, float], Any]


def _steps(client: Any, tag: str) -> dict[str, Step]:
    """Prepare volumes on node-3, and return the RPCs that are to be interrupted there, by name."""
    made = {
        name: create(client, f"{tag}-{name}", "node-3")
        for name in ("deleted", "grown", "cut", "source", "kept", "used")
    }
    old = client.CreateSnapshot(name=f"{tag}-old", source_volume_id=made["source"]).snapshot.snapshot_id
    gone = client.CreateSnapshot(name=f"{tag}-gone", source_volume_id=made["source"]).snapshot.snapshot_id
    kept, node = made["kept"], {"accessible_topology": at("node-3")["requisite"][0]}
    from_old = {"volume_content_source": {"snapshot": {"snapshot_id": old}}}
    from_kept = {"volume_content_source": {"volume": {"volume_id": kept}}}
    more = {"capacity_range": {"required_bytes": 2 * SIZE}}
    return {
        "created": lambda client, limit: create(client, f"{tag}-created", "node-3", timeout=limit),
        "anywhere": lambda client, limit: create(client, f"{tag}-anywhere", *reversed(NAMES), timeout=limit),
        "restored": lambda client, limit: create(client, f"{tag}-restored", timeout=limit, **from_old),
        "cloned": lambda client, limit: create(client, f"{tag}-cloned", timeout=limit, **from_kept),
        "deleted": lambda client, limit: client.DeleteVolume(volume_id=made["deleted"], timeout=limit),
        "grown": lambda client, limit: client.ControllerExpandVolume(volume_id=made["grown"], timeout=limit, **more),
        "cut": lambda client, limit: client.CreateSnapshot(
            name=f"{tag}-cut", source_volume_id=made["cut"], timeout=limit
        ),
        "gone": lambda client, limit: client.DeleteSnapshot(snapshot_id=gone, timeout=limit),
        "published": lambda client, limit: client.ControllerPublishVolume(
            volume_id=made["used"], node_id="node-3", volume_capability=BLOCK, timeout=limit
        ),
        "validated": lambda client, limit: client.ValidateVolumeCapabilities(
            volume_id=kept, volume_capabilities=[BLOCK], timeout=limit
        ),
        "shown": lambda client, limit: client.ControllerGetVolume(volume_id=kept, timeout=limit),
        "snapshot shown": lambda client, limit: client.GetSnapshot(snapshot_id=old, timeout=limit),
        "volumes listed": lambda client, limit: client.ListVolumes(timeout=limit),
        "snapshots listed": lambda client, limit: client.ListSnapshots(timeout=limit),
        "capacity": lambda client, limit: client.GetCapacity(timeout=limit, **node),
    }


WAYS: dict[str, Callable[[Network], AbstractContextManager[Any]]] = {
    "frozen": lambda _network: nullcontext(),
    "cut off": lambda network: network.cut("node-3"),
    "killed": lambda network: network.killed("node-3"),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_node_that_goes_away_in_the_middle_of_an_rpc_costs_nothing_but_a_retry(
    network: Network, client: Any, way: str
) -> None:
    tag = way.replace(" ", "")
    steps = _steps(client, tag)
    before = {node: network.volumes(node) for node in NAMES}

    codes = _interrupted(network, client, steps, way)

    assert set(codes.values()) <= {Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED}, codes
    for step in steps.values():
        _until_done(client, step)
    after = {node: sorted(set(network.volumes(node)) - set(before[node])) for node in NAMES}
    copies = [f"{tag}-{name}" for name in ("cloned", "created", "restored")]
    assert set(copies) <= set(after["node-3"])
    assert sum(f"{tag}-anywhere" in names for names in after.values()) == 1, "one name, one volume"
    assert f"{tag}-deleted" not in network.volumes("node-3")
    assert sum(len(names) for names in after.values()) == 4
    _clean(client)


def _interrupted(network: Network, client: Any, steps: dict[str, Step], way: str) -> dict[str, Code]:
    """Send all RPCs to a node that holds them, let it go away, and return how each ended. It is back then."""
    codes: dict[str, Code] = {}

    def call(name: str) -> None:
        try:
            steps[name](client, 4.0)
            codes[name] = Code.OK
        except grpc.RpcError as error:
            codes[name] = error.code()

    threads = [threading.Thread(target=call, args=(name,)) for name in steps]
    begun = network.begun("controller") + len(steps)
    with ExitStack() as gone:
        frozen = gone.enter_context(network.frozen("node-3"))
        for thread in threads:
            thread.start()
        while network.begun("controller") < begun:
            time.sleep(0.02)
        gone.enter_context(WAYS[way](network))
        if way == "cut off":
            frozen()  # it does what it was asked for, and nobody hears of it
        for thread in threads:
            thread.join(60)
    return codes


def _until_done(client: Any, step: Step) -> Any:
    """Ask again, as an orchestrator does, until it is done."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return step(client, 10.0)
        except grpc.RpcError as error:
            again = error.code() in (Code.UNAVAILABLE, Code.ABORTED, Code.DEADLINE_EXCEEDED)
            if not again or time.monotonic() > end:
                raise
            time.sleep(0.2)


def _clean(client: Any) -> None:
    for entry in client.ListSnapshots().entries:
        client.DeleteSnapshot(snapshot_id=entry.snapshot.snapshot_id)
    for volume in listed(client):
        client.DeleteVolume(volume_id=volume)


@pytest.mark.parametrize("way", ["frozen", "cut off"])
def test_an_rpc_without_a_deadline_does_not_wait_for_ever(
    network: Network, client: Any, refused: Any, way: str
) -> None:
    volume = create(client, "patient", "node-1")
    with network.frozen("node-1") if way == "frozen" else network.cut("node-1"):
        refusal = refused(client.ControllerGetVolume, volume_id=volume, timeout=60)

    assert refusal.code is Code.UNAVAILABLE
    assert "node 'node-1' (198.51.100.11:9810) has been unreachable since" in refusal.text
    _until_done(client, lambda client, limit: client.DeleteVolume(volume_id=volume, timeout=limit))


def test_a_node_that_is_down_is_refused_at_once_and_found_again(network: Network, client: Any, refused: Any) -> None:
    volume = create(client, "found", "node-2")
    with network.killed("node-2"):
        refused(client.ControllerGetVolume, volume_id=volume, timeout=20)
        began = time.monotonic()
        refusals = [refused(client.ControllerGetVolume, volume_id=volume, timeout=20) for _ in range(20)]
        took = time.monotonic() - began
        elsewhere = create(client, "elsewhere", "node-1")

    assert {one.code for one in refusals} == {Code.UNAVAILABLE}
    assert "node 'node-2' (198.51.100.12:9810) has been unreachable since" in refusals[0].text
    assert took < 20  # each would wait for a second and more
    assert _until_done(client, lambda client, limit: client.ControllerGetVolume(volume_id=volume, timeout=limit))
    for one in (volume, elsewhere):
        client.DeleteVolume(volume_id=one)


def test_everything_is_gone_and_the_controller_has_done_nothing_by_itself(network: Network, client: Any) -> None:
    assert listed(client) == []
    assert not network.storage("controller").exists()
    assert [network.drivers[name].stop() for name in ("controller", *NAMES)] == [0, 0, 0, 0]
