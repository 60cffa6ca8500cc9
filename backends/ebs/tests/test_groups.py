"""Group snapshots on EBS: one call for all members, known by their tags, all or none whatever fails."""

from __future__ import annotations

import math
from typing import Any

import pytest
from csi_multi_ebs.backend import EbsBackend

from csi_multi.contract import (
    AlreadyExists,
    Busy,
    FailedPrecondition,
    GroupSnapshot,
    InvalidArgument,
    NotFound,
    PageRequest,
    ResourceExhausted,
    SizeRange,
    Timeout,
    Unavailable,
    Volume,
)
from csi_multi.core import idempotent

from . import fake_ec2_moto
from .backend_requests import (
    GIB,
    A,
    Connect,
    attach_request,
    group_request,
    nodes,
    row,
    snapshot,
    snapshot_request,
    tags,
    volume_request,
)
from .fake_ec2 import FakeEc2, looks, seconds

LOCK = {"lockMode": "governance", "lockDuration": "1"}


@pytest.fixture
def volumes(ebs: EbsBackend, cloud: FakeEc2) -> list[Volume]:
    """Three volumes on one node."""
    (node,) = nodes(cloud)
    made = [ebs.create_volume(volume_request(f"pvc-{number}")) for number in range(3)]
    for one in made:
        ebs.attach(attach_request(node, one))
    return made


def ids(volumes: list[Volume]) -> list[str]:
    return [one.handle for one in volumes]


def cut(ebs: EbsBackend, volumes: list[Volume], name: str = "group-1", **given: str) -> GroupSnapshot:
    """Create a group as the core does, which knows what to ask after an error."""
    return idempotent.create_group_snapshot(ebs, group_request(name, *ids(volumes), **given))


def snapshots(cloud: FakeEc2) -> list[str]:
    return [one for one in cloud.everything() if one.startswith("snap-")]


def forget_tags(cloud: FakeEc2, id: str, prefix: str) -> None:
    for store in fake_ec2_moto.stores():
        for key in [key for key in store.tags.get(id, {}) if key.startswith(prefix)]:
            del store.tags[id][key]


# One call.


def test_one_call_cuts_the_volumes_of_the_group_and_no_other(
    ebs: EbsBackend, cloud: FakeEc2, volumes: list[Volume]
) -> None:
    made = cut(ebs, volumes[:2])

    assert sorted(one.source for one in made.snapshots) == sorted(ids(volumes[:2]))
    assert {one.group for one in made.snapshots} == {made.handle}
    assert {one.created for one in made.snapshots} == {made.created}
    assert (cloud.calls["CreateSnapshots"], cloud.calls["CreateSnapshot"]) == (1, 0)
    assert snapshots(cloud) == sorted(one.handle for one in made.snapshots)
    (call,) = [one for one in cloud.seen if one.action == "CreateSnapshots"]
    assert call.get("InstanceSpecification.ExcludeBootVolume") == "true"
    assert call.many("InstanceSpecification.ExcludeDataVolumeId") == [volumes[2].handle]


def test_a_group_is_ready_when_all_members_are(ebs: EbsBackend, cloud: FakeEc2, volumes: list[Volume]) -> None:
    cloud.takes.snapshot = seconds(3600)
    made = cut(ebs, volumes)

    assert not made.ready
    cloud.advance(3601)
    assert ebs.get_group_snapshot(made.handle).ready


def test_members_are_restored_listed_and_found_like_other_snapshots(
    connect: Connect, ebs: EbsBackend, volumes: list[Volume]
) -> None:
    made = cut(ebs, volumes)
    other = connect(zones=(A,))

    assert other.get_group_snapshot(made.handle) == ebs.find_group_snapshot("group-1")
    listed = other.list_snapshots(PageRequest()).items
    assert {one.handle: one.group for one in listed} == {one.handle: made.handle for one in made.snapshots}
    size = SizeRange(required=2 * GIB)
    assert other.restore_volume(volume_request("pvc-9", source=snapshot(listed[0].handle), size=size)).size == 2 * GIB
    with pytest.raises(NotFound):
        other.find_snapshot("group-1")
    with pytest.raises(NotFound):
        other.get_snapshot(made.handle)


