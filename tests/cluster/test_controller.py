"""RPCs for what is on a node go to that node, and its answer is the answer."""

from __future__ import annotations

import io
import json
from typing import Any

import grpc
import pytest
from csi_multi_testing.memory import MemoryBackend

from csi_multi._proto import csi_pb2 as pb
from csi_multi.config.cluster import NodeEntry
from csi_multi.contract import Busy, InUse, ResourceExhausted
from csi_multi.rpc.status import ForwardedError

Code = grpc.StatusCode
GIB = 1 << 30
MOUNT = pb.VolumeCapability(mount={}, access_mode={"mode": "SINGLE_NODE_WRITER"})


def test_a_volume_is_made_on_the_node_that_the_topology_names(cluster: Any) -> None:
    volume = cluster.create("v", nodes=["node-2"])

    assert volume.volume_id == "disk/node-2/v"
    assert [one.volumes for one in cluster.machines.values()] == [[], ["v"], []]


def test_every_rpc_about_a_volume_is_done_where_it_is(cluster: Any) -> None:
    client, volume = (
        cluster.client,
        cluster.create("v", nodes=["node-3"], capacity_range={"required_bytes": GIB}).volume_id,
    )

    expanded = client.ControllerExpandVolume(volume_id=volume, capacity_range={"required_bytes": 2 * GIB})
    client.ControllerModifyVolume(volume_id=volume, mutable_parameters={"iops": "5"})
    confirmed = client.ValidateVolumeCapabilities(volume_id=volume, volume_capabilities=[MOUNT]).confirmed
    health = client.ControllerGetVolumeHealth(volume_id=volume).volume_health
    shown = client.ControllerGetVolume(volume_id=volume).volume
    client.DeleteVolume(volume_id=volume)

    assert expanded.capacity_bytes == shown.capacity_bytes == 2 * GIB
    assert cluster.machines["node-3"].storage.iops == {}
    assert list(confirmed.volume_capabilities) == [MOUNT]
    assert health.volume_id == volume
    assert cluster.machines["node-3"].volumes == []


def test_snapshots_and_copies_are_made_where_their_source_is(cluster: Any) -> None:
    client, volume = cluster.client, cluster.create("v", nodes=["node-2"]).volume_id

    snapshot = client.CreateSnapshot(name="s", source_volume_id=volume).snapshot
    restored = cluster.create("r", volume_content_source={"snapshot": {"snapshot_id": snapshot.snapshot_id}})
    cloned = cluster.create("c", volume_content_source={"volume": {"volume_id": volume}})
    found = client.GetSnapshot(snapshot_id=snapshot.snapshot_id).snapshot

    assert (snapshot.snapshot_id, found.source_volume_id) == ("disk/node-2/s", volume)
    assert (restored.volume_id, cloned.volume_id) == ("disk/node-2/r", "disk/node-2/c")
    assert cluster.machines["node-2"].volumes == ["c", "r", "v"]
    client.DeleteSnapshot(snapshot_id=snapshot.snapshot_id)
    assert cluster.machines["node-2"].storage.snapshots == {}


def test_a_copy_that_may_not_be_where_its_source_is_is_refused_with_the_reason(cluster: Any, refused: Any) -> None:
    volume = cluster.create("v", nodes=["node-2"]).volume_id

    refusal = refused(
        cluster.attempt, name="c", nodes=["node-1"], volume_content_source={"volume": {"volume_id": volume}}
    )

    assert (refusal.code, "node-2" in refusal.text) == (Code.RESOURCE_EXHAUSTED, True)


def test_groups_of_volumes_on_one_node_are_cut_there_and_others_refused(cluster: Any, refused: Any) -> None:
    client = cluster.client
    one, two, far = (cluster.create(name, nodes=[f"node-{node}"]).volume_id for name, node in ("a1", "b1", "c2"))

    group = client.CreateVolumeGroupSnapshot(name="g", source_volume_ids=[one, two]).group_snapshot
    members = [member.snapshot_id for member in group.snapshots]
    refusal = refused(client.CreateVolumeGroupSnapshot, name="h", source_volume_ids=[one, far])

    assert client.GetVolumeGroupSnapshot(group_snapshot_id=group.group_snapshot_id, snapshot_ids=members)
    assert (refusal.code, "'node-1', 'node-2'" in refusal.text) == (Code.INVALID_ARGUMENT, True)
    client.DeleteVolumeGroupSnapshot(group_snapshot_id=group.group_snapshot_id, snapshot_ids=members)
    assert cluster.machines["node-1"].storage.snapshots == {}


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InUse("its door is closed"), Code.FAILED_PRECONDITION),
        (ResourceExhausted("no room"), Code.OUT_OF_RANGE),
        (Busy("in a minute"), Code.ABORTED),
    ],
)
def test_the_answer_of_a_node_comes_back_as_it_is(cluster: Any, refused: Any, error: Exception, code: Any) -> None:
    volume = cluster.create("v", nodes=["node-1"]).volume_id

    def fail(*_: Any) -> Any:
        raise error

    cluster.machines["node-1"].backend.expand_volume = fail
    refusal = refused(
        cluster.client.ControllerExpandVolume, volume_id=volume, capacity_range={"required_bytes": 1 << 50}
    )

    assert (refusal.code, refusal.text, refusal.trailers) == (code, str(error), ())


