"""Restored volumes that are attached only once EC2 has loaded them."""

from __future__ import annotations

import pytest
from csi_multi_ebs.backend import EbsBackend

from csi_multi.contract import Busy, Node, Volume

from .backend_requests import (
    A,
    Connect,
    attach_request,
    nodes,
    parameters,
    row,
    snapshot,
    snapshot_request,
    volume,
    volume_request,
)
from .fake_ec2 import FakeEc2
from .thread_helpers import run_together

WAITING = parameters(blockAttachUntilInitialized="true")


@pytest.fixture
def node(cloud: FakeEc2) -> Node:
    return nodes(cloud)[0]


@pytest.fixture
def origin(ebs: EbsBackend) -> Volume:
    return ebs.create_volume(volume_request("pvc-0"))


def restored(ebs: EbsBackend, origin: Volume, number: int = 1, **given: object) -> Volume:
    taken = ebs.create_snapshot(snapshot_request(f"snap-{number}", origin.handle))
    ebs.get_snapshot(taken.handle)
    return ebs.restore_volume(volume_request(f"pvc-{number}", source=snapshot(taken.handle), **given))


def test_a_volume_that_is_still_being_loaded_is_not_attached(
    ebs: EbsBackend, cloud: FakeEc2, node: Node, origin: Volume
) -> None:
    made = restored(ebs, origin, parameters=WAITING)
    cloud.initializing[made.handle] = (43, 600)

    with pytest.raises(Busy, match=r"still being loaded from its snapshot \(43 %, about 600 seconds left\)"):
        ebs.attach(attach_request(node, made))
    assert cloud.calls["AttachVolume"] == 0
    del cloud.initializing[made.handle]
    ebs.attach(attach_request(node, made))
    assert list(row(cloud, made.handle).held) == [node.fact]


def test_without_an_initialization_rate_only_the_progress_is_known(
    ebs: EbsBackend, cloud: FakeEc2, node: Node, origin: Volume
) -> None:
    made = restored(ebs, origin, parameters=WAITING)
    cloud.initializing[made.handle] = (7, None)

    with pytest.raises(Busy, match=r"\(7 %\)"):
        ebs.attach(attach_request(node, made))


def test_the_next_process_knows_from_the_volume_that_it_has_to_wait(
    ebs: EbsBackend, connect: Connect, cloud: FakeEc2, node: Node, origin: Volume
) -> None:
    """The class may be gone by then."""
    made = restored(ebs, origin, parameters=WAITING)
    cloud.initializing[made.handle] = (43, None)

    with pytest.raises(Busy):
        connect(zones=(A,)).attach(attach_request(node, made))


def test_a_copy_of_a_volume_waits_as_well(ebs: EbsBackend, cloud: FakeEc2, node: Node, origin: Volume) -> None:
    made = ebs.clone_volume(volume_request("pvc-1", source=volume(origin.handle), parameters=WAITING))
    cloud.initializing[made.handle] = (43, None)

    with pytest.raises(Busy):
        ebs.attach(attach_request(node, made))


@pytest.mark.parametrize("how", ["restored", "empty"])
def test_other_volumes_are_attached_without_a_look_at_their_status(
    ebs: EbsBackend, cloud: FakeEc2, node: Node, origin: Volume, how: str
) -> None:
    made = restored(ebs, origin) if how == "restored" else ebs.create_volume(volume_request(parameters=WAITING))
    cloud.initializing[made.handle] = (0, None)

    ebs.attach(attach_request(node, made))

    assert cloud.calls["DescribeVolumeStatus"] == 0


def test_an_initialized_volume_is_looked_at_once(ebs: EbsBackend, cloud: FakeEc2, node: Node, origin: Volume) -> None:
    made = restored(ebs, origin, parameters=WAITING)
    for _ in range(2):
        ebs.attach(attach_request(node, made))
        ebs.detach(made.handle, node, {})

    assert cloud.calls["DescribeVolumeStatus"] == 1


def test_a_volume_that_is_attached_already_is_not_looked_at(
    ebs: EbsBackend, connect: Connect, cloud: FakeEc2, node: Node, origin: Volume
) -> None:
    made = restored(ebs, origin, parameters=WAITING)
    ebs.attach(attach_request(node, made))
    cloud.initializing[made.handle] = (99, None)  # EC2 tells this late

    connect(zones=(A,)).attach(attach_request(node, made))


def test_a_volume_whose_status_is_not_shown_waits_and_does_not_hold_up_others(
    connect: Connect, cloud: FakeEc2, node: Node
) -> None:
    ebs = connect(zones=(A,))
    origin = ebs.create_volume(volume_request("pvc-0"))
    gone, there = (restored(ebs, origin, number, parameters=WAITING) for number in (1, 2))
    cloud.fail(
        "DescribeVolumeStatus",
        "InvalidVolume.NotFound",
        times=9,
        when=lambda call: gone.handle in call.many("VolumeId"),
    )

    done = run_together(
        lambda: ebs.attach(attach_request(node, gone)),
        lambda: ebs.attach(attach_request(node, there)),
    )

    assert [type(one) for one in done] == [Busy, dict]
