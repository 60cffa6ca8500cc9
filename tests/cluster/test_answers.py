"""A node that was taken over cannot answer for another node's volumes, nor for another instance's."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from csi_multi._proto import csi_pb2 as pb
from tests.cluster import lying_node
from tests.cluster.conftest import Rig

Code = grpc.StatusCode
DRIVER = "multi.csi.example.com"
GIB = 1 << 30
VICTIM, VICTIM_SNAPSHOT = "disk/node-2/victim", "disk/node-2/cut"


def place(node: str) -> dict[str, Any]:
    return {"segments": {f"{DRIVER}/node": node}}


def volume(text: str, node: str = "node-1", **fields: Any) -> dict[str, Any]:
    return {"volume_id": text, "accessible_topology": [place(node)], "capacity_bytes": GIB, **fields}


def snapshot(text: str, source: str = "disk/node-1/v", group: str = "") -> dict[str, Any]:
    return {"snapshot_id": text, "source_volume_id": source, "group_snapshot_id": group, "ready_to_use": True}


class Liar:
    """Node-1, taken over: `answers(CreateVolume=...)` sets what it answers."""

    def __init__(self, rig: Any, file: Path) -> None:
        self.rig = rig
        self._file = file
        self.answers()
        directory = rig.authority.directory / "nodes" / "node-1"
        command = (sys.executable, lying_node.__file__, str(directory), "127.0.0.1:0", str(file), "node-1")
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout
        rig.machines["node-1"].port = int(self.process.stdout.readline())

    def answers(self, **responses: Any) -> None:
        messages = {rpc: getattr(pb, f"{rpc}Response")(**fields) for rpc, fields in responses.items()}
        self.answers_with({rpc: one.SerializeToString() for rpc, one in messages.items()})

    def answers_with(self, messages: dict[str, bytes]) -> None:
        self._file.write_text(json.dumps({rpc: one.hex() for rpc, one in messages.items()}))

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout
        self.process.stdout.close()


@pytest.fixture(scope="module")
def taken_over(authority: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Liar]:
    """A cluster whose first node was taken over; the second one has a volume with a snapshot."""
    directory = tmp_path_factory.mktemp("liar")
    rig = Rig(directory, authority)
    made = Liar(rig, directory / "answers.json")
    rig.start_node("node-2")
    rig.start_controller()
    assert rig.create("victim", nodes=["node-2"]).volume_id == VICTIM
    assert rig.client.CreateSnapshot(name="cut", source_volume_id=VICTIM).snapshot.snapshot_id == VICTIM_SNAPSHOT
    yield made
    rig.close()
    made.close()


@pytest.fixture
def liar(taken_over: Liar) -> Liar:
    """That cluster, whose first node so far answers nothing at all."""
    taken_over.answers()
    taken_over.rig.nodes.answers.refused = 0
    return taken_over


def wanted(name: str = "v", **fields: Any) -> dict[str, Any]:
    one = pb.VolumeCapability(mount={}, access_mode={"mode": "SINGLE_NODE_WRITER"})
    return {
        "name": name,
        "volume_capabilities": [one],
        "accessibility_requirements": {"requisite": [place("node-1")]},
        **fields,
    }


OWN = volume("disk/node-1/v")
FROM_SNAPSHOT = {"volume_content_source": {"snapshot": {"snapshot_id": "disk/node-1/s"}}}
OTHER_SOURCE = {"content_source": {"snapshot": {"snapshot_id": VICTIM_SNAPSHOT}}}
GROUP = {"group_snapshot_id": "disk/node-1/g"}
MIXED = {"group_snapshot_id": f"~disk/node-1/group-{'a' * 26}"}
IN_GROUP = snapshot("disk/node-1/g-0", group="disk/node-1/g")

# What the controller is asked, and what node-1 answers: RPC, the request, the response, and a part of the reason.
LIES: dict[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    "another node's volume": ("CreateVolume", wanted(), {"volume": volume(VICTIM)}, "not on this node"),
    "another instance": ("CreateVolume", wanted(), {"volume": volume("gold/node-1/v")}, "no backend 'gold'"),
    "no id": ("CreateVolume", wanted(), {"volume": volume("")}, "does not exist"),
    "another node's topology": ("CreateVolume", wanted(), {"volume": volume("disk/node-1/v", "node-2")}, "topology"),
    "no topology": ("CreateVolume", wanted(), {"volume": {"volume_id": "disk/node-1/v"}}, "topology"),
    "a source nobody asked for": ("CreateVolume", wanted(), {"volume": {**OWN, **OTHER_SOURCE}}, "content_source"),
    "another source": ("CreateVolume", wanted(**FROM_SNAPSHOT), {"volume": {**OWN, **OTHER_SOURCE}}, "content_source"),
    "a copy without its source": ("CreateVolume", wanted(**FROM_SNAPSHOT), {"volume": OWN}, "content_source"),
    "a smaller volume": (
        "CreateVolume",
        wanted(capacity_range={"required_bytes": 2 * GIB}),
        {"volume": OWN},
        "outside of the requested range",
    ),
    "another volume is shown": (
        "ControllerGetVolume",
        {"volume_id": "disk/node-1/v"},
        {"volume": volume(VICTIM)},
        "the request was for 'disk/node-1/v'",
    ),
    "published elsewhere": (
        "ControllerGetVolume",
        {"volume_id": "disk/node-1/v"},
        {"volume": OWN, "status": {"published_node_ids": ["node-2"]}},
        "published on 'node-2'",
    ),
    "a list of another node's volumes": (
        "ListVolumes",
        {},
        {"entries": [{"volume": OWN}, {"volume": volume(VICTIM)}]},
        "not on this node",
    ),
    "blocks out of order": (
        "GetMetadataAllocated",
        {"snapshot_id": "disk/node-1/s"},
        {
            "block_metadata_type": "VARIABLE_LENGTH",
            "volume_capacity_bytes": GIB,
            "block_metadata": [{"byte_offset": 8192, "size_bytes": 4096}, {"byte_offset": 0, "size_bytes": 4096}],
        },
        "follows byte 12288",
    ),
    "a block beyond the end": (
        "GetMetadataDelta",
        {"base_snapshot_id": "disk/node-1/s", "target_snapshot_id": "disk/node-1/t"},
        {
            "block_metadata_type": "VARIABLE_LENGTH",
            "volume_capacity_bytes": GIB,
            "block_metadata": [{"byte_offset": GIB, "size_bytes": 4096}],
        },
        "of a volume of",
    ),
    "a volume that did not grow": (
        "ControllerExpandVolume",
        {"volume_id": "disk/node-1/v", "capacity_range": {"required_bytes": 2 * GIB}},
        {"capacity_bytes": GIB},
        "outside of the requested range",
    ),
    "another node's snapshot": (
        "CreateSnapshot",
        {"name": "s", "source_volume_id": "disk/node-1/v"},
        {"snapshot": snapshot(VICTIM_SNAPSHOT)},
        "not on this node",
    ),
    "a snapshot of another volume": (
        "CreateSnapshot",
        {"name": "s", "source_volume_id": "disk/node-1/v"},
        {"snapshot": snapshot("disk/node-1/s", VICTIM)},
        "source_volume_id",
    ),
    "another snapshot is shown": (
        "GetSnapshot",
        {"snapshot_id": "disk/node-1/s"},
        {"snapshot": snapshot(VICTIM_SNAPSHOT)},
        "the request was for 'disk/node-1/s'",
    ),
    "a snapshot of another node's volume": (
        "GetSnapshot",
        {"snapshot_id": "disk/node-1/s"},
        {"snapshot": snapshot("disk/node-1/s", VICTIM)},
        "not on this node",
    ),
    "a list of another node's snapshots": (
        "ListSnapshots",
        {},
        {"entries": [{"snapshot": snapshot(VICTIM_SNAPSHOT, VICTIM)}]},
        "not on this node",
    ),
    "another snapshot than the filter's": (
        "ListSnapshots",
        {"snapshot_id": "disk/node-1/s"},
        {"entries": [{"snapshot": snapshot("disk/node-1/t")}]},
        "the request was for 'disk/node-1/s'",
    ),
    "another volume's snapshots": (
        "ListSnapshots",
        {"source_volume_id": "disk/node-1/v"},
        {"entries": [{"snapshot": snapshot("disk/node-1/s", "disk/node-1/w")}]},
        "the request was for 'disk/node-1/v'",
    ),
    "the health of another volume": (
        "ControllerGetVolumeHealth",
        {"volume_id": "disk/node-1/v"},
        {"volume_health": {"volume_id": VICTIM}},
        "the request was for 'disk/node-1/v'",
    ),
    "a list of other volumes' health": (
        "ControllerListVolumeHealth",
        {},
        {"entries": [{"volume_id": VICTIM}]},
        "not on this node",
    ),
    "another node's group": (
        "CreateVolumeGroupSnapshot",
        {"name": "g", "source_volume_ids": ["disk/node-1/v"]},
        {"group_snapshot": {"group_snapshot_id": "disk/node-2/g", "snapshots": [IN_GROUP]}},
        "not on this node",
    ),
    "another node's group across backends": (
        "CreateVolumeGroupSnapshot",
        {"name": "g", "source_volume_ids": ["disk/node-1/v"]},
        {"group_snapshot": {"group_snapshot_id": f"~disk/node-2/group-{'a' * 26}", "snapshots": [IN_GROUP]}},
        "not on this node",
    ),
    "another node's snapshot in a group across backends": (
        "CreateVolumeGroupSnapshot",
        {"name": "g", "source_volume_ids": ["disk/node-1/v"]},
        {"group_snapshot": {**MIXED, "snapshots": [snapshot(VICTIM_SNAPSHOT, group=MIXED["group_snapshot_id"])]}},
        "not on this node",
    ),
    "a group across backends whose id cannot be one": (
        "CreateVolumeGroupSnapshot",
        {"name": "g", "source_volume_ids": ["disk/node-1/v"]},
        {"group_snapshot": {"group_snapshot_id": "~disk/node-1/g", "snapshots": [IN_GROUP]}},
        "does not exist",
    ),
    "another node's snapshot in a group": (
        "CreateVolumeGroupSnapshot",
        {"name": "g", "source_volume_ids": ["disk/node-1/v"]},
        {"group_snapshot": {**GROUP, "snapshots": [snapshot(VICTIM_SNAPSHOT, group="disk/node-1/g")]}},
        "not on this node",
    ),
    "a group of other volumes": (
        "CreateVolumeGroupSnapshot",
        {"name": "g", "source_volume_ids": ["disk/node-1/v"]},
        {"group_snapshot": {**GROUP, "snapshots": [snapshot("disk/node-1/g-0", VICTIM, "disk/node-1/g")]}},
        "for others",
    ),
    "another group is shown": (
        "GetVolumeGroupSnapshot",
        {"group_snapshot_id": "disk/node-1/g", "snapshot_ids": ["disk/node-1/g-0"]},
        {"group_snapshot": {"group_snapshot_id": "disk/node-2/g", "snapshots": [IN_GROUP]}},
        "the request was for 'disk/node-1/g'",
    ),
    "a text that CSI does not allow": (
        "CreateVolume",
        wanted(),
        {"volume": {**OWN, "volume_context": {"a": "b" * 5000}}},
        "breaks a rule of CSI: volume.volume_context has 5001 bytes",
    ),
    "a topology that CSI does not allow": (
        "CreateVolume",
        wanted(),
        {"volume": {**OWN, "accessible_topology": [{"segments": {**place("node-1")["segments"], "zone": "\n"}}]}},
        "is not a topology value",
    ),
    "less than no space": (
        "GetCapacity",
        {"parameters": {"backend": "disk"}, "accessible_topology": place("node-1")},
        {"available_capacity": -GIB},
        "must not be negative",
    ),
    "a list with a token that CSI does not allow": (
        "ListVolumes",
        {},
        {"entries": [{"volume": OWN}], "next_token": "t" * 200},
        "next_token has 200 bytes",
    ),
    "a longer page than requested": (
        "ListVolumes",
        {"max_entries": 1},
        {"entries": [{"volume": OWN}, {"volume": volume("disk/node-1/w")}]},
        "at most 1 were requested",
    ),
}


@pytest.mark.parametrize("lie", LIES)
def test_an_answer_that_names_what_is_not_the_nodes_is_refused_logged_and_counted(
    lie: str, liar: Liar, refused: Callable[..., Any], caplog: Any
) -> None:
    rpc, request, response, reason = LIES[lie]
    liar.answers(**{rpc: response})

    refusal = refused(getattr(liar.rig.client, rpc), **request)

    assert refusal.code is Code.UNAVAILABLE, "it is not final, because the node may have made something"
    assert f"the answer of node 'node-1' to {rpc} is refused" in refusal.text
    assert reason in refusal.text
    assert f"the answer of node 'node-1' to {rpc} is refused" in caplog.text
    assert liar.rig.nodes.answers.refused == 1
    assert liar.rig.nodes.unreachable() == {}, "it answers, so it is not unreachable"
    assert liar.rig.machines["node-2"].volumes == ["victim"]


@pytest.mark.parametrize("rpc", ["CreateVolume", "ListVolumes", "DeleteVolume"])
def test_an_answer_that_cannot_be_read_is_refused_and_never_final(
    rpc: str, liar: Liar, refused: Callable[..., Any]
) -> None:
    liar.answers_with({rpc: b"\xff" * 50})
    request = {"CreateVolume": wanted(), "ListVolumes": {}, "DeleteVolume": {"volume_id": "disk/node-1/v"}}[rpc]

    refusal = refused(getattr(liar.rig.client, rpc), **request)

    assert refusal.code is Code.UNAVAILABLE, "the node may have made the volume"
    assert f"node 'node-1' to {rpc} is refused: it is not a csi.v1.{rpc}Response" in refusal.text
    assert liar.rig.nodes.answers.refused == 1


def test_the_capacity_of_the_cluster_is_that_of_the_nodes_whose_answers_are_true(liar: Liar) -> None:
    own = liar.rig.client.GetCapacity(parameters={"backend": "disk"}, accessible_topology=place("node-2"))
    liar.answers(GetCapacity={"available_capacity": -GIB})

    total = liar.rig.client.GetCapacity(parameters={"backend": "disk"})

    assert total.available_capacity == own.available_capacity > 0
    assert liar.rig.nodes.answers.refused == 1


def test_what_an_orchestrator_deletes_after_a_forged_answer_is_never_another_nodes_volume(
    liar: Liar,
) -> None:
    """The way to the loss: CreateVolume is answered with the victim's id, and the claim is deleted later."""
    liar.answers(CreateVolume={"volume": volume(VICTIM)})
    stored = []
    for _ in range(3):  # external-provisioner repeats it
        with suppress(grpc.RpcError):
            stored.append(liar.rig.client.CreateVolume(**wanted()).volume.volume_id)
    for text in stored:
        liar.rig.client.DeleteVolume(volume_id=text)

    assert liar.rig.machines["node-2"].volumes == ["victim"]


