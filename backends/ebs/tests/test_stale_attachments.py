"""Attaching and detaching while describes show an earlier state: the response of EC2 to the call decides."""

from __future__ import annotations

import math

import pytest
from csi_multi_ebs.backend import EbsBackend
from csi_multi_ebs.device_names import WRITABLE

from csi_multi.contract import AlreadyExists, Node, NotFound, PermissionDenied, Unavailable, Volume
from csi_multi.core import idempotent

from .backend_requests import MANY_WRITERS, A, Connect, attach_request, nodes, row, volume_request
from .fake_ec2 import NOW, FakeEc2, looks, seconds
from .test_attachments import shared


@pytest.fixture
def node(cloud: FakeEc2) -> Node:
    return nodes(cloud)[0]


def held(cloud: FakeEc2, volume: Volume) -> dict[str, str]:
    """Return the device names by instance, past every delay."""
    return {instance: one.device for instance, one in row(cloud, volume.handle).held.items()}


def deny(cloud: FakeEc2, action: str) -> None:
    cloud.fail(action, "UnauthorizedOperation", message="You are not authorized", status=403, times=math.inf)


# Detaching.


def test_an_attachment_that_does_not_show_yet_is_ended(connect: Connect, cloud: FakeEc2) -> None:
    """The answer to AttachVolume was lost, and the pod deleted."""
    first, second = nodes(cloud, 2)
    ebs = connect(zones=(A,))
    made = ebs.create_volume(volume_request())
    cloud.takes.showing = looks(1)
    cloud.drop("AttachVolume", after_effect=True)
    with pytest.raises(Unavailable):
        ebs.attach(attach_request(first, made))

    ebs.detach(made.handle, first, {})

    assert held(cloud, made) == {}
    cloud.takes.showing = NOW
    ebs.attach(attach_request(second, made))
    assert list(held(cloud, made)) == [second.fact]


def test_a_detachment_is_awaited_though_the_attachment_did_not_show_before(
    connect: Connect, node: Node, cloud: FakeEc2
) -> None:
    ebs = connect(zones=(A,), consistency_seconds=5)
    made = ebs.create_volume(volume_request())
    cloud.takes.showing = looks(2)
    cloud.drop("AttachVolume", after_effect=True)
    with pytest.raises(Unavailable):
        ebs.attach(attach_request(node, made))
    cloud.takes.showing = NOW
    cloud.takes.detaching = seconds(1)

    ebs.detach(made.handle, node, {})

    assert held(cloud, made) == {}


def test_a_detachment_that_does_not_show_yet_is_awaited(connect: Connect, node: Node, cloud: FakeEc2) -> None:
    ebs = connect(zones=(A,))
    made = ebs.create_volume(volume_request())
    ebs.attach(attach_request(node, made))
    cloud.takes.showing = looks(3)
    cloud.client().detach_volume(VolumeId=made.handle)

    ebs.detach(made.handle, node, {})

    assert cloud.calls["DescribeVolumes"] >= 3
    assert ebs.get_volume(made.handle).published_nodes == ()


def test_detaching_what_ec2_says_is_not_attached_is_done(ebs: EbsBackend, cloud: FakeEc2) -> None:
    first, second = nodes(cloud, 2)
    made = ebs.create_volume(volume_request())

    for attached in (False, True):
        with pytest.raises(NotFound, match="not attached to 'node-2'"):
            ebs.detach(made.handle, second, {})
        idempotent.detach(ebs, made.handle, second, {})
        if not attached:
            ebs.attach(attach_request(first, made))
    assert list(held(cloud, made)) == [first.fact]


def test_a_policy_that_goes_by_tags_of_instances_does_not_keep_volumes_on_one_that_is_gone(
    ebs: EbsBackend, node: Node, cloud: FakeEc2
) -> None:
    made = ebs.create_volume(volume_request())
    ebs.attach(attach_request(node, made))
    deny(cloud, "DetachVolume")

    with pytest.raises(PermissionDenied):
        ebs.detach(made.handle, node, {})
    cloud.terminate(node.fact, forget=True)
    idempotent.detach(ebs, made.handle, node, {})


# Attaching.


