"""The instance and the object of an RPC, as metrics and traces name them, come from its request alone."""

from __future__ import annotations

from typing import Any

import pytest

from csi_multi._proto import csi_pb2 as pb
from csi_multi.rpc.labels import RpcLabels


@pytest.fixture
def labels() -> RpcLabels:
    return RpcLabels(lambda: ("fast", "slow"), lambda: "slow")


@pytest.mark.parametrize(
    ("request_", "instance", "subject"),
    [
        (pb.DeleteVolumeRequest(volume_id="fast/v"), "fast", "fast/v"),
        (pb.DeleteSnapshotRequest(snapshot_id="fast/s"), "fast", "fast/s"),
        (pb.CreateSnapshotRequest(name="s", source_volume_id="fast/v"), "fast", "fast/v"),
        (pb.CreateVolumeGroupSnapshotRequest(name="g", source_volume_ids=["fast/v", "fast/w"]), "fast", "fast/v"),
        (pb.CreateVolumeRequest(name="v", parameters={"backend": "fast"}), "fast", "v"),
        (pb.CreateVolumeRequest(name="v"), "slow", "v"),
        (pb.ProbeRequest(), "", ""),
    ],
)
def test_a_request_names_its_instance_and_object(labels: RpcLabels, request_: Any, instance: str, subject: str) -> None:
    rpc = labels.of_request("Method", request_, [("key", "value")])

    assert (rpc.method, rpc.instance, rpc.volume, rpc.metadata) == ("Method", instance, subject, (("key", "value"),))


@pytest.mark.parametrize("volume", ["unknown/v", "no slash", "/v"])
def test_a_name_that_is_not_configured_is_no_label(labels: RpcLabels, volume: str) -> None:
    rpc = labels.of_request("DeleteVolume", pb.DeleteVolumeRequest(volume_id=volume), None)

    assert (rpc.instance, rpc.volume) == ("", volume)
