"""Attaching and detaching on EBS: free device names, one node unless Multi-Attach, and no incomplete attachment."""

from __future__ import annotations

import math
import re
import time
from typing import Any

import pytest
from csi_multi_ebs import device_names
from csi_multi_ebs.backend import EbsBackend
from csi_multi_ebs.device_names import READ_ONLY, WRITABLE

from csi_multi.contract import (
    AccessMode,
    AlreadyExists,
    Busy,
    Capability,
    FailedPrecondition,
    InUse,
    Node,
    NotFound,
    ResourceExhausted,
    SizeRange,
    Timeout,
    Unavailable,
    Volume,
)
from csi_multi.core import idempotent

from .backend_requests import (
    GIB,
    MANY_WRITERS,
    A,
    B,
    Connect,
    attach_request,
    attached_for,
    nodes,
    parameters,
    row,
    snapshot,
    snapshot_request,
    tags,
    volume,
    volume_request,
)
from .fake_ec2 import FOREVER, NOW, FakeEc2, seconds
from .thread_helpers import run_together

KEY = "csi-multi/node/multi.csi.example.com"
SHARED: dict[str, Any] = {"size": SizeRange(required=4 * GIB), "capabilities": (MANY_WRITERS,)}


@pytest.fixture
def node(cloud: FakeEc2) -> Node:
    return nodes(cloud)[0]


def shared(ebs: EbsBackend, name: str = "pvc-1") -> Volume:
    return ebs.create_volume(volume_request(name, parameters=parameters(type="io2", iops="1000"), **SHARED))


def devices(cloud: FakeEc2, volume: Volume) -> dict[str, str]:
    """Return the device names by instance."""
    return {instance: one.device for instance, one in row(cloud, volume.handle).held.items()}


def stuck(cloud: FakeEc2, *names: str) -> None:
    """Let EC2 refuse these device names for ever, though it shows them as free."""
    text = "Attachment point is already in use"
    cloud.fail(
        "AttachVolume",
        "InvalidParameterValue",
        message=text,
        times=math.inf,
        when=lambda call: call.get("Device") in names,
    )


# Looks that are spared.


def test_a_volume_just_made_is_attached_without_another_look(ebs: EbsBackend, node: Node, cloud: FakeEc2) -> None:
    made = ebs.create_volume(volume_request())
    cloud.seen.clear()

    ebs.attach(attach_request(node, made))

    calls = [call.action for call in cloud.seen]
    assert calls[: calls.index("AttachVolume")] == ["DescribeInstances"]


def test_a_volume_just_detached_is_attached_elsewhere_without_another_look(ebs: EbsBackend, cloud: FakeEc2) -> None:
    first, second = nodes(cloud, 2)
    made = ebs.create_volume(volume_request())
    ebs.attach(attach_request(first, made))
    ebs.detach(made.handle, first, {})
    cloud.seen.clear()

    ebs.attach(attach_request(second, made))

    calls = [call.action for call in cloud.seen]
    assert calls[: calls.index("AttachVolume")] == ["DescribeInstances"]
    assert list(row(cloud, made.handle).held) == [second.fact]


def test_what_was_seen_free_is_believed_once(ebs: EbsBackend, node: Node, cloud: FakeEc2) -> None:
    made = ebs.create_volume(volume_request())
    ebs.attach(attach_request(node, made))
    cloud.seen.clear()

    ebs.attach(attach_request(node, made))

    assert "DescribeVolumes" in [call.action for call in cloud.seen]


def test_a_volume_that_was_taken_since_it_was_seen_free_is_refused_with_the_node(
    connect: Connect, cloud: FakeEc2
) -> None:
    first, second = nodes(cloud, 2)
    ours, other = connect(zones=(A,)), connect(zones=(A,))
    made = ours.create_volume(volume_request())
    other.attach(attach_request(first, made))

    with pytest.raises(FailedPrecondition, match=first.name):
        ours.attach(attach_request(second, made))

    assert list(row(cloud, made.handle).held) == [first.fact]


