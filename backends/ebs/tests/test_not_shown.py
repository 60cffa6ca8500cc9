"""What lookups do not show may exist: only the call that deletes or detaches it says that it does not."""

from __future__ import annotations

import math
import random
import time

import pytest
from csi_multi_ebs.backend import EbsBackend

from csi_multi.contract import FailedPrecondition, Node, NotFound, PageRequest, Unavailable
from csi_multi.core import idempotent

from .backend_requests import (
    GONE,
    A,
    Connect,
    attach_request,
    expand_request,
    nodes,
    row,
    snapshot_request,
    volume_request,
)
from .fake_ec2 import FOREVER, FakeEc2, Refusal
from .thread_helpers import run_together


@pytest.fixture
def node(cloud: FakeEc2) -> Node:
    return nodes(cloud)[0]


def forgetful(cloud: FakeEc2, part: float = 0.3) -> None:
    """Let lookups leave out a part of what there is."""
    dice = random.Random(8)
    cloud.describes.leaves_out = lambda _id: dice.random() < part


def hide(cloud: FakeEc2, *ids: str) -> None:
    cloud.describes.leaves_out = lambda id: id in ids


def show(cloud: FakeEc2) -> None:
    cloud.describes.leaves_out = lambda _id: False


@pytest.mark.parametrize("consistency", [0, 0.2])
def test_of_two_hundred_deletions_none_leaves_a_volume_though_lookups_leave_some_out(
    connect: Connect, cloud: FakeEc2, consistency: float
) -> None:
    ebs = connect(zones=(A,))
    handles = [ebs.create_volume(volume_request(f"pvc-{number}")).handle for number in range(200)]
    after = connect(zones=(A,), consistency_seconds=consistency)  # another process, which has no memory of them
    forgetful(cloud)

    for start in range(0, 200, 20):
        run_together(
            *[
                lambda handle=handle: idempotent.delete_volume(after, handle, {})
                for handle in handles[start : start + 20]
            ]
        )
    assert cloud.everything() == ()


def test_of_fifty_deletions_none_leaves_a_snapshot_though_lookups_leave_some_out(
    connect: Connect, cloud: FakeEc2
) -> None:
    ebs = connect(zones=(A,))
    origin = ebs.create_volume(volume_request()).handle
    handles = [ebs.create_snapshot(snapshot_request(f"snap-{number}", origin)).handle for number in range(50)]
    after = connect(zones=(A,))
    forgetful(cloud)

    for handle in handles:
        idempotent.delete_snapshot(after, handle, {})
    assert cloud.everything() == (origin,)


def test_an_error_that_names_every_id_leaves_no_volume(connect: Connect, cloud: FakeEc2) -> None:
    handles = [connect(zones=(A,)).create_volume(volume_request(f"pvc-{number}")).handle for number in range(20)]
    after = connect(zones=(A,))
    cloud.fail("DescribeVolumes", "InvalidVolume.NotFound", message=f"The volumes '{', '.join(handles)}' do not exist.")

    run_together(*[lambda handle=handle: idempotent.delete_volume(after, handle, {}) for handle in handles])
    assert cloud.everything() == ()


def test_a_search_that_ec2_answers_with_not_found_leaves_no_volume(connect: Connect, cloud: FakeEc2) -> None:
    ebs = connect(zones=(A,))
    handles = [ebs.create_volume(volume_request(f"pvc-{number}")).handle for number in range(5)]
    after = connect(zones=(A,))
    searching = cloud.fail(
        "DescribeVolumes", "InvalidVolume.NotFound", times=math.inf, when=lambda call: bool(call.get("Filter.1.Name"))
    )
    absent = cloud.fail("DescribeVolumes", "InvalidVolume.NotFound", times=math.inf)

    outcomes = run_together(*[lambda one=one: idempotent.delete_volume(after, one, {}) for one in handles])

    assert {type(one) for one in outcomes} <= {Unavailable, type(None)}
    assert cloud.everything() == tuple(sorted(one for one, outcome in zip(handles, outcomes, strict=True) if outcome))
    for search in (lambda: after.find_volume("pvc-1"), lambda: after.list_volumes(PageRequest())):
        with pytest.raises(Unavailable):
            search()
    searching.times = absent.times = 0
    for handle in handles:
        idempotent.delete_volume(after, handle, {})
    assert cloud.everything() == ()


def test_a_volume_of_somebody_else_that_shows_late_is_not_deleted(connect: Connect, cloud: FakeEc2) -> None:
    theirs = cloud.client().create_volume(AvailabilityZone=A, Size=1)["VolumeId"]
    looks = iter([True, True, True])
    cloud.describes.leaves_out = lambda _id: next(looks, False)

    with pytest.raises(FailedPrecondition, match="does not belong to this driver"):
        connect(consistency_seconds=30).delete_volume(theirs, {})
    assert cloud.everything() == (theirs,)
    assert cloud.calls["DeleteVolume"] == 0


