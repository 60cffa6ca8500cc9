"""Attaching where there is nothing to attach: with one CSIDriver object for all backends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import grpc
import pytest
from csi_multi_testing.memory import MemoryBackend, MemoryStorage

from csi_multi._proto import csi_pb2 as pb
from csi_multi.contract import Segments
from csi_multi.contract import backend as b
from csi_multi.loading.instance import Instance

Code = grpc.StatusCode
MOUNT = pb.VolumeCapability(mount={}, access_mode={"mode": "SINGLE_NODE_WRITER"})


def publish(client: Any, volume: str, node: str) -> Any:
    return client.ControllerPublishVolume(volume_id=volume, node_id=node, volume_capability=MOUNT)


def test_a_volume_is_published_to_its_own_node_and_taken_back(cluster: Any) -> None:
    volume = cluster.create("v", nodes=["node-1"]).volume_id

    assert dict(publish(cluster.client, volume, "node-1").publish_context) == {}
    assert dict(publish(cluster.client, volume, "node-1;cloud=i-0").publish_context) == {}
    cluster.client.ControllerUnpublishVolume(volume_id=volume, node_id="node-1")
    cluster.client.ControllerUnpublishVolume(volume_id=volume)


@pytest.mark.parametrize(
    ("volume", "node", "code"),
    [
        ("disk/node-1/v", "node-2", Code.FAILED_PRECONDITION),
        ("disk/node-1/absent", "node-1", Code.NOT_FOUND),
        ("absent", "node-1", Code.NOT_FOUND),
        ("disk/node-1/v", "fake;node", Code.NOT_FOUND),
        ("disk/node-1/v", "node-9", Code.NOT_FOUND),
    ],
)
def test_what_cannot_be_reached_is_refused(cluster: Any, refused: Any, volume: str, node: str, code: Any) -> None:
    cluster.create("v", nodes=["node-1"])

    refusal = refused(cluster.client.ControllerPublishVolume, volume_id=volume, node_id=node, volume_capability=MOUNT)

    assert refusal.code is code


def test_taking_a_volume_back_from_a_node_that_is_down_succeeds(cluster: Any) -> None:
    volume = cluster.create("v", nodes=["node-1"]).volume_id
    cluster.stop_node("node-1")

    cluster.client.ControllerUnpublishVolume(volume_id=volume, node_id="node-1")


@pytest.mark.parametrize("required", [True, False])
def test_publishing_is_offered_when_the_file_says_that_all_is_attached(rig: Any, required: bool) -> None:
    rig.start_node("node-1")
    rig.start_controller(attach_required=required)

    names = {one.rpc.type for one in rig.client.ControllerGetCapabilities().capabilities}

    assert (pb.ControllerServiceCapability.RPC.PUBLISH_UNPUBLISH_VOLUME in names) is required
    assert pb.ControllerServiceCapability.RPC.LIST_VOLUMES_PUBLISHED_NODES not in names


METHODS = {
    name: value for name, value in vars(MemoryBackend).items() if callable(value) and name not in ("attach", "detach")
}


def in_zone_a(self: Any, *words: Any, **named: Any) -> Any:
    return replace(MemoryBackend.get_volume(self, *words, **named), topology=({"zone": "a"},))


def node_segments(_self: Any) -> Segments:
    return {"zone": "a"}


Far = type(
    "Far",
    (b.Topology,),
    {
        **METHODS,
        "Config": MemoryBackend.Config,
        "contract": (1, 0),
        "get_volume": in_zone_a,
        "node_segments": node_segments,
    },
)


@pytest.fixture
def zones(rig: Any, make: Any) -> Any:
    """A backend of zone a, and nodes in zones a, b, and one whose zone is not known."""
    instance = make("disk")
    far = Far.__new__(Far)
    b.Backend.__init__(far, MemoryBackend.Config(), instance.backend.setting)
    far.shelf = MemoryStorage()
    for name in rig.machines:
        rig.start_node(name)
    rig.start_controller(Instance("far", "memory", far), topology={"node-1": {"zone": "a"}, "node-2": {"zone": "b"}})
    rig.create("v", parameters={"backend": "far"})
    return rig


def test_a_node_in_another_zone_is_refused(zones: Any, refused: Any) -> None:
    refusal = refused(
        zones.client.ControllerPublishVolume, volume_id="far/v", node_id="node-2", volume_capability=MOUNT
    )

    assert refusal.code is Code.FAILED_PRECONDITION
    assert "zone=a only; node 'node-2' has node=node-2, zone=b" in refusal.text


@pytest.mark.parametrize("node", ["node-1", "node-3"])
def test_a_node_in_the_zone_or_of_unknown_place_is_not(zones: Any, node: str) -> None:
    assert publish(zones.client, "far/v", node) is not None
