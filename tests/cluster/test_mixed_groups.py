"""Groups of snapshots over several backends of one node, which cuts them there."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from tests.cluster.conftest import NAMES, Rig

Code = grpc.StatusCode


@pytest.fixture
def cluster(rig: Rig) -> Rig:
    """Every node has two instances, `disk` and `flash`."""
    rig.others = ("flash",)
    for name in NAMES:
        rig.start_node(name)
    rig.start_controller()
    return rig


@pytest.fixture
def volumes(cluster: Rig) -> list[str]:
    """A volume of each instance on node-1."""
    return [cluster.create("v", nodes=["node-1"], parameters={"backend": name}).volume_id for name in ("disk", "flash")]


def cut(cluster: Rig, volumes: list[str], name: str = "g") -> Any:
    return cluster.client.CreateVolumeGroupSnapshot(name=name, source_volume_ids=volumes).group_snapshot


def kept(cluster: Rig) -> int:
    """How many snapshots exist on all nodes."""
    machines = cluster.machines.values()
    return sum(len(one.snapshots) for machine in machines for one in (machine.storage, *machine.others.values()))


def test_the_node_cuts_them_and_the_group_is_found_through_every_controller(cluster: Rig, volumes: list[str]) -> None:
    group = cut(cluster, volumes)
    members = [one.snapshot_id for one in group.snapshots]

    assert sorted(one.source_volume_id for one in group.snapshots) == sorted(volumes)
    assert cut(cluster, volumes) == group
    client = cluster.start_controller()
    found = client.GetVolumeGroupSnapshot(group_snapshot_id=group.group_snapshot_id, snapshot_ids=members)
    assert found.group_snapshot == group
    shown = {entry.snapshot.snapshot_id: entry.snapshot.group_snapshot_id for entry in client.ListSnapshots().entries}
    assert shown == dict.fromkeys(members, group.group_snapshot_id)
    assert client.GetSnapshot(snapshot_id=members[0]).snapshot == group.snapshots[0]
    client.DeleteVolumeGroupSnapshot(group_snapshot_id=group.group_snapshot_id, snapshot_ids=members)
    assert kept(cluster) == 0
    client.DeleteVolumeGroupSnapshot(group_snapshot_id=group.group_snapshot_id, snapshot_ids=members)


def test_a_member_cannot_go_alone(cluster: Rig, volumes: list[str], refused: Any) -> None:
    group = cut(cluster, volumes)

    for member in group.snapshots:
        refusal = refused(cluster.client.DeleteSnapshot, snapshot_id=member.snapshot_id)
        assert refusal.code is Code.INVALID_ARGUMENT
    assert kept(cluster) == 2


def test_volumes_of_several_nodes_are_refused(cluster: Rig, volumes: list[str], refused: Any) -> None:
    far = cluster.create("w", nodes=["node-2"], parameters={"backend": "flash"}).volume_id

    refusal = refused(cluster.client.CreateVolumeGroupSnapshot, name="g", source_volume_ids=[*volumes, far])

    assert (refusal.code, "'node-1', 'node-2'" in refusal.text) == (Code.INVALID_ARGUMENT, True)
    assert kept(cluster) == 0


def test_a_name_that_a_group_on_another_node_has_is_refused(cluster: Rig, volumes: list[str], refused: Any) -> None:
    cut(cluster, volumes)
    others = [
        cluster.create("w", nodes=["node-3"], parameters={"backend": name}).volume_id for name in ("disk", "flash")
    ]

    refusal = refused(cluster.client.CreateVolumeGroupSnapshot, name="g", source_volume_ids=others)

    assert (refusal.code, "node-1" in refusal.text) == (Code.ALREADY_EXISTS, True)
    assert kept(cluster) == 2


def test_a_group_on_a_node_that_does_not_answer_is_kept(cluster: Rig, volumes: list[str], refused: Any) -> None:
    group = cut(cluster, volumes)
    members = [one.snapshot_id for one in group.snapshots]
    cluster.stop_node("node-1")

    for rpc in (cluster.client.GetVolumeGroupSnapshot, cluster.client.DeleteVolumeGroupSnapshot):
        refusal = refused(rpc, group_snapshot_id=group.group_snapshot_id, snapshot_ids=members)
        assert (refusal.code, "node-1" in refusal.text) == (Code.UNAVAILABLE, True)
    assert kept(cluster) == 2
