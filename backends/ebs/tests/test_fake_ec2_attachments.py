"""Attachments of the simulated EC2: EC2's rules, the states on the way, and several instances."""

from __future__ import annotations

import pytest

from .boto3_calls import attach, attachments, detach, make, refused, state
from .fake_ec2 import FOREVER, FakeEc2, looks


@pytest.fixture
def node(cloud: FakeEc2) -> str:
    return cloud.instances()[0]


def test_attaching_takes_as_many_looks_as_asked(cloud: FakeEc2, node: str) -> None:
    cloud.takes.attaching = looks(2)
    volume = make(cloud)
    attach(cloud, volume, node)
    assert [attachments(cloud, volume)[node] for _ in range(3)] == ["attaching", "attaching", "attached"]


def test_a_hook_hears_of_it_when_it_is_attached(cloud: FakeEc2, node: str) -> None:
    plugged: list[str] = []
    cloud.on_attached = lambda volume, *_place: plugged.append(volume)
    cloud.takes.attaching = looks(1)
    volume = make(cloud)
    attach(cloud, volume, node)
    state(cloud, volume)
    assert plugged == []
    state(cloud, volume)
    assert plugged == [volume]


def test_stuck_attaching_stays_until_it_is_detached(cloud: FakeEc2, node: str) -> None:
    cloud.takes.attaching = FOREVER
    volume = make(cloud)
    attach(cloud, volume, node)
    cloud.advance(1e9)
    assert attachments(cloud, volume) == {node: "attaching"}
    detach(cloud, volume)
    assert state(cloud, volume) == "available"


def test_what_is_detached_on_its_way_is_never_attached(cloud: FakeEc2, node: str) -> None:
    cloud.takes.attaching = looks(1)
    cloud.takes.detaching = looks(2)
    volume = make(cloud)
    attach(cloud, volume, node)
    detach(cloud, volume)
    assert [attachments(cloud, volume) for _ in range(3)] == [{node: "detaching"}, {node: "detaching"}, {}]


def test_detaching_takes_time_and_a_second_request_is_refused_meanwhile(cloud: FakeEc2, node: str) -> None:
    cloud.takes.detaching = looks(2)
    volume = make(cloud)
    attach(cloud, volume, node)
    assert detach(cloud, volume)["State"] == "detaching"
    with refused("IncorrectState", "detaching"):
        detach(cloud, volume)
    assert [attachments(cloud, volume) for _ in range(3)] == [{node: "detaching"}, {node: "detaching"}, {}]


def test_attachments_and_detachments_are_shown_as_late_as_asked(cloud: FakeEc2, node: str) -> None:
    volume = make(cloud)
    cloud.takes.showing = looks(2)
    attach(cloud, volume, node)
    assert [attachments(cloud, volume) for _ in range(3)] == [{}, {}, {node: "attached"}]
    detach(cloud, volume)
    assert state(cloud, volume) == "in-use"
    with refused("IncorrectState", "'available'"):
        detach(cloud, volume)
    assert [attachments(cloud, volume) for _ in range(2)] == [{node: "attached"}, {}]
    assert state(cloud, volume) == "available"


def test_a_busy_guest_lets_go_by_force_only(cloud: FakeEc2, node: str) -> None:
    volume = make(cloud)
    attach(cloud, volume, node)
    cloud.busy.add(volume)
    assert detach(cloud, volume)["State"] == "busy"
    assert attachments(cloud, volume) == {node: "busy"}
    detach(cloud, volume, Force=True)
    assert state(cloud, volume) == "available"


def test_the_instance_shows_its_devices(cloud: FakeEc2, node: str) -> None:
    volume = make(cloud)
    attach(cloud, volume, node)
    (reservation,) = cloud.client().describe_instances(InstanceIds=[node])["Reservations"]
    mappings = reservation["Instances"][0]["BlockDeviceMappings"]
    shown = {each["DeviceName"]: each["Ebs"]["Status"] for each in mappings}
    assert shown == {"/dev/sda1": "attached", "/dev/xvdba": "attached"}


def test_what_is_not_attached_is_not_detached(cloud: FakeEc2) -> None:
    node, other = cloud.instances(2)
    volume = make(cloud)
    with refused("IncorrectState", "'available'"):
        detach(cloud, volume, InstanceId=node)
    attach(cloud, volume, node)
    with refused("InvalidAttachment.NotFound", other):
        detach(cloud, volume, InstanceId=other)


def test_a_device_name_is_given_once(cloud: FakeEc2, node: str) -> None:
    attach(cloud, make(cloud), node)
    with refused("InvalidParameterValue", "Attachment point /dev/xvdba is already in use"):
        attach(cloud, make(cloud), node)


def test_a_volume_is_attached_once(cloud: FakeEc2) -> None:
    node, other = cloud.instances(2)
    volume = make(cloud)
    attach(cloud, volume, node)
    for instance in (node, other):
        with refused("VolumeInUse", volume):
            attach(cloud, volume, instance, "/dev/xvdbb")


def test_a_multi_attach_volume_is_attached_to_several_instances_one_by_one(cloud: FakeEc2) -> None:
    node, other, third = cloud.instances(3)
    volume = make(cloud, VolumeType="io2", Iops=100, Size=4, MultiAttachEnabled=True)
    for instance in (node, other, third):
        attach(cloud, volume, instance)
    with refused("VolumeInUse"):
        attach(cloud, volume, node, "/dev/xvdbb")
    with refused("InvalidParameterCombination"):
        detach(cloud, volume)
    detach(cloud, volume, InstanceId=node)
    assert attachments(cloud, volume) == {other: "attached", third: "attached"}
    cloud.terminate(other)
    assert attachments(cloud, volume) == {third: "attached"}
    detach(cloud, volume, InstanceId=third)
    assert state(cloud, volume) == "available"


def test_a_volume_stays_in_its_zone(cloud: FakeEc2, node: str) -> None:
    with refused("InvalidVolume.ZoneMismatch"):
        attach(cloud, make(cloud, AvailabilityZone="eu-west-1b"), node)


def test_an_instance_has_room_for_so_many(cloud: FakeEc2, node: str) -> None:
    cloud.limits.attachments = 1
    attach(cloud, make(cloud), node)
    with refused("AttachmentLimitExceeded"):
        attach(cloud, make(cloud), node, "/dev/xvdbb")


def test_neither_a_volume_that_is_being_made_nor_an_instance_that_ended_is_attached(cloud: FakeEc2, node: str) -> None:
    volume = make(cloud)
    cloud.takes.creating = FOREVER
    with refused("IncorrectState", "not 'available'"):
        attach(cloud, make(cloud), node)
    cloud.terminate(node)
    with refused("IncorrectState", "not 'running'"):
        attach(cloud, volume, node)


def test_an_unknown_instance_is_named(cloud: FakeEc2) -> None:
    with refused("InvalidInstanceID.NotFound", "i-0123456789abcdef0"):
        attach(cloud, make(cloud), "i-0123456789abcdef0")