class Told(MemoryBackend):
    """As if another driver had answered."""

    def get_volume(self, handle: str) -> Any:
        raise ForwardedError(Code.ABORTED, "later", (("x-note", "1"),))


def test_trailing_metadata_of_an_answer_comes_back_too(rig: Any, make: Any, refused: Any) -> None:
    rig.start_controller(make("far", Told))

    refusal = refused(rig.client.ControllerGetVolume, volume_id="far/v")

    assert (refusal.code, refusal.text, refusal.trailers) == (Code.ABORTED, "later", ("x-note",))


def test_an_id_that_no_node_can_have_made_is_an_unknown_volume(cluster: Any, refused: Any) -> None:
    refusal = refused(cluster.client.ControllerGetVolume, volume_id="disk/garbage")

    assert refusal.code is Code.NOT_FOUND
    cluster.client.DeleteVolume(volume_id="disk/garbage")
    cluster.client.DeleteVolume(volume_id="fake-vol-id")
    cluster.client.DeleteVolume(volume_id="disk/node-1/absent")
    cluster.client.DeleteSnapshot(snapshot_id="disk/garbage")
    assert not cluster.client.ListSnapshots(snapshot_id="disk/garbage").entries


def test_a_volume_of_a_node_that_is_not_known_is_not_gone(cluster: Any, refused: Any) -> None:
    for rpc in ("ControllerGetVolume", "DeleteVolume"):
        refusal = refused(getattr(cluster.client, rpc), volume_id="disk/node-9/v")

        assert (refusal.code, "'node-9' is not a known node" in refusal.text) == (Code.UNAVAILABLE, True)


def test_the_deadline_travels_with_the_rpc(cluster: Any, refused: Any) -> None:
    seen: list[float] = []
    backend = cluster.machines["node-1"].backend
    create = backend.create_volume

    def note(request: Any) -> Any:
        seen.append(request.deadline)
        return create(request)

    backend.create_volume = note
    cluster.client.CreateVolume(
        name="v",
        volume_capabilities=[MOUNT],
        timeout=33,
        accessibility_requirements={"requisite": [{"segments": {"multi.csi.example.com/node": "node-1"}}]},
    )

    import time  # the deadline is one of this clock

    assert 25 < seen[0] - time.monotonic() < 34


def test_an_rpc_without_a_deadline_has_none_on_the_node(cluster: Any) -> None:
    assert cluster.create("v", nodes=["node-1"], timeout=None)


def test_one_id_stands_in_both_logs_and_no_secret_in_any(cluster: Any, stream: io.StringIO) -> None:
    cluster.create("v", nodes=["node-1"], secrets={"key": "correct-horse-battery"})

    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    begins = [line for line in lines if line["message"] == "CreateVolume begins"]
    assert len(begins) == 2, "one on the controller, one on the node"
    assert len({line["request_id"] for line in begins}) == 1
    assert all(line["request"]["secrets"] == "***" for line in begins)
    assert "correct-horse" not in stream.getvalue()


def test_instances_that_are_not_node_local_are_served_by_the_controller(rig: Any, make: Any) -> None:
    rig.start_node("node-1")
    rig.start_controller(make("far"))

    volume = rig.create("v", parameters={"backend": "far"}, nodes=["node-1"])

    assert (volume.volume_id, list(volume.accessible_topology)) == ("far/v", [])
    assert rig.client.ControllerGetVolume(volume_id="far/v").volume.volume_id == "far/v"
    assert rig.machines["node-1"].volumes == []


def test_the_controllers_default_is_what_counts(rig: Any) -> None:
    rig.start_node("node-1", default="")
    rig.start_controller(default="disk")

    assert rig.create("v", nodes=["node-1"])
    assert rig.client.GetCapacity().available_capacity


def test_a_node_may_be_given_by_a_name_that_dns_knows(rig: Any) -> None:
    port = rig.start_node("node-1").port
    rig.start_controller(nodes={"node-1": NodeEntry(address=f"localhost:{port}")})

    assert rig.create("v", nodes=["node-1"])


def test_a_snapshots_name_is_taken_on_all_nodes(cluster: Any, refused: Any) -> None:
    one, two = (cluster.create(name, nodes=[node]).volume_id for name, node in (("a", "node-1"), ("b", "node-2")))
    first = cluster.client.CreateSnapshot(name="s", source_volume_id=one).snapshot

    refusal = refused(cluster.client.CreateSnapshot, name="s", source_volume_id=two)

    assert (refusal.code, first.snapshot_id) == (Code.ALREADY_EXISTS, "disk/node-1/s")
    assert cluster.client.CreateSnapshot(name="s", source_volume_id=one).snapshot == first
    assert cluster.machines["node-2"].storage.snapshots == {}