def test_all_members_get_the_tags_locks_and_fast_restore_of_the_class(
    ebs: EbsBackend, cloud: FakeEc2, volumes: list[Volume]
) -> None:
    made = cut(ebs, volumes, tagSpecification_1="team=db", fastSnapshotRestoreAvailabilityZones=A, **LOCK)

    for one in made.snapshots:
        assert tags(cloud, one.handle)["team"] == "db"
        assert cloud.locks[one.handle]["lockState"] == "governance"
        assert cloud.fast_restores[one.handle] == {A}
    assert cloud.calls["EnableFastSnapshotRestores"] == 1


def test_one_volume_is_a_group_wherever_it_is(ebs: EbsBackend, cloud: FakeEc2) -> None:
    alone = ebs.create_volume(volume_request())
    made = cut(ebs, [alone])

    assert [one.source for one in made.snapshots] == [alone.handle]
    assert ebs.get_group_snapshot(made.handle) == ebs.find_group_snapshot("group-1")
    ebs.delete_group_snapshot(made.handle, {})
    assert snapshots(cloud) == []


# Idempotence, also when answers are lost.


def test_a_repeated_request_finds_the_group_also_in_another_process(
    connect: Connect, ebs: EbsBackend, cloud: FakeEc2, volumes: list[Volume]
) -> None:
    made = cut(ebs, volumes)

    for again in (ebs, connect(zones=(A,))):
        assert cut(again, volumes[::-1]).handle == made.handle
        with pytest.raises(AlreadyExists, match="other volumes"):
            cut(again, volumes[:2])
    assert len(snapshots(cloud)) == 3


@pytest.mark.parametrize("lost", ["error", "connection"])
def test_after_a_lost_answer_the_retry_finds_what_was_made(
    ebs: EbsBackend, cloud: FakeEc2, volumes: list[Volume], lost: str
) -> None:
    if lost == "error":
        cloud.fail("CreateSnapshots", "InternalError", after_effect=True)
    else:
        cloud.drop("CreateSnapshots", after_effect=True)

    with pytest.raises((Unavailable, Timeout)):
        cut(ebs, volumes)
    made = cut(ebs, volumes)

    assert cloud.calls["CreateSnapshots"] == 1
    assert snapshots(cloud) == sorted(one.handle for one in made.snapshots)


def test_after_a_lost_answer_nothing_is_made_while_ec2_may_not_show_it(
    connect: Connect, cloud: FakeEc2, volumes: list[Volume]
) -> None:
    late = connect(zones=(A,), consistency_seconds=60, max_attempts=1, wait_seconds=1)
    late._groups._names._window._end = 0.0  # it has not just taken over
    cloud.takes.appearing = seconds(30)
    cloud.drop("CreateSnapshots", after_effect=True)

    for _ in range(2):
        with pytest.raises(Unavailable):
            cut(late, volumes)
    cloud.advance(31)
    made = cut(late, volumes)

    assert cloud.calls["CreateSnapshots"] == 1
    assert snapshots(cloud) == sorted(one.handle for one in made.snapshots)


def test_a_process_that_took_over_waits_for_what_the_one_before_it_made(
    connect: Connect, ebs: EbsBackend, cloud: FakeEc2, volumes: list[Volume]
) -> None:
    cloud.takes.appearing = looks(3)
    made = ebs.create_group_snapshot(group_request("group-1", *ids(volumes)))
    after = connect(zones=(A,), consistency_seconds=20)

    assert cut(after, volumes).handle == made.handle
    assert cloud.calls["CreateSnapshots"] == 1


def test_a_group_of_which_a_part_is_shown_is_neither_made_again_nor_final(
    ebs: EbsBackend, cloud: FakeEc2, volumes: list[Volume]
) -> None:
    cloud.fail("CreateSnapshots", "InternalError", after_effect=True)
    with pytest.raises(Unavailable):
        cut(ebs, volumes)
    hidden = snapshots(cloud)[0]
    cloud.describes.leaves_out = lambda id: id == hidden

    for _ in range(2):
        with pytest.raises(Unavailable, match="shows 2 of 3 members"):
            cut(ebs, volumes)
    with pytest.raises(Unavailable):
        ebs.find_group_snapshot("group-1")
    cloud.describes.leaves_out = lambda _id: False
    assert len(cut(ebs, volumes).snapshots) == 3
    assert cloud.calls["CreateSnapshots"] == 1


