"""What the operator's declaration that a node is lost does, and what it does not."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from csi_multi._proto import csi_pb2 as pb

Code = grpc.StatusCode
MOUNT = pb.VolumeCapability(mount={}, access_mode={"mode": "SINGLE_NODE_WRITER"})


@pytest.fixture
def lossy(cluster: Any) -> Any:
    """A volume and a snapshot on the second node, which then is gone for ever."""
    volume = cluster.create("v", nodes=["node-2"]).volume_id
    cluster.client.CreateSnapshot(name="s", source_volume_id=volume)
    cluster.create("w", nodes=["node-1"])
    cluster.stop_node("node-2")
    cluster.start_controller(lost=frozenset({"node-2"}))
    return cluster


def test_deleting_what_was_there_succeeds_and_is_logged(lossy: Any, caplog: Any) -> None:
    lossy.client.DeleteVolume(volume_id="disk/node-2/v")
    lossy.client.DeleteSnapshot(snapshot_id="disk/node-2/s")
    lossy.client.ControllerUnpublishVolume(volume_id="disk/node-2/v", node_id="node-2")

    text = caplog.text
    reason = "node 'node-2' is declared lost (cluster.lost), with everything on it; reporting success"
    assert f"DeleteVolume of volume disk/node-2/v: {reason}" in text
    assert f"DeleteSnapshot of snapshot disk/node-2/s: {reason}" in text


def test_everything_else_finds_nothing(lossy: Any, refused: Any) -> None:
    client, size = lossy.client, {"required_bytes": 1}
    refusals = [
        refused(client.ControllerGetVolume, volume_id="disk/node-2/v"),
        refused(client.ControllerExpandVolume, volume_id="disk/node-2/v", capacity_range=size),
        refused(client.ControllerPublishVolume, volume_id="disk/node-2/v", node_id="node-1", volume_capability=MOUNT),
        refused(client.CreateSnapshot, name="t", source_volume_id="disk/node-2/v"),
        refused(lossy.attempt, name="c", volume_content_source={"snapshot": {"snapshot_id": "disk/node-2/s"}}),
    ]

    assert {one.code for one in refusals} == {Code.NOT_FOUND}
    assert all("'node-2' is declared lost" in one.text for one in refusals)
    assert not client.ListSnapshots(snapshot_id="disk/node-2/s").entries


def test_lists_and_capacity_are_those_of_the_other_nodes(lossy: Any) -> None:
    where = {"accessible_topology": {"segments": {"multi.csi.example.com/node": "node-2"}}}

    assert [one.volume.volume_id for one in lossy.client.ListVolumes().entries] == ["disk/node-1/w"]
    assert lossy.client.GetCapacity(**where).available_capacity == 0
    assert lossy.client.GetCapacity().available_capacity > 0


def test_new_volumes_go_to_the_other_nodes_although_the_name_may_have_been_there(lossy: Any, refused: Any) -> None:
    refusal = refused(lossy.attempt, name="x", nodes=["node-2"])

    assert refusal.code is Code.RESOURCE_EXHAUSTED
    assert lossy.create("v").volume_id in ("disk/node-1/v", "disk/node-3/v")