def test_a_volume_that_can_be_attached_twice_is_always_looked_at(connect: Connect, cloud: FakeEc2) -> None:
    """EC2 would refuse nothing, although it was asked for one node alone."""
    first, second = nodes(cloud, 2)
    ours, other = connect(zones=(A,)), connect(zones=(A,))
    made = shared(ours)
    other.attach(attach_request(first, made, capability=MANY_WRITERS))

    with pytest.raises(FailedPrecondition, match=first.name):
        ours.attach(attach_request(second, made))

    assert list(row(cloud, made.handle).held) == [first.fact]


# Names of devices.


def test_the_device_names_are_those_that_ec2_takes() -> None:
    names = (*WRITABLE, *READ_ONLY)

    assert (len(WRITABLE), len(READ_ONLY), len(set(names))) == (128, 24, 152)
    assert all(re.fullmatch("/dev/(xvd([abc][a-z]|d[a-x]|[b-z])|sd[b-z])", name) for name in names)


def test_the_names_of_an_instance_that_cannot_have_many_volumes_do_not_exclude_each_other() -> None:
    assert all(re.fullmatch("/dev/xvd[a-z]{2}", name) for name in WRITABLE[:39])


def test_the_context_says_where_the_device_is_and_which_attachment_of_the_volume_this_is(
    ebs: EbsBackend, node: Node, cloud: FakeEc2
) -> None:
    made = ebs.create_volume(volume_request())

    context = ebs.attach(attach_request(node, made))

    since = row(cloud, made.handle).held[node.fact].attach_time.isoformat(timespec="seconds")[:19]
    assert context.keys() == {"device", "attachment", "blank"}
    assert (context["device"], context["blank"]) == ("/dev/xvdba", "unused")
    assert context["attachment"].startswith(f"{node.fact} /dev/xvdba {since}")


def test_copies_are_never_blank(ebs: EbsBackend, node: Node) -> None:
    origin = ebs.create_volume(volume_request())
    taken = ebs.create_snapshot(snapshot_request("snap-1", origin.handle))
    ebs.get_snapshot(taken.handle)
    restored = ebs.restore_volume(volume_request("pvc-2", source=snapshot(taken.handle)))
    clone = ebs.clone_volume(volume_request("pvc-3", source=volume(origin.handle)))

    assert [ebs.attach(attach_request(node, one))["blank"] for one in (restored, clone)] == ["never", "never"]


def test_what_ec2_says_is_of_a_snapshot_is_never_blank_whatever_its_tags_say(
    ebs: EbsBackend, node: Node, cloud: FakeEc2
) -> None:
    origin = ebs.create_volume(volume_request())
    taken = ebs.create_snapshot(snapshot_request("snap-1", origin.handle))
    copied = [{"Key": key, "Value": value} for key, value in tags(cloud, origin.handle).items()]
    restored = cloud.client().create_volume(
        AvailabilityZone=A,
        SnapshotId=taken.handle,
        TagSpecifications=[{"ResourceType": "volume", "Tags": copied}],
    )["VolumeId"]

    assert ebs.attach(attach_request(node, ebs.get_volume(restored)))["blank"] == "never"


def test_volumes_are_spread_over_the_ebs_cards_of_the_instance(connect: Connect, cloud: FakeEc2) -> None:
    """Each card has bandwidth of its own. A new process goes by what EC2 shows."""
    node = nodes(cloud, type="m8gb.48xlarge")[0]
    for number in range(4):
        ebs = connect(zones=(A,))
        ebs.attach(attach_request(node, ebs.create_volume(volume_request(f"pvc-{number}"))))

    sent = [call.get("EbsCardIndex") for call in cloud.seen if call.action == "AttachVolume"]
    assert sent == ["1", "0", "1", "0"]


def test_an_attachment_that_shows_is_confirmed_on_its_own_card(connect: Connect, cloud: FakeEc2) -> None:
    node = nodes(cloud, type="m8gb.48xlarge")[0]
    ebs = connect(zones=(A,))
    made = ebs.create_volume(volume_request())
    first = ebs.attach(attach_request(node, made))

    assert connect(zones=(A,)).attach(attach_request(node, made)) == first
    sent = [(call.get("Device"), call.get("EbsCardIndex")) for call in cloud.seen if call.action == "AttachVolume"]
    assert sent == [(first["device"], "1")] * 2


