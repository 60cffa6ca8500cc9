"""Volumes and snapshots on Outposts: which one a request names, and what cannot leave it."""

from __future__ import annotations

import pytest
from csi_multi_ebs import outposts
from csi_multi_ebs.backend import EbsBackend
from csi_multi_ebs.config import Config

from csi_multi.contract import (
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    Node,
    ResourceExhausted,
    TopologyRequirement,
)
from csi_multi.core import idempotent

from .backend_requests import (
    A,
    B,
    Connect,
    attach_request,
    nodes,
    row,
    setting,
    snapshot_request,
    volume,
    volume_request,
)
from .fake_ec2 import FakeEc2

ID = "op-0123456789abcdef0"
ARN = f"arn:aws:outposts:eu-west-1:210987654321:outpost/{ID}"
THERE = {"zone": A, "outpost": f"210987654321.{ID}"}


def on(*places: dict[str, str]) -> TopologyRequirement:
    return TopologyRequirement(requisite=places, preferred=places)


@pytest.fixture
def node(cloud: FakeEc2) -> Node:
    """A node on the Outpost."""
    node = nodes(cloud)[0]
    cloud.put_on_outpost(node.fact, ARN)
    return node


@pytest.fixture
def anywhere(connect: Connect) -> EbsBackend:
    return connect()


def test_a_node_reports_its_outpost_as_a_label_can_hold_it() -> None:
    static = {"metadata": "static", "instance_id": "i-0123456789abcdef0", "zone": A, "outpost_arn": ARN}

    assert EbsBackend(Config(region="eu-west-1", **static), setting()).node_segments() == THERE
    assert all(len(value) <= 63 for value in THERE.values())
    assert outposts.segment("") == {}


@pytest.mark.parametrize(
    ("region", "partition"), [("eu-west-1", "aws"), ("cn-north-1", "aws-cn"), ("us-gov-west-1", "aws-us-gov")]
)
def test_the_arn_follows_from_the_segment_and_the_region(region: str, partition: str) -> None:
    wanted = on({"zone": f"{region}a", "outpost": THERE["outpost"]})

    assert outposts.requested(wanted, region) == {
        f"{region}a": ARN.replace("aws", partition, 1).replace("eu-west-1", region)
    }


def test_a_volume_is_created_on_the_outpost_that_is_requested(anywhere: EbsBackend, cloud: FakeEc2) -> None:
    request = volume_request(topology=on(THERE))

    made = idempotent.create_volume(anywhere, request, "node-1")

    assert made.topology == (THERE,)
    assert row(cloud, made.handle).outpost_arn == ARN
    assert idempotent.create_volume(anywhere, request, "node-1").handle == made.handle
    with pytest.raises(AlreadyExists):
        idempotent.create_volume(anywhere, volume_request(topology=on({"zone": A})), "node-1")


def test_the_first_topology_of_a_zone_decides_whether_the_volume_is_on_an_outpost(
    anywhere: EbsBackend, cloud: FakeEc2
) -> None:
    region, there = {"zone": A}, THERE

    assert anywhere.create_volume(volume_request("pvc-1", topology=on(region, there))).topology == ({"zone": A},)
    assert anywhere.create_volume(volume_request("pvc-2", topology=on(there, region))).topology == (THERE,)
    assert anywhere.create_volume(volume_request("pvc-3", topology=on({"zone": B}, there))).topology == ({"zone": B},)
    assert anywhere.create_volume(volume_request("pvc-4")).topology[0].keys() == {"zone"}


@pytest.mark.parametrize("text", [ID, ARN, "1.op-1", f"210987654321.{ID}x"])
def test_what_names_no_outpost_is_refused_with_the_form_that_does(anywhere: EbsBackend, text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"such as 123456789012\.op-"):
        anywhere.create_volume(volume_request(topology=on({"zone": A, "outpost": text})))


def test_an_outpost_without_its_zone_is_refused(anywhere: EbsBackend) -> None:
    with pytest.raises(InvalidArgument, match="add the zone"):
        anywhere.create_volume(volume_request(topology=on({"outpost": THERE["outpost"]})))


def test_a_volume_is_attached_on_its_outpost_only(anywhere: EbsBackend, cloud: FakeEc2, node: Node) -> None:
    elsewhere = nodes(cloud, 2)[1]
    there = anywhere.create_volume(volume_request("pvc-1", topology=on(THERE)))
    here = anywhere.create_volume(volume_request("pvc-2", topology=on({"zone": A})))

    anywhere.attach(attach_request(node, there))
    for one, place in ((here, node), (anywhere.create_volume(volume_request("pvc-3", topology=on(THERE))), elsewhere)):
        with pytest.raises(FailedPrecondition, match="can only be attached where it is"):
            anywhere.attach(attach_request(place, one))
    assert cloud.calls["AttachVolume"] == 1


def test_a_copy_stays_on_the_outpost_of_its_source(anywhere: EbsBackend, cloud: FakeEc2) -> None:
    source = anywhere.create_volume(volume_request("pvc-1", topology=on(THERE)))

    with pytest.raises(ResourceExhausted, match="only where it is"):
        anywhere.clone_volume(volume_request("pvc-2", source=volume(source.handle), topology=on({"zone": A})))
    made = anywhere.clone_volume(volume_request("pvc-3", source=volume(source.handle), topology=on(THERE)))
    more = anywhere.clone_volume(volume_request("pvc-4", source=volume(source.handle)))
    assert made.topology == more.topology == (THERE,)


def test_snapshots_are_kept_on_the_outpost_of_the_volume_or_in_the_region(anywhere: EbsBackend, cloud: FakeEc2) -> None:
    there = anywhere.create_volume(volume_request("pvc-1", topology=on(THERE)))

    anywhere.create_snapshot(snapshot_request("snap-1", there.handle, outpostArn=ARN))
    anywhere.create_snapshot(snapshot_request("snap-2", there.handle))

    sent = [call.params.get("OutpostArn") for call in cloud.seen if call.action == "CreateSnapshot"]
    assert sent == [ARN, None]


def test_a_snapshot_on_another_outpost_than_its_volumes_is_refused(anywhere: EbsBackend, cloud: FakeEc2) -> None:
    here = anywhere.create_volume(volume_request("pvc-1", topology=on({"zone": A})))

    with pytest.raises(InvalidArgument, match=r"'outpostArn': volume '.*' is in the region"):
        anywhere.create_snapshot(snapshot_request("snap-1", here.handle, outpostArn=ARN))
    with pytest.raises(InvalidArgument, match="'outpostArn'"):
        snapshot_request("snap-1", here.handle, outpostArn=ID)
    assert cloud.calls["CreateSnapshot"] == 0