def test_of_two_processes_that_race_the_older_group_stays(
    connect: Connect, ebs: EbsBackend, cloud: FakeEc2, volumes: list[Volume]
) -> None:
    cloud.takes.appearing = looks(2)  # so the second does not see the first before it creates
    first = ebs.create_group_snapshot(group_request("group-1", *ids(volumes)))
    second = connect(zones=(A,))
    try:
        found = cut(second, volumes)
    except Unavailable:
        found = cut(second, volumes)

    assert found.handle == first.handle
    assert snapshots(cloud) == sorted(one.handle for one in first.snapshots)


# All or none.


def test_volumes_that_came_to_the_instance_meanwhile_leave_nothing(
    ebs: EbsBackend, cloud: FakeEc2, volumes: list[Volume], monkeypatch: pytest.MonkeyPatch
) -> None:
    """EC2 cuts what is attached at that moment, also what it was not told to leave out."""
    (instance,) = row(cloud, volumes[0].handle).held
    late, client = ebs.create_volume(volume_request("pvc-late")), ebs._cache.client
    create = client.create_snapshots

    def attach_first(*words: Any) -> Any:
        cloud.attach_missing([late.handle], instance)
        return create(*words)

    monkeypatch.setattr(client, "create_snapshots", attach_first)
    with pytest.raises(Unavailable, match="exactly the volumes"):
        cut(ebs, volumes)
    assert snapshots(cloud) == []
    assert sorted(one.source for one in cut(ebs, volumes).snapshots) == sorted(ids(volumes))


def test_a_process_that_died_with_a_volume_too_many_leaves_nothing_after_the_retry(
    connect: Connect, ebs: EbsBackend, cloud: FakeEc2, volumes: list[Volume]
) -> None:
    made = cut(ebs, volumes[:2])
    more = next(
        store.create_snapshot(volumes[2].handle, "too many") for store in fake_ec2_moto.stores() if store.volumes
    )
    more.add_tags(tags(cloud, made.snapshots[0].handle))
    for one in (more.id, *(one.handle for one in made.snapshots)):
        forget_tags(cloud, one, "csi-multi/group-list.")  # it died before it listed them

    again = cut(connect(zones=(A,)), volumes[:2])

    assert again.handle != made.handle
    assert snapshots(cloud) == sorted(one.handle for one in again.snapshots)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("SnapshotLimitExceeded", ResourceExhausted),
        ("ConcurrentSnapshotLimitExceeded", ResourceExhausted),
        ("SnapshotCreationPerVolumeRateExceeded", Busy),
        ("RequestLimitExceeded", Unavailable),
        ("InvalidInstanceID.NotFound", Unavailable),
    ],
)
def test_what_ec2_refuses_leaves_nothing(
    ebs: EbsBackend, cloud: FakeEc2, volumes: list[Volume], code: str, kind: type[Exception]
) -> None:
    cloud.fail("CreateSnapshots", code)

    with pytest.raises(kind):
        cut(ebs, volumes)
    assert snapshots(cloud) == []


def test_a_final_refusal_of_an_option_deletes_all_members(
    ebs: EbsBackend, cloud: FakeEc2, volumes: list[Volume]
) -> None:
    cloud.fail("EnableFastSnapshotRestores", "FastSnapshotRestoreLimitExceeded")

    with pytest.raises(ResourceExhausted):
        cut(ebs, volumes, fastSnapshotRestoreAvailabilityZones=A)
    assert snapshots(cloud) == []


def test_a_final_refusal_after_which_a_member_stays_is_not_reported_as_final(
    ebs: EbsBackend, cloud: FakeEc2, volumes: list[Volume]
) -> None:
    cloud.fail("CreateTags", "UnauthorizedOperation")
    cloud.fail("DeleteSnapshot", "UnauthorizedOperation", skip=1)

    with pytest.raises(Unavailable, match="could not be deleted"):
        cut(ebs, volumes)
    assert len(snapshots(cloud)) == 1
    assert len(cut(ebs, volumes).snapshots) == 3
    assert len(snapshots(cloud)) == 3


def test_a_failed_member_fails_the_group_and_is_not_replaced(
    ebs: EbsBackend, cloud: FakeEc2, volumes: list[Volume]
) -> None:
    made = cut(ebs, volumes)
    next(
        store.snapshots[made.snapshots[0].handle] for store in fake_ec2_moto.stores() if store.snapshots
    ).status = "error"

    with pytest.raises(FailedPrecondition, match="delete the VolumeGroupSnapshot"):
        cut(ebs, volumes)
    assert not ebs.get_group_snapshot(made.handle).ready
    ebs.delete_group_snapshot(made.handle, {})
    assert snapshots(cloud) == []