def test_an_instance_with_one_ebs_card_is_sent_no_number(ebs: EbsBackend, node: Node, cloud: FakeEc2) -> None:
    ebs.attach(attach_request(node, ebs.create_volume(volume_request())))

    assert [call.params.get("EbsCardIndex") for call in cloud.seen if call.action == "AttachVolume"] == [None]


def test_thirty_volumes_that_are_attached_at_once_get_thirty_names(
    connect: Connect, node: Node, cloud: FakeEc2
) -> None:
    ebs = connect(zones=(A,), poll_seconds=0.1, wait_seconds=20)
    volumes = run_together(*[lambda name=name: ebs.create_volume(volume_request(f"pvc-{name}")) for name in range(30)])
    cloud.calls.clear()

    done = run_together(
        *[lambda one=one: ebs.attach(attach_request(node, one)) for one in volumes if isinstance(one, Volume)]
    )

    assert {one["device"] for one in done if isinstance(one, dict)} == set(WRITABLE[:30])
    assert cloud.calls["AttachVolume"] == 30
    assert cloud.calls["DescribeInstances"] <= 3
    assert cloud.calls["DescribeVolumes"] <= 12
    assert cloud.calls["CreateTags"] == 1 + 30  # of the instance, and of each volume for its first attachment


def test_two_controllers_give_one_node_different_names(connect: Connect, node: Node, cloud: FakeEc2) -> None:
    first, second = connect(zones=(A,)), connect(zones=(A,))
    volumes = [first.create_volume(volume_request(f"pvc-{number}")) for number in range(6)]
    calls = [
        lambda one=one, ebs=ebs: ebs.attach(attach_request(node, one))
        for one, ebs in zip(volumes, [first, second] * 3, strict=True)
    ]

    done = run_together(*calls)

    assert len({one["device"] for one in done if isinstance(one, dict)}) == 6


def test_names_that_are_stuck_are_passed_over_and_not_tried_again(
    ebs: EbsBackend, node: Node, cloud: FakeEc2, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_names, "TAKEN_SECONDS", 0.0)
    stuck(cloud, *WRITABLE[:2])
    first, second = (ebs.create_volume(volume_request(name)) for name in ("pvc-1", "pvc-2"))

    assert ebs.attach(attach_request(node, first))["device"] == WRITABLE[2]
    assert ebs.attach(attach_request(node, second))["device"] == WRITABLE[3]
    tried = [call.get("Device") for call in cloud.seen if call.action == "AttachVolume"]
    assert [tried.count(name) for name in WRITABLE[:2]] == [1, 1]


def test_more_stuck_names_than_one_call_tries_are_passed_over_by_the_next(
    ebs: EbsBackend, node: Node, cloud: FakeEc2
) -> None:
    stuck(cloud, *WRITABLE[:7])
    made = ebs.create_volume(volume_request())

    with pytest.raises(Busy, match="try again"):
        ebs.attach(attach_request(node, made))
    assert ebs.attach(attach_request(node, made))["device"] == WRITABLE[7]


def test_a_node_without_a_free_name_is_full(ebs: EbsBackend, node: Node, cloud: FakeEc2) -> None:
    ec2 = cloud.client()
    for name in READ_ONLY:
        other = ec2.create_volume(AvailabilityZone=A, Size=1)["VolumeId"]
        ec2.attach_volume(VolumeId=other, InstanceId=node.fact, Device=name)
    made = ebs.create_volume(volume_request())

    with pytest.raises(ResourceExhausted, match="all 24 device names"):
        ebs.attach(attach_request(node, made, read_only=True))
    assert ebs.attach(attach_request(node, made))["device"] == "/dev/xvdba"


def test_a_name_that_was_freed_a_moment_ago_is_used_when_no_other_is_left(
    ebs: EbsBackend, node: Node, cloud: FakeEc2
) -> None:
    for name in READ_ONLY[1:]:
        other = cloud.client().create_volume(AvailabilityZone=A, Size=1)["VolumeId"]
        cloud.client().attach_volume(VolumeId=other, InstanceId=node.fact, Device=name)
    first, second = (ebs.create_volume(volume_request(name)) for name in ("pvc-1", "pvc-2"))
    ebs.attach(attach_request(node, first, read_only=True))
    ebs.detach(first.handle, node, {})

    assert ebs.attach(attach_request(node, second, read_only=True))["device"] == READ_ONLY[0]


