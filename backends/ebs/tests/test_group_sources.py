"""Which volumes EC2 cuts together, and what the others are told."""

from __future__ import annotations

from typing import Any

import pytest
from csi_multi_ebs import group_sources
from csi_multi_ebs.backend import EbsBackend

from csi_multi.contract import Busy, FailedPrecondition, InvalidArgument, NotFound, Unavailable, Volume

from .backend_requests import (
    GONE,
    MANY_WRITERS,
    attach_request,
    group_request,
    nodes,
    parameters,
    row,
    volume_request,
)
from .fake_ec2 import FOREVER, FakeEc2

ARN = "arn:aws:outposts:eu-west-1:123456789012:outpost/op-0123456789abcdef0"


def made(ebs: EbsBackend, number: int) -> list[Volume]:
    return [ebs.create_volume(volume_request(f"pvc-{count}")) for count in range(number)]


def attached(ebs: EbsBackend, cloud: FakeEc2, number: int) -> list[Volume]:
    """Create volumes and attach all of them to one instance."""
    volumes = made(ebs, number)
    (node,) = nodes(cloud)
    for volume in volumes:
        ebs.attach(attach_request(node, volume))
    return volumes


def refused(ebs: EbsBackend, kind: type[Exception], text: str, *handles: str, **given: str) -> None:
    with pytest.raises(kind, match=text):
        ebs.create_group_snapshot(group_request("group-1", *handles, **given))


def nothing_cut(cloud: FakeEc2) -> bool:
    return cloud.calls["CreateSnapshots"] + cloud.calls["CreateSnapshot"] == 0


def test_volumes_that_are_attached_nowhere_are_refused_with_the_remedy(ebs: EbsBackend, cloud: FakeEc2) -> None:
    one, two = made(ebs, 2)
    refused(ebs, FailedPrecondition, "not attached to any instance.*on one node", one.handle, two.handle)
    (node,) = nodes(cloud)
    ebs.attach(attach_request(node, one))

    refused(ebs, FailedPrecondition, f"{two.handle}.*not attached", one.handle, two.handle)
    assert nothing_cut(cloud)


def test_volumes_of_two_instances_are_refused_with_both(ebs: EbsBackend, cloud: FakeEc2) -> None:
    one, two = made(ebs, 2)
    first, second = nodes(cloud, 2)
    ebs.attach(attach_request(first, one))
    ebs.attach(attach_request(second, two))

    refused(ebs, FailedPrecondition, "attached to 2 instances", one.handle, two.handle)
    assert nothing_cut(cloud)


def test_a_volume_on_two_instances_is_refused(ebs: EbsBackend, cloud: FakeEc2) -> None:
    kind = parameters(type="io2", iops="1000")
    request = volume_request("shared", parameters=kind, capabilities=(MANY_WRITERS,))
    shared, (other,) = ebs.create_volume(request), made(ebs, 1)
    first, second = nodes(cloud, 2)
    for node in (first, second):
        ebs.attach(attach_request(node, shared, capability=MANY_WRITERS))
    ebs.attach(attach_request(first, other))

    refused(ebs, FailedPrecondition, "attached to several instances", shared.handle, other.handle)


def test_a_volume_that_is_being_detached_is_waited_for(ebs: EbsBackend, cloud: FakeEc2) -> None:
    one, two = attached(ebs, cloud, 2)
    cloud.takes.detaching = FOREVER
    cloud.client().detach_volume(VolumeId=two.handle)

    refused(ebs, Busy, "attachment is changing", one.handle, two.handle)


def test_a_volume_that_is_gone_is_not_found(ebs: EbsBackend) -> None:
    (one,) = made(ebs, 1)
    refused(ebs, NotFound, GONE, one.handle, GONE)


def test_more_other_volumes_than_ec2_can_leave_out_are_refused(
    ebs: EbsBackend, cloud: FakeEc2, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_sources, "MAX_EXCLUDED", 1)
    volumes = attached(ebs, cloud, 4)

    refused(ebs, FailedPrecondition, "2 other volumes, and EC2 can leave out 1", *(one.handle for one in volumes[:2]))
    assert len(ebs.create_group_snapshot(group_request("all", *(one.handle for one in volumes[:3]))).snapshots) == 3


def test_a_volume_that_left_the_instance_meanwhile_is_looked_up_again(
    ebs: EbsBackend, cloud: FakeEc2, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EC2 refuses to leave out what is not there."""
    one, two, other = attached(ebs, cloud, 3)

    client = ebs._cache.client
    create = client.create_snapshots

    def detach_first(*words: Any) -> Any:
        cloud.detach_all([other.handle])
        return create(*words)

    monkeypatch.setattr(client, "create_snapshots", detach_first)
    refused(ebs, Unavailable, "meanwhile", one.handle, two.handle)
    monkeypatch.undo()
    assert len(ebs.create_group_snapshot(group_request("group-1", one.handle, two.handle)).snapshots) == 2


def test_what_ec2_finds_wrong_with_the_request_is_final(ebs: EbsBackend, cloud: FakeEc2) -> None:
    one, two = attached(ebs, cloud, 2)
    cloud.fail("CreateSnapshots", "TagPolicyViolation")

    refused(ebs, InvalidArgument, "TagPolicyViolation", one.handle, two.handle)


def test_snapshots_are_kept_on_the_outpost_of_the_volumes_only(ebs: EbsBackend, cloud: FakeEc2) -> None:
    one, two = attached(ebs, cloud, 2)

    refused(ebs, InvalidArgument, "outpostArn", one.handle, two.handle, outpostArn=ARN)
    for volume in (one, two):
        row(cloud, volume.handle).outpost_arn = ARN
    ebs.create_group_snapshot(group_request("group-1", one.handle, two.handle, outpostArn=ARN))
    assert [call.get("OutpostArn") for call in cloud.seen if call.action == "CreateSnapshots"] == [ARN]