# Deletion.


def test_a_member_is_not_deleted_alone_by_any_process(
    connect: Connect, ebs: EbsBackend, cloud: FakeEc2, volumes: list[Volume]
) -> None:
    made = cut(ebs, volumes)

    for process in (ebs, connect(zones=(A,))):
        with pytest.raises(InvalidArgument, match="delete the VolumeGroupSnapshot"):
            process.delete_snapshot(made.snapshots[0].handle, {})
    assert len(snapshots(cloud)) == 3


def test_a_deletion_that_was_interrupted_still_knows_all_members(
    connect: Connect, ebs: EbsBackend, cloud: FakeEc2, volumes: list[Volume]
) -> None:
    """The core compares the members with those of the request before it deletes."""
    made = cut(ebs, volumes)
    cloud.drop("DeleteSnapshot", skip=1, times=math.inf).times = math.inf
    with pytest.raises(Unavailable):
        ebs.delete_group_snapshot(made.handle, {})
    assert len(snapshots(cloud)) == 2
    cloud._faults._all.clear()

    for process in (ebs, connect(zones=(A,))):
        left = process.get_group_snapshot(made.handle)
        assert [(one.handle, one.source) for one in left.snapshots] == [
            (one.handle, one.source) for one in made.snapshots
        ]
        assert not left.ready
    process.delete_group_snapshot(made.handle, {})
    assert snapshots(cloud) == []
    with pytest.raises(NotFound):
        process.delete_group_snapshot(made.handle, {})


def test_members_that_are_not_shown_are_deleted_too(
    connect: Connect, ebs: EbsBackend, cloud: FakeEc2, volumes: list[Volume]
) -> None:
    made = cut(ebs, volumes)
    hidden = made.snapshots[1].handle
    cloud.describes.leaves_out = lambda id: id == hidden

    connect(zones=(A,)).delete_group_snapshot(made.handle, {})
    assert snapshots(cloud) == []


def test_a_locked_member_keeps_the_whole_group(ebs: EbsBackend, cloud: FakeEc2, volumes: list[Volume]) -> None:
    made = cut(ebs, volumes)
    cloud.client().lock_snapshot(SnapshotId=made.snapshots[2].handle, LockMode="governance", LockDuration=1)

    with pytest.raises(FailedPrecondition, match="is locked"):
        ebs.delete_group_snapshot(made.handle, {})
    assert len(snapshots(cloud)) == 3


def test_a_copy_that_a_person_made_of_a_member_is_no_member(
    connect: Connect, ebs: EbsBackend, cloud: FakeEc2, volumes: list[Volume]
) -> None:
    """Backup tools copy tags along."""
    made = cut(ebs, volumes)
    store = next(store for store in fake_ec2_moto.stores() if store.snapshots)
    copy = store.create_snapshot(volumes[0].handle, "copied")
    copy.volume.id = "vol-ffffffff"
    copy.add_tags(tags(cloud, made.snapshots[0].handle))

    other = connect(zones=(A,))
    assert len(other.get_group_snapshot(made.handle).snapshots) == 3
    other.delete_group_snapshot(made.handle, {})
    assert snapshots(cloud) == [copy.id]


def test_groups_of_other_owners_are_not_found(connect: Connect, ebs: EbsBackend, volumes: list[Volume]) -> None:
    made = cut(ebs, volumes)
    other = connect("other", zones=(A,))

    with pytest.raises(NotFound):
        other.get_group_snapshot(made.handle)
    with pytest.raises(NotFound):
        other.delete_group_snapshot(made.handle, {})
    with pytest.raises(NotFound):
        other.find_group_snapshot("group-1")
    for odd in ("", "sgrp-", made.snapshots[0].handle, f"{made.handle}0"):
        with pytest.raises(NotFound):
            ebs.get_group_snapshot(odd)


def test_a_snapshot_and_a_group_may_have_one_name(ebs: EbsBackend, cloud: FakeEc2, volumes: list[Volume]) -> None:
    alone = ebs.create_snapshot(snapshot_request("group-1", volumes[0].handle))
    made = cut(ebs, volumes)

    assert ebs.find_snapshot("group-1").handle == alone.handle
    ebs.delete_group_snapshot(made.handle, {})
    assert snapshots(cloud) == [alone.handle]