# Here, elsewhere, and at several places.


def test_attached_here_already_is_fine_for_every_process(connect: Connect, node: Node, cloud: FakeEc2) -> None:
    first = connect(zones=(A,))
    made = first.create_volume(volume_request())

    assert (
        first.attach(attach_request(node, made))
        == first.attach(attach_request(node, made))
        == connect().attach(attach_request(node, made))
    )
    assert len(devices(cloud, made)) == 1


def test_an_attachment_whose_answer_is_lost_is_found_by_the_retry(ebs: EbsBackend, node: Node, cloud: FakeEc2) -> None:
    made = ebs.create_volume(volume_request())
    cloud.drop("AttachVolume", after_effect=True)

    with pytest.raises(Unavailable):
        ebs.attach(attach_request(node, made))
    assert ebs.attach(attach_request(node, made))["device"] == "/dev/xvdba"
    assert devices(cloud, made) == {node.fact: "/dev/xvdba"}


def test_a_repeated_call_of_the_client_finds_what_the_first_did(connect: Connect, node: Node, cloud: FakeEc2) -> None:
    ebs = connect(zones=(A,), max_attempts=3)
    made = ebs.create_volume(volume_request())
    cloud.fail("AttachVolume", "InternalError", after_effect=True)

    assert ebs.attach(attach_request(node, made))["device"] == "/dev/xvdba"
    assert cloud.calls["AttachVolume"] == 2


def test_a_volume_that_is_attached_elsewhere_names_the_node_also_after_a_restart(
    connect: Connect, cloud: FakeEc2
) -> None:
    here, there = nodes(cloud, 2)
    ebs = connect(zones=(A,))
    made = ebs.create_volume(volume_request())
    ebs.attach(attach_request(there, made))

    for one in (ebs, connect()):
        with pytest.raises(FailedPrecondition, match=f"attached to {there.id} "):
            one.attach(attach_request(here, made))
    assert tags(cloud, there.fact)[KEY] == there.id.replace(";", "/")
    assert list(devices(cloud, made)) == [there.fact]


def test_a_volume_that_is_attached_elsewhere_meanwhile_names_the_node(ebs: EbsBackend, cloud: FakeEc2) -> None:
    here, there = nodes(cloud, 2)
    made = ebs.create_volume(volume_request())
    ec2 = cloud.client()  # making one takes longer than the call is slow
    cloud.slow("AttachVolume", 0.5)

    def overtake() -> object:
        while not cloud.calls["AttachVolume"]:
            time.sleep(0.01)
        return ec2.attach_volume(VolumeId=made.handle, InstanceId=there.fact, Device="/dev/xvdba")

    late, _ = run_together(lambda: ebs.attach(attach_request(here, made)), overtake)

    assert isinstance(late, FailedPrecondition)
    assert there.fact in str(late)


def test_a_node_in_another_zone_can_never_have_the_volume(ebs: EbsBackend, cloud: FakeEc2) -> None:
    (elsewhere,) = nodes(cloud, zone=B)

    with pytest.raises(FailedPrecondition, match="can only be attached in its own zone"):
        ebs.attach(attach_request(elsewhere, ebs.create_volume(volume_request())))


def test_block_volumes_of_io2_are_attached_to_several_nodes(ebs: EbsBackend, cloud: FakeEc2) -> None:
    both = nodes(cloud, 2)
    made = shared(ebs)

    for node in both:
        ebs.attach(attach_request(node, made, capability=MANY_WRITERS))

    assert ebs.get_volume(made.handle).published_nodes == tuple(node.id for node in both)
    one_of_them = Capability(mode=AccessMode.SINGLE_NODE_WRITER)
    with pytest.raises(FailedPrecondition, match="detach it there first"):
        ebs.attach(attach_request(both[0], made, capability=one_of_them))


