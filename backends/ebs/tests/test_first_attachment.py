"""The controller tells the node which attachment of a volume is its first, and no other ever is."""

from __future__ import annotations

import dataclasses
import time

import pytest
from csi_multi_ebs import labels
from csi_multi_ebs.backend import EbsBackend

from csi_multi.contract import Node, Unavailable

from .backend_requests import A, Connect, attach_request, nodes, row, tags, volume_request
from .fake_ec2 import NOW, FakeEc2, looks, seconds


@pytest.fixture
def node(cloud: FakeEc2) -> Node:
    return nodes(cloud)[0]


def blank(ebs: EbsBackend, node: Node, handle: str) -> str:
    return ebs.attach(attach_request(node, ebs.get_volume(handle)))["blank"]


def new(ebs: EbsBackend) -> str:
    return ebs.create_volume(volume_request()).handle


def test_the_first_attachment_is_told_again_and_again_also_by_another_process(
    connect: Connect, node: Node, cloud: FakeEc2
) -> None:
    ebs = connect(zones=(A,))
    made = ebs.create_volume(volume_request())
    context = ebs.attach(attach_request(node, made))

    assert context["blank"] == "unused"
    assert tags(cloud, made.handle)[labels.FIRST_ATTACHMENT] == context["attachment"]
    for process in (ebs, connect(), connect()):
        assert process.attach(attach_request(node, made)) == context


def test_a_second_attachment_is_never_the_first(connect: Connect, cloud: FakeEc2) -> None:
    here, there = nodes(cloud, 2)
    ebs = connect(zones=(A,))
    handle = new(ebs)
    blank(ebs, here, handle)

    for process, node in ((ebs, here), (connect(), there), (connect(), here)):
        process.detach(handle, None, {})
        assert blank(process, node, handle) == "unknown"
        assert blank(process, node, handle) == "unknown"


def test_a_process_that_takes_over_does_not_take_a_second_attachment_for_the_first_though_the_tag_shows_late(
    connect: Connect, cloud: FakeEc2
) -> None:
    here, there = nodes(cloud, 2)
    ebs = connect(zones=(A,))
    made = ebs.create_volume(volume_request())
    after = connect(consistency_seconds=4)
    cloud.describes.delay_tags(row(cloud, made.handle), seconds(4))
    first = ebs.attach(attach_request(here, made))
    assert first["blank"] == "unused"
    ebs.detach(made.handle, here, {})
    request = attach_request(there, made)

    with pytest.raises(Unavailable, match="whether this is its first attachment is not known"):
        after.attach(dataclasses.replace(request, deadline=time.monotonic() + 2))
    for _ in range(2):
        assert after.attach(request)["blank"] == "unknown"
    assert tags(cloud, made.handle)[labels.FIRST_ATTACHMENT] == first["attachment"]


def test_a_process_that_takes_over_knows_a_first_attachment_a_little_later(
    connect: Connect, node: Node, cloud: FakeEc2
) -> None:
    ebs = connect(zones=(A,), consistency_seconds=1)
    first, second = (ebs.create_volume(volume_request(name)) for name in ("pvc-1", "pvc-2"))
    started = time.monotonic()

    assert ebs.attach(attach_request(node, first))["blank"] == "unused"
    assert time.monotonic() - started >= 1
    cloud.calls.clear()
    assert ebs.attach(attach_request(node, second))["blank"] == "unused"
    assert cloud.calls["DescribeVolumes"] == 1  # later ones cost no more than ever


def test_an_attachment_that_was_ended_and_made_by_hand_is_not_the_first(
    connect: Connect, node: Node, cloud: FakeEc2
) -> None:
    handle = new(connect(zones=(A,)))
    context = connect().attach(attach_request(node, connect().get_volume(handle)))
    cloud.client().detach_volume(VolumeId=handle, InstanceId=node.fact)
    cloud.client().attach_volume(VolumeId=handle, InstanceId=node.fact, Device=context["device"])

    assert blank(connect(), node, handle) == "unknown"


def test_a_late_lookup_that_shows_the_first_attachment_does_not_make_the_second_one_the_first(
    ebs: EbsBackend, node: Node, cloud: FakeEc2
) -> None:
    handle = new(ebs)
    blank(ebs, node, handle)
    cloud.takes.showing = looks(6)
    ebs._cache.client.detach(handle, node.fact)
    cloud.takes.showing = NOW

    assert blank(ebs, node, handle) == "unknown"
    assert blank(ebs, node, handle) == "unknown"


def test_the_tag_is_written_before_the_context_is_returned(ebs: EbsBackend, node: Node, cloud: FakeEc2) -> None:
    handle = new(ebs)
    fault = cloud.fail("CreateTags", "RequestLimitExceeded", when=lambda call: handle in call.params.values(), times=2)

    for _ in range(2):
        with pytest.raises(Unavailable, match="no node may use it"):
            blank(ebs, node, handle)
    assert fault.times == 0
    assert blank(ebs, node, handle) == "unused"


def test_a_controller_that_died_between_attachment_and_tag_has_told_nobody(
    connect: Connect, node: Node, cloud: FakeEc2
) -> None:
    handle = new(connect(zones=(A,)))
    cloud.client().attach_volume(VolumeId=handle, InstanceId=node.fact, Device="/dev/xvdba")

    assert blank(connect(), node, handle) == "unused"


def test_an_attachment_that_ec2_refused_is_not_the_first(ebs: EbsBackend, node: Node, cloud: FakeEc2) -> None:
    handle = new(ebs)
    cloud.fail("AttachVolume", "RequestLimitExceeded")
    with pytest.raises(Unavailable):
        blank(ebs, node, handle)

    assert blank(ebs, node, handle) == "unused"


def test_a_read_only_attachment_writes_nothing_and_is_not_the_first(
    connect: Connect, node: Node, cloud: FakeEc2
) -> None:
    ebs = connect(zones=(A,))
    made = ebs.create_volume(volume_request())
    assert ebs.attach(attach_request(node, made, read_only=True))["blank"] == "unknown"
    ebs.detach(made.handle, node, {})

    assert blank(connect(), node, made.handle) == "unused"


def test_a_volume_of_an_earlier_version_counts_as_used(ebs: EbsBackend, node: Node, cloud: FakeEc2) -> None:
    handle = new(ebs)
    ebs._cache.known.take(handle)
    cloud.client().delete_tags(Resources=[handle], Tags=[{"Key": labels.FIRST_ATTACHMENT}])

    assert blank(ebs, node, handle) == "unknown"


def test_a_first_attachment_costs_one_more_call(ebs: EbsBackend, node: Node, cloud: FakeEc2) -> None:
    first, second = (ebs.create_volume(volume_request(name)) for name in ("pvc-1", "pvc-2"))
    ebs.attach(attach_request(node, first))
    cloud.calls.clear()

    ebs.attach(attach_request(node, second))
    assert (cloud.calls["AttachVolume"], cloud.calls["CreateTags"]) == (1, 1)
    cloud.calls.clear()
    ebs.attach(attach_request(node, second))
    ebs.detach(second.handle, node, {})
    ebs.attach(attach_request(node, second))
    assert cloud.calls["CreateTags"] == 0
    assert list(row(cloud, second.handle).held) == [node.fact]
