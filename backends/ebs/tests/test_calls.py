"""How many calls to EC2 each operation costs. Every look that is left protects a resource, and none more is made."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from csi_multi_ebs import caches
from csi_multi_ebs.backend import EbsBackend
from csi_multi_ebs.ec2_cache import OWN_TTL

from csi_multi.contract import IMPORTED, FailedPrecondition, NotFound, Stamp, StorageError
from csi_multi.core import idempotent

from .backend_requests import (
    CLUSTER,
    DRIVER,
    A,
    Connect,
    attach_request,
    nodes,
    row,
    snapshot_request,
    tags,
    volume_request,
)
from .fake_ec2 import FakeEc2


def cost(cloud: FakeEc2, work: Callable[[], object]) -> dict[str, int]:
    """Return the calls that the work makes, by action."""
    cloud.calls.clear()
    work()
    return dict(cloud.calls)


def test_a_volume_that_this_process_created_costs_one_call_to_delete(ebs: EbsBackend, cloud: FakeEc2) -> None:
    handle = ebs.create_volume(volume_request()).handle

    assert cost(cloud, lambda: ebs.delete_volume(handle, {})) == {"DeleteVolume": 1}
    assert cloud.everything() == ()


def test_a_snapshot_that_this_process_created_costs_one_call_to_delete(ebs: EbsBackend, cloud: FakeEc2) -> None:
    origin = ebs.create_volume(volume_request()).handle
    handle = ebs.create_snapshot(snapshot_request("snap-1", origin)).handle

    assert cost(cloud, lambda: ebs.delete_snapshot(handle, {})) == {"DeleteSnapshot": 1}
    assert cloud.everything() == (origin,)


def test_a_snapshot_of_a_known_volume_costs_its_creation_and_a_look_before_and_after(
    ebs: EbsBackend, cloud: FakeEc2
) -> None:
    origin = ebs.create_volume(volume_request()).handle

    calls = cost(cloud, lambda: ebs.create_snapshot(snapshot_request("snap-1", origin)))

    assert calls == {"CreateSnapshot": 1, "DescribeSnapshots": 2}
    again = cost(cloud, lambda: idempotent.create_snapshot(ebs, snapshot_request("snap-1", origin)))
    assert again == {"DescribeSnapshots": 1}


def test_publishing_and_unpublishing_cost_as_few_calls_as_ec2_needs(ebs: EbsBackend, cloud: FakeEc2) -> None:
    (node,) = nodes(cloud)
    made = ebs.create_volume(volume_request())
    request = attach_request(node, made)
    ebs.attach(request)  # tags the instance, and the volume for its first attachment
    ebs.detach(made.handle, node, {})

    assert cost(cloud, lambda: ebs.attach(request)) == {"AttachVolume": 1, "DescribeVolumes": 1}
    assert cost(cloud, lambda: ebs.attach(request)) == {"AttachVolume": 1, "DescribeVolumes": 1}
    assert cost(cloud, lambda: ebs.detach(made.handle, node, {})) == {"DetachVolume": 1, "DescribeVolumes": 1}


def test_another_process_looks_at_the_labels_before_it_deletes(connect: Connect, cloud: FakeEc2) -> None:
    handle = connect(zones=(A,)).create_volume(volume_request()).handle
    theirs = connect("other", zones=(A,)).create_volume(volume_request()).handle
    after = connect(zones=(A,))

    with pytest.raises(FailedPrecondition, match="does not belong to this driver"):
        after.delete_volume(theirs, {})
    assert cost(cloud, lambda: after.delete_volume(handle, {})) == {"DescribeVolumes": 1, "DeleteVolume": 1}
    assert cloud.everything() == (theirs,)


def test_a_volume_that_lost_its_labels_is_not_deleted_once_a_lookup_has_shown_that(
    ebs: EbsBackend, cloud: FakeEc2
) -> None:
    handle = ebs.create_volume(volume_request()).handle
    cloud.client().delete_tags(Resources=[handle], Tags=[{"Key": key} for key in tags(cloud, handle)])
    with pytest.raises(FailedPrecondition):
        ebs.get_volume(handle)

    with pytest.raises(FailedPrecondition, match="does not belong to this driver"):
        ebs.delete_volume(handle, {})
    assert cloud.everything() == (handle,)


def test_labels_that_were_seen_long_ago_are_looked_at_again(
    ebs: EbsBackend, cloud: FakeEc2, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = ebs.create_volume(volume_request()).handle
    monkeypatch.setattr(caches, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + OWN_TTL))

    assert cost(cloud, lambda: ebs.delete_volume(handle, {})) == {"DescribeVolumes": 1, "DeleteVolume": 1}


def test_an_imported_volume_is_looked_at_before_every_deletion(ebs: EbsBackend, cloud: FakeEc2) -> None:
    """Another process can release it."""
    id = cloud.client().create_volume(AvailabilityZone=A, Size=1)["VolumeId"]
    ebs.import_volume(id, Stamp(driver=DRIVER, cluster=CLUSTER, name="by-hand", digest=IMPORTED))
    for _ in range(2):
        ebs.get_volume(id)

        with pytest.raises(StorageError):
            ebs.delete_volume(id, {})
    assert cloud.calls["DeleteVolume"] == 0


def test_a_volume_that_somebody_else_deleted_is_gone_when_deletevolume_says_so(ebs: EbsBackend, cloud: FakeEc2) -> None:
    handle = ebs.create_volume(volume_request()).handle
    cloud.client().delete_volume(VolumeId=handle)

    with pytest.raises(NotFound):
        ebs.delete_volume(handle, {})
    with pytest.raises(NotFound):
        ebs.create_snapshot(snapshot_request("snap-1", handle))
    assert cloud.everything() == ()


def test_a_volume_that_moved_meanwhile_is_not_published_by_its_last_row(
    ebs: EbsBackend, connect: Connect, cloud: FakeEc2
) -> None:
    first, second = nodes(cloud, 2)
    made = ebs.create_volume(volume_request())
    ebs.attach(attach_request(first, made))
    other = connect(zones=(A,))
    other.detach(made.handle, first, {})
    other.attach(attach_request(second, made))

    with pytest.raises(FailedPrecondition, match=f"attached to .*{second.fact}"):
        ebs.attach(attach_request(first, made))
    with pytest.raises(NotFound):
        ebs.detach(made.handle, first, {})
    assert list(row(cloud, made.handle).held) == [second.fact]


def test_a_volume_that_was_detached_meanwhile_is_attached_again(
    ebs: EbsBackend, connect: Connect, cloud: FakeEc2
) -> None:
    (node,) = nodes(cloud)
    made = ebs.create_volume(volume_request())
    before = ebs.attach(attach_request(node, made))
    connect(zones=(A,)).detach(made.handle, node, {})

    again = ebs.attach(attach_request(node, made))
    assert (before["blank"], again["blank"]) == ("unused", "unknown")
    assert list(row(cloud, made.handle).held) == [node.fact]


def test_a_volume_on_an_instance_that_is_gone_is_detached_from_it(ebs: EbsBackend, cloud: FakeEc2) -> None:
    (node,) = nodes(cloud)
    made = ebs.create_volume(volume_request())
    ebs.attach(attach_request(node, made))
    cloud.terminate(node.fact, forget=True)

    idempotent.detach(ebs, made.handle, node, {})
    assert row(cloud, made.handle).held == {}