def test_a_volume_for_one_node_is_attached_to_one(ebs: EbsBackend, cloud: FakeEc2) -> None:
    here, there = nodes(cloud, 2)
    made = ebs.create_volume(volume_request())
    ebs.attach(attach_request(here, made))

    with pytest.raises(FailedPrecondition):
        ebs.attach(attach_request(there, made, capability=MANY_WRITERS))
    assert list(devices(cloud, made)) == [here.fact]


def test_a_read_only_attachment_is_known_by_its_name(connect: Connect, node: Node, cloud: FakeEc2) -> None:
    ebs = connect(zones=(A,))
    made = ebs.create_volume(volume_request())

    context = ebs.attach(attach_request(node, made, read_only=True))

    assert context == {**context, "device": "/dev/xvdda", "blank": "unknown", "readOnly": "true"}
    assert connect().attach(attach_request(node, made, read_only=True)) == context
    with pytest.raises(AlreadyExists, match="not writable"):
        connect().attach(attach_request(node, made))


def test_a_full_node_is_told_so(ebs: EbsBackend, node: Node, cloud: FakeEc2) -> None:
    cloud.limits.attachments = 1
    first, second = (ebs.create_volume(volume_request(name)) for name in ("pvc-1", "pvc-2"))
    ebs.attach(attach_request(node, first))

    with pytest.raises(ResourceExhausted, match="AttachmentLimitExceeded"):
        ebs.attach(attach_request(node, second))


def test_a_node_that_is_gone_is_not_found(connect: Connect, cloud: FakeEc2) -> None:
    ended, forgotten = nodes(cloud, 2)
    ebs = connect(zones=(A,))
    made = ebs.create_volume(volume_request())
    cloud.terminate(ended.fact)
    cloud.terminate(forgotten.fact, forget=True)
    strange = Node(name="node-9", fact="", id="node-9")

    for node in (ended, forgotten, strange):
        with pytest.raises(NotFound, match=node.name):
            ebs.attach(attach_request(node, made))


def test_a_node_that_goes_while_it_is_believed_to_be_there_is_not_found(
    ebs: EbsBackend, node: Node, cloud: FakeEc2
) -> None:
    first, second = (ebs.create_volume(volume_request(name)) for name in ("pvc-1", "pvc-2"))
    ebs.attach(attach_request(node, first))
    cloud.terminate(node.fact)

    with pytest.raises(NotFound, match=node.name):
        ebs.attach(attach_request(node, second))


def test_a_node_that_is_stopping_may_have_it_later(ebs: EbsBackend, node: Node, cloud: FakeEc2) -> None:
    made = ebs.create_volume(volume_request())
    cloud.fail("AttachVolume", "IncorrectState", message="Instance is not 'running'")

    with pytest.raises(Unavailable, match=r"instance 'i-.*is running"):
        ebs.attach(attach_request(node, made))


def test_without_the_right_to_tag_instances_volumes_are_attached_all_the_same(
    ebs: EbsBackend, node: Node, cloud: FakeEc2, caplog: pytest.LogCaptureFixture
) -> None:
    made = ebs.create_volume(volume_request())
    cloud.fail("CreateTags", "UnauthorizedOperation", message="You are not authorized", status=403)

    assert ebs.attach(attach_request(node, made))["device"] == "/dev/xvdba"
    assert "has no tag for node node-1" in caplog.text
    assert KEY not in tags(cloud, node.fact)


def test_a_volume_of_somebody_else_is_not_attached(ebs: EbsBackend, node: Node, cloud: FakeEc2) -> None:
    by_hand = cloud.client().create_volume(AvailabilityZone=A, Size=1)["VolumeId"]
    ours = ebs.create_volume(volume_request())
    theirs = Volume(handle=by_hand, size=GIB, stamp=ours.stamp)

    with pytest.raises(FailedPrecondition, match="does not belong to this driver"):
        ebs.attach(attach_request(node, theirs))
    with pytest.raises(FailedPrecondition, match="does not belong to this driver"):
        ebs.detach(by_hand, node, {})


# What takes long.