def test_a_volume_that_never_shows_is_gone_when_deletevolume_says_so(connect: Connect, cloud: FakeEc2) -> None:
    ebs = connect(consistency_seconds=0.3)
    started = time.monotonic()

    with pytest.raises(NotFound):
        ebs.delete_volume(GONE, {})
    assert time.monotonic() - started >= 0.3
    assert cloud.calls["DeleteVolume"] == 1
    cloud.fail("DeleteVolume", "RequestLimitExceeded")
    with pytest.raises(Unavailable):
        ebs.delete_volume(GONE, {})


def test_calls_that_each_have_little_time_wait_once_for_a_volume_that_does_not_show(
    connect: Connect, cloud: FakeEc2
) -> None:
    ebs = connect(consistency_seconds=0.5)
    with pytest.raises(NotFound):
        ebs.get_volume(GONE)
    cloud.calls.clear()

    with pytest.raises(NotFound):
        ebs.get_volume(GONE)
    assert cloud.calls["DescribeVolumes"] == 1


def test_a_deletion_that_was_accepted_is_not_asked_for_again(ebs: EbsBackend, cloud: FakeEc2) -> None:
    handle = ebs.create_volume(volume_request()).handle
    cloud.takes.vanishing = FOREVER
    ebs.delete_volume(handle, {})

    for call in (lambda: ebs.get_volume(handle), lambda: ebs.delete_volume(handle, {})):
        with pytest.raises(NotFound):
            call()
    assert cloud.calls["DeleteVolume"] == 1


def test_a_volume_that_does_not_show_is_detached(connect: Connect, node: Node, cloud: FakeEc2) -> None:
    made = connect(zones=(A,)).create_volume(volume_request())
    for wanted in (node, None):
        connect().attach(attach_request(node, made))
        hide(cloud, made.handle)
        after = connect(zones=(A,))
        try:
            idempotent.detach(after, made.handle, wanted, {})
        except Unavailable:  # it is not known from which instance: the caller tries again
            idempotent.detach(after, made.handle, wanted, {})
        assert row(cloud, made.handle).held == {}
        show(cloud)


def test_a_volume_that_does_not_show_is_detached_from_a_node_that_is_known_by_name_only(
    connect: Connect, node: Node, cloud: FakeEc2
) -> None:
    made = connect(zones=(A,)).create_volume(volume_request())
    connect().attach(attach_request(node, made))
    hide(cloud, made.handle)

    idempotent.detach(connect(), made.handle, Node(name=node.name, fact="", id=node.name), {})
    assert row(cloud, made.handle).held == {}


def test_of_fifty_detachments_none_leaves_an_attachment_though_lookups_leave_some_out(
    connect: Connect, node: Node, cloud: FakeEc2
) -> None:
    ebs = connect(zones=(A,))
    made = [ebs.create_volume(volume_request(f"pvc-{number}")) for number in range(50)]
    for one in made:
        ebs.attach(attach_request(node, one))
    after = connect(zones=(A,))
    forgetful(cloud)

    for one in made:
        idempotent.detach(after, one.handle, node, {})
    assert all(row(cloud, one.handle).held == {} for one in made)


def test_a_detachment_that_ec2_refuses_is_no_success_though_the_instance_does_not_show(
    connect: Connect, node: Node, cloud: FakeEc2
) -> None:
    made = connect(zones=(A,)).create_volume(volume_request())
    connect().attach(attach_request(node, made))
    cloud.fail("DetachVolume", "UnauthorizedOperation")
    cloud.fail("DescribeInstances", "InvalidInstanceID.NotFound", message="The instance ID does not exist")

    with pytest.raises(Exception, match="do not allow"):
        idempotent.detach(connect(), made.handle, node, {})


def test_a_volume_that_stops_showing_while_it_is_attached_is_not_called_deleted(
    connect: Connect, node: Node, cloud: FakeEc2
) -> None:
    ebs = connect(zones=(A,), wait_seconds=1)
    made = ebs.create_volume(volume_request())
    hide(cloud, made.handle)  # it is still known from its creation

    with pytest.raises(Unavailable, match=r"not attached .* yet"):
        ebs.attach(attach_request(node, made))
    show(cloud)
    assert ebs.attach(attach_request(node, made))["blank"] == "unused"


def test_a_volume_that_shows_late_is_expanded_and_has_snapshots(connect: Connect, cloud: FakeEc2) -> None:
    made = connect(zones=(A,)).create_volume(volume_request())
    ebs = connect(zones=(A,), consistency_seconds=5)
    for change in (
        lambda: ebs.expand_volume(expand_request(made, 2)),
        lambda: ebs.create_snapshot(snapshot_request("snap-1", made.handle)),
    ):
        looks = iter([True, True])
        cloud.describes.leaves_out = lambda id, looks=looks: id == made.handle and next(looks, False)
        change()
    assert row(cloud, made.handle).size == 2


def test_the_simulation_refuses_what_it_leaves_out(cloud: FakeEc2) -> None:
    handle = cloud.client().create_volume(AvailabilityZone=A, Size=1)["VolumeId"]
    hide(cloud, handle)

    with pytest.raises(Exception, match=r"InvalidVolume\.NotFound"):
        cloud.client().describe_volumes(VolumeIds=[handle])
    assert Refusal("InvalidVolume.NotFound").status == 400