def test_what_still_shows_as_attached_is_attached_anew(connect: Connect, node: Node, cloud: FakeEc2) -> None:
    """Another controller has detached it a moment ago."""
    ours, other = connect(zones=(A,)), connect(zones=(A,))
    made = ours.create_volume(volume_request())
    before = ours.attach(attach_request(node, made))
    cloud.takes.showing = looks(3)
    other._cache.client.detach(made.handle, node.fact)
    cloud.takes.showing = NOW

    after = ours.attach(attach_request(node, made))
    assert (after["device"], after["blank"]) == (before["device"], "unknown")
    assert held(cloud, made) == {node.fact: before["device"]}


def test_what_still_shows_as_read_only_is_attached_writable(connect: Connect, node: Node, cloud: FakeEc2) -> None:
    ours, other = connect(zones=(A,)), connect(zones=(A,))
    made = ours.create_volume(volume_request())
    ours.attach(attach_request(node, made, read_only=True))
    cloud.takes.showing = looks(3)
    other._cache.client.detach(made.handle, node.fact)
    cloud.takes.showing = NOW

    context = ours.attach(attach_request(node, made))
    assert (context["device"], context["blank"]) == (WRITABLE[0], "unused")


def test_the_device_in_the_context_is_the_new_attachments(connect: Connect, node: Node, cloud: FakeEc2) -> None:
    ebs = connect(zones=(A,))
    made = ebs.create_volume(volume_request())
    first = ebs.attach(attach_request(node, made))
    cloud.takes.showing = looks(4)
    ebs._cache.client.detach(made.handle, node.fact)
    cloud.takes.showing = NOW
    taken = cloud.client().create_volume(AvailabilityZone=A, Size=1)["VolumeId"]
    cloud.client().attach_volume(VolumeId=taken, InstanceId=node.fact, Device=first["device"])

    second = ebs.attach(attach_request(node, made))

    assert second["device"] != first["device"]
    assert held(cloud, made) == {node.fact: second["device"]}


def test_confirming_an_attachment_takes_no_device_name(ebs: EbsBackend, node: Node, cloud: FakeEc2) -> None:
    first, second = (ebs.create_volume(volume_request(name)) for name in ("pvc-1", "pvc-2"))
    for _ in range(3):
        ebs.attach(attach_request(node, first))

    assert ebs.attach(attach_request(node, second))["device"] == WRITABLE[1]
    assert {call.get("Device") for call in cloud.seen if call.action == "AttachVolume"} == set(WRITABLE[:2])


def test_a_volume_of_a_full_node_is_confirmed_too(ebs: EbsBackend, node: Node, cloud: FakeEc2) -> None:
    """EC2 does not document what it checks first."""
    made = ebs.create_volume(volume_request())
    context = ebs.attach(attach_request(node, made))

    for code in ("AttachmentLimitExceeded", "IncorrectState", "VolumeInUse"):
        cloud.fail("AttachVolume", code)
        assert ebs.attach(attach_request(node, made)) == context


def test_a_read_only_attachment_is_confirmed_before_it_is_refused(ebs: EbsBackend, node: Node, cloud: FakeEc2) -> None:
    made = ebs.create_volume(volume_request())
    ebs.attach(attach_request(node, made, read_only=True))

    with pytest.raises(AlreadyExists, match="not writable"):
        ebs.attach(attach_request(node, made))
    assert ebs.attach(attach_request(node, made, read_only=True))["readOnly"] == "true"


def test_a_volume_on_several_nodes_is_confirmed_on_each(ebs: EbsBackend, cloud: FakeEc2) -> None:
    both = nodes(cloud, 2)
    made = shared(ebs)
    first = [ebs.attach(attach_request(node, made, capability=MANY_WRITERS)) for node in both]

    assert [ebs.attach(attach_request(node, made, capability=MANY_WRITERS)) for node in both] == first
    assert held(cloud, made) == {node.fact: context["device"] for node, context in zip(both, first, strict=True)}


# States on the way.


def test_a_busy_volume_is_attached_again_once_it_is_off(connect: Connect, node: Node, cloud: FakeEc2) -> None:
    ebs = connect(zones=(A,), wait_seconds=2)
    made = ebs.create_volume(volume_request())
    ebs.attach(attach_request(node, made))
    cloud.busy.add(made.handle)
    cloud.client().detach_volume(VolumeId=made.handle)

    with pytest.raises(Unavailable, match=r"still being detached.*busy"):
        ebs.attach(attach_request(node, made))
    cloud.client().detach_volume(VolumeId=made.handle, Force=True)
    ebs.attach(attach_request(node, made))
    assert list(held(cloud, made)) == [node.fact]