def test_an_attachment_that_takes_longer_than_the_caller_listens_is_waited_for_again(
    connect: Connect, node: Node, cloud: FakeEc2
) -> None:
    ebs = connect(zones=(A,), wait_seconds=2)
    made = ebs.create_volume(volume_request())
    cloud.takes.attaching = seconds(3600)

    with pytest.raises(Unavailable, match=r"not attached to 'i-.*attaching"):
        ebs.attach(attach_request(node, made))
    cloud.advance(3601)
    assert ebs.attach(attach_request(node, made))["device"] == "/dev/xvdba"
    assert devices(cloud, made) == {node.fact: "/dev/xvdba"}


def test_an_attachment_that_is_stuck_is_begun_anew_under_another_name(
    connect: Connect, node: Node, cloud: FakeEc2
) -> None:
    made = connect(zones=(A,)).create_volume(volume_request())
    cloud.takes.attaching = FOREVER
    with pytest.raises(Unavailable):
        connect(wait_seconds=2).attach(attach_request(node, made))
    attached_for(cloud, made.handle, node.fact, 91)
    cloud.takes.attaching = NOW

    assert connect().attach(attach_request(node, made))["device"] == "/dev/xvdbb"
    assert (cloud.calls["DetachVolume"], cloud.calls["AttachVolume"]) == (1, 2)


def test_a_stuck_attachment_that_ended_by_itself_is_begun_anew_too(
    connect: Connect, node: Node, cloud: FakeEc2
) -> None:
    made = connect(zones=(A,)).create_volume(volume_request())
    cloud.takes.attaching = FOREVER
    with pytest.raises(Unavailable):
        connect(wait_seconds=2).attach(attach_request(node, made))
    attached_for(cloud, made.handle, node.fact, 91)
    cloud.takes.attaching = NOW
    cloud.fail("DetachVolume", "InvalidAttachment.NotFound", after_effect=True)

    assert connect().attach(attach_request(node, made))["device"]


def test_a_volume_on_its_way_off_is_attached_again_once_it_is_off(ebs: EbsBackend, node: Node, cloud: FakeEc2) -> None:
    made = ebs.create_volume(volume_request())
    ebs.attach(attach_request(node, made))
    cloud.takes.detaching = seconds(0.4)
    cloud.client().detach_volume(VolumeId=made.handle)

    ebs.attach(attach_request(node, made))

    assert list(row(cloud, made.handle).held) == [node.fact]


# Detaching.


def test_a_volume_is_detached_from_its_node_or_from_all(ebs: EbsBackend, cloud: FakeEc2) -> None:
    both = nodes(cloud, 2)
    made = shared(ebs)
    for node in both:
        ebs.attach(attach_request(node, made, capability=MANY_WRITERS))

    ebs.detach(made.handle, both[0], {})
    assert list(devices(cloud, made)) == [both[1].fact]
    ebs.attach(attach_request(both[0], made, capability=MANY_WRITERS))
    ebs.detach(made.handle, None, {})

    assert devices(cloud, made) == {}
    with pytest.raises(NotFound):
        ebs.detach(made.handle, None, {})


def test_one_attachment_that_ended_by_itself_does_not_keep_the_others(ebs: EbsBackend, cloud: FakeEc2) -> None:
    made = shared(ebs)
    for node in nodes(cloud, 2):
        ebs.attach(attach_request(node, made, capability=MANY_WRITERS))
    cloud.fail("DetachVolume", "InvalidAttachment.NotFound", after_effect=True)

    ebs.detach(made.handle, None, {})

    assert devices(cloud, made) == {}


def test_one_attachment_that_does_not_end_does_not_keep_the_others(connect: Connect, cloud: FakeEc2) -> None:
    ebs = connect(zones=(A,), wait_seconds=2)
    made = shared(ebs)
    for node in nodes(cloud, 2):
        ebs.attach(attach_request(node, made, capability=MANY_WRITERS))
    cloud.takes.detaching = FOREVER

    with pytest.raises(Unavailable):
        ebs.detach(made.handle, None, {})
    assert cloud.calls["DetachVolume"] == 2