def test_a_true_answer_of_the_same_process_is_passed_on(liar: Liar) -> None:
    liar.answers(
        CreateVolume={"volume": OWN},
        ControllerGetVolume={"volume": OWN, "status": {"published_node_ids": ["node-1;disk=x"]}},
        ListVolumes={"entries": [{"volume": OWN}]},
        CreateSnapshot={"snapshot": snapshot("disk/node-1/s")},
        ListSnapshots={"entries": [{"snapshot": snapshot("disk/node-1/s")}]},
        CreateVolumeGroupSnapshot={"group_snapshot": {**GROUP, "snapshots": [IN_GROUP]}},
        GetVolumeGroupSnapshot={"group_snapshot": {**GROUP, "snapshots": [IN_GROUP]}},
    )
    client = liar.rig.client

    assert client.CreateVolume(**wanted()).volume.volume_id == "disk/node-1/v"
    assert client.ControllerGetVolume(volume_id="disk/node-1/v").volume.volume_id == "disk/node-1/v"
    assert [one.volume.volume_id for one in client.ListVolumes().entries] == ["disk/node-1/v", VICTIM]
    assert client.CreateSnapshot(name="s", source_volume_id="disk/node-1/v").snapshot.snapshot_id == "disk/node-1/s"
    assert len(client.ListSnapshots().entries) == 2
    group = client.CreateVolumeGroupSnapshot(name="g", source_volume_ids=["disk/node-1/v"]).group_snapshot
    members = [one.snapshot_id for one in group.snapshots]
    assert client.GetVolumeGroupSnapshot(group_snapshot_id="disk/node-1/g", snapshot_ids=members)
    assert liar.rig.nodes.answers.refused == 0