@pytest.mark.parametrize("forget", [False, True])
def test_detaching_from_a_node_that_is_gone_is_done(ebs: EbsBackend, cloud: FakeEc2, forget: bool) -> None:
    (node,) = nodes(cloud)
    made = ebs.create_volume(volume_request())
    ebs.attach(attach_request(node, made))
    cloud.terminate(node.fact, forget=forget)

    with pytest.raises(NotFound, match="not attached to 'node-1'"):
        ebs.detach(made.handle, node, {})
    idempotent.detach(ebs, made.handle, node, {})


def test_detaching_a_volume_that_is_gone_is_done(ebs: EbsBackend, node: Node) -> None:
    made = ebs.create_volume(volume_request())
    ebs.delete_volume(made.handle, {})

    idempotent.detach(ebs, made.handle, node, {})


def test_another_nodes_attachment_stays(ebs: EbsBackend, cloud: FakeEc2) -> None:
    here, there = nodes(cloud, 2)
    made = ebs.create_volume(volume_request())
    ebs.attach(attach_request(there, made))

    with pytest.raises(NotFound):
        ebs.detach(made.handle, here, {})
    assert list(devices(cloud, made)) == [there.fact]


def test_a_detachment_whose_answer_is_lost_is_found_by_the_retry(ebs: EbsBackend, node: Node, cloud: FakeEc2) -> None:
    made = ebs.create_volume(volume_request())
    ebs.attach(attach_request(node, made))
    cloud.drop("DetachVolume", after_effect=True)

    with pytest.raises(Unavailable):
        ebs.detach(made.handle, node, {})
    idempotent.detach(ebs, made.handle, node, {})
    assert devices(cloud, made) == {}


def test_a_detachment_under_way_is_waited_for(connect: Connect, node: Node, cloud: FakeEc2) -> None:
    ebs = connect(zones=(A,))
    made = ebs.create_volume(volume_request())
    ebs.attach(attach_request(node, made))
    cloud.takes.detaching = seconds(0.3)
    cloud.client().detach_volume(VolumeId=made.handle)

    ebs.detach(made.handle, node, {})

    assert devices(cloud, made) == {}


def test_a_volume_that_the_guest_holds_is_not_torn_off_and_the_error_says_why(
    connect: Connect, node: Node, cloud: FakeEc2
) -> None:
    ebs = connect(zones=(A,), wait_seconds=2)
    made = ebs.create_volume(volume_request())
    ebs.attach(attach_request(node, made))
    cloud.busy.add(made.handle)

    for _ in range(2):
        with pytest.raises(Unavailable, match=r"the node may still use the volume.*busy"):
            ebs.detach(made.handle, node, {})
    assert not [call for call in cloud.seen if call.get("Force")]


def test_what_is_attached_is_not_deleted(ebs: EbsBackend, node: Node, cloud: FakeEc2) -> None:
    made = ebs.create_volume(volume_request())
    ebs.attach(attach_request(node, made))

    with pytest.raises(InUse):
        ebs.delete_volume(made.handle, {})
    ebs.detach(made.handle, node, {})
    ebs.delete_volume(made.handle, {})
    assert cloud.everything() == ()


# Deadlines.


@pytest.mark.parametrize("action", ["DescribeVolumes", "DescribeInstances"])
def test_a_lookup_that_hangs_ends_with_the_callers_patience(
    connect: Connect, node: Node, cloud: FakeEc2, action: str
) -> None:
    made = connect(zones=(A,)).create_volume(volume_request())
    ebs = connect(wait_seconds=2)
    cloud.slow(action, 60, times=math.inf)
    started = time.monotonic()

    with pytest.raises(Timeout):
        ebs.attach(attach_request(node, made))
    assert time.monotonic() - started < 40


def test_a_hung_lookup_of_nodes_ends_with_the_callers_patience(connect: Connect, node: Node, cloud: FakeEc2) -> None:
    first = connect(zones=(A,))
    made = first.create_volume(volume_request())
    first.attach(attach_request(node, made))
    ebs = connect(wait_seconds=2)
    cloud.slow("DescribeInstances", 60, times=math.inf)
    started = time.monotonic()

    with pytest.raises(Timeout):
        ebs.get_volume(made.handle)
    assert time.monotonic() - started < 40
