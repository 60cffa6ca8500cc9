"""Creation of volumes on EBS: one per name whatever fails, in a zone with capacity, encrypted as requested."""

from __future__ import annotations

import time
from typing import Any

import pytest
from csi_multi_ebs import pending_creates
from csi_multi_ebs.backend import EbsBackend

from csi_multi.contract import (
    AlreadyExists,
    Busy,
    FailedPrecondition,
    NotFound,
    OutOfRange,
    PermissionDenied,
    ResourceExhausted,
    SizeRange,
    Unavailable,
    Volume,
    VolumeRequest,
)
from csi_multi.core import idempotent

from . import fake_ec2_moto
from .backend_requests import (
    GIB,
    GONE,
    A,
    B,
    C,
    Connect,
    parameters,
    row,
    snapshot,
    snapshot_request,
    tags,
    tokens,
    topology,
    volume,
    volume_request,
)
from .fake_ec2 import FOREVER, FakeEc2, seconds
from .thread_helpers import run_together


@pytest.fixture
def ebs(connect: Connect) -> EbsBackend:
    return connect()


def made(ebs: EbsBackend, request: VolumeRequest) -> Volume:
    """Make a volume as the core does, which knows what to ask after AlreadyExists."""
    return idempotent.create_volume(ebs, request, "node-1")


def delete(ebs: EbsBackend, volume: Volume) -> None:
    ebs.delete_volume(volume.handle, {})


# One call, and one token per name.


def test_a_volume_costs_one_creation_and_nothing_is_looked_up_before(ebs: EbsBackend, cloud: FakeEc2) -> None:
    ebs.create_volume(volume_request("pvc-0"))
    cloud.seen.clear()

    ebs.create_volume(volume_request())

    assert [call.action for call in cloud.seen] == ["CreateVolume", "DescribeVolumes"]


def test_any_process_makes_the_same_volume_for_a_name(connect: Connect, cloud: FakeEc2) -> None:
    first = connect().create_volume(volume_request())

    assert connect().create_volume(volume_request()) == first
    assert len(set(tokens(cloud))) == 1


def test_names_owners_and_instances_have_tokens_of_their_own(connect: Connect, cloud: FakeEc2) -> None:
    for instance, name in (("cloud", "pvc-1"), ("cloud", "pvc-2"), ("other", "pvc-1")):
        connect(instance).create_volume(volume_request(name))

    assert (len(tokens(cloud)), len(set(tokens(cloud)))) == (3, 3)
    assert len(cloud.everything()) == 3


def test_a_creation_whose_answer_is_lost_is_found_by_the_retry(ebs: EbsBackend, cloud: FakeEc2) -> None:
    cloud.drop("CreateVolume", after_effect=True)

    with pytest.raises(Unavailable):
        ebs.create_volume(volume_request())
    volume = ebs.create_volume(volume_request())

    assert cloud.everything() == (volume.handle,)


def test_throttled_creations_are_repeated_by_the_client(connect: Connect, cloud: FakeEc2) -> None:
    cloud.fail("CreateVolume", "RequestLimitExceeded")
    cloud.fail("DescribeVolumes", "RequestLimitExceeded")

    volume = connect(max_attempts=3).create_volume(volume_request())

    assert cloud.everything() == (volume.handle,)
    assert (len(tokens(cloud)), len(set(tokens(cloud)))) == (2, 1)


def test_throttling_that_lasts_is_no_final_answer(ebs: EbsBackend, cloud: FakeEc2) -> None:
    cloud.fail("CreateVolume", "RequestLimitExceeded")

    with pytest.raises(Unavailable, match="RequestLimitExceeded"):
        made(ebs, volume_request())


@pytest.mark.parametrize("other", [{"size": SizeRange(required=2 * GIB)}, {"digest": "ef56"}])
def test_a_name_asked_for_otherwise_is_taken(ebs: EbsBackend, cloud: FakeEc2, other: dict[str, Any]) -> None:
    first = ebs.create_volume(volume_request(parameters=parameters(type="gp3")))
    changes = {"parameters": parameters(type="gp2"), **other}

    with pytest.raises(AlreadyExists):
        made(ebs, volume_request(**changes))
    assert cloud.everything() == (first.handle,)
    assert cloud.calls["CreateVolume"] == 2


def test_a_repeat_whose_tags_have_changed_meanwhile_finds_its_volume(connect: Connect, cloud: FakeEc2) -> None:
    first = connect().create_volume(volume_request())

    assert made(connect(extra_tags={"team": "red"}), volume_request()) == first
    assert cloud.everything() == (first.handle,)


def test_a_volume_in_the_making_is_no_answer_to_a_repeat_yet(connect: Connect, cloud: FakeEc2) -> None:
    cloud.takes.creating = seconds(3600)
    with pytest.raises(Unavailable):
        connect(wait_seconds=2).create_volume(volume_request())
    later = connect(extra_tags={"team": "red"})

    with pytest.raises(Busy, match="being created"):
        made(later, volume_request())
    cloud.advance(3601)
    volume = made(later, volume_request())
    assert cloud.everything() == (volume.handle,)


# Burnt tokens.


def test_a_volume_that_vanished_is_made_again_with_the_next_token(ebs: EbsBackend, cloud: FakeEc2) -> None:
    cloud.fail_next_volume("vanish")

    volume = ebs.create_volume(volume_request())

    assert cloud.everything() == (volume.handle,)
    assert len(set(tokens(cloud))) == 2


def test_a_volume_in_error_is_deleted_and_the_retry_makes_another(ebs: EbsBackend, cloud: FakeEc2) -> None:
    cloud.fail_next_volume("error")

    with pytest.raises(Unavailable, match="KMS key"):
        ebs.create_volume(volume_request())
    assert cloud.everything() == ()
    volume = ebs.create_volume(volume_request())
    assert cloud.everything() == (volume.handle,)


def test_the_next_process_passes_over_burnt_tokens_too(connect: Connect, cloud: FakeEc2) -> None:
    cloud.fail_next_volume("error")
    with pytest.raises(Unavailable):
        connect().create_volume(volume_request())

    volume = connect().create_volume(volume_request())

    assert cloud.everything() == (volume.handle,)


def test_after_many_failures_the_next_hour_has_a_token(
    ebs: EbsBackend, cloud: FakeEc2, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(25):
        cloud.fail_next_volume("error")
    for _ in range(25):
        with pytest.raises(Unavailable):
            ebs.create_volume(volume_request())
    cloud.planned_failures.clear()
    assert len(set(tokens(cloud))) == pending_creates.ATTEMPTS + 1

    later = time.time() + 3600
    monkeypatch.setattr(time, "time", lambda: later)

    assert cloud.everything() == ()
    volume = ebs.create_volume(volume_request())
    assert cloud.everything() == (volume.handle,)


def test_a_name_can_be_used_again_after_deletion(ebs: EbsBackend, cloud: FakeEc2) -> None:
    first = ebs.create_volume(volume_request())
    delete(ebs, first)

    second = ebs.create_volume(volume_request(size=SizeRange(required=2 * GIB)))

    assert second.handle != first.handle
    assert cloud.everything() == (second.handle,)


def test_a_name_can_be_used_again_by_the_next_process(connect: Connect, cloud: FakeEc2) -> None:
    ebs = connect()
    first = ebs.create_volume(volume_request())
    delete(ebs, first)

    second = connect().create_volume(volume_request())

    assert second.handle != first.handle
    assert cloud.everything() == (second.handle,)


# EC2 shows late what it has made, and refuses at the quota's edge what it has done.


def test_a_volume_that_is_invisible_for_a_while_is_not_made_twice(connect: Connect, cloud: FakeEc2) -> None:
    ebs = connect(consistency_seconds=5)
    cloud.takes.appearing = seconds(0.3)

    volume = ebs.create_volume(volume_request())

    assert cloud.everything() == (volume.handle,)
    assert len(tokens(cloud)) == 1


def test_a_volume_that_stays_invisible_is_asked_for_again_with_its_token(connect: Connect, cloud: FakeEc2) -> None:
    cloud.takes.appearing = seconds(5)
    with pytest.raises(Unavailable, match="being created"):
        connect(consistency_seconds=60, wait_seconds=2).create_volume(volume_request())

    volume = connect(consistency_seconds=60).create_volume(volume_request())

    assert cloud.everything() == (volume.handle,)
    assert len(set(tokens(cloud))) == 1


def test_a_volume_that_takes_longer_than_the_caller_listens_is_waited_for_again(
    ebs: EbsBackend, cloud: FakeEc2
) -> None:
    ebs.check()
    cloud.takes.creating = seconds(1)
    soon = volume_request(deadline=time.monotonic() + 1.5)

    with pytest.raises(Unavailable, match="being created"):
        ebs.create_volume(soon)
    assert ebs.create_volume(volume_request()).handle in cloud.everything()
    assert len(cloud.everything()) == 1


def test_at_the_quotas_edge_a_volume_that_was_made_is_found(ebs: EbsBackend, cloud: FakeEc2) -> None:
    cloud.limits.volumes = 1
    cloud.drop("CreateVolume", after_effect=True)
    with pytest.raises(Unavailable):
        made(ebs, volume_request())

    volume = made(ebs, volume_request())

    assert cloud.everything() == (volume.handle,)


def test_at_the_quotas_edge_nothing_is_final_while_ec2_may_not_show_it_yet(connect: Connect, cloud: FakeEc2) -> None:
    ebs = connect(consistency_seconds=2)
    cloud.limits.volumes = 0

    with pytest.raises(Unavailable, match="does not show it yet"):
        made(ebs, volume_request())
    time.sleep(2)
    with pytest.raises(ResourceExhausted, match="VolumeLimitExceeded"):
        made(ebs, volume_request())


def test_a_doubt_does_not_outlive_the_volume_that_was_made_after_it(connect: Connect, cloud: FakeEc2) -> None:
    ebs = connect(consistency_seconds=2)
    cloud.limits.volumes = 0
    with pytest.raises(Unavailable):
        made(ebs, volume_request())
    cloud.limits.volumes = None
    delete(ebs, made(ebs, volume_request()))
    time.sleep(2)

    cloud.limits.volumes = 0
    with pytest.raises(Unavailable, match="does not show it yet"):
        made(ebs, volume_request())


def test_a_refused_look_after_the_creation_is_not_final(ebs: EbsBackend, cloud: FakeEc2) -> None:
    cloud.fail("DescribeVolumes", "UnauthorizedOperation", message="You are not authorized", status=403)

    with pytest.raises(Unavailable, match="ec2:DescribeVolumes"):
        ebs.create_volume(volume_request())
    volume = ebs.create_volume(volume_request())
    assert cloud.everything() == (volume.handle,)


def test_a_creation_that_is_not_allowed_is_final_and_names_the_right(ebs: EbsBackend, cloud: FakeEc2) -> None:
    cloud.fail("CreateVolume", "UnauthorizedOperation", message="You are not authorized", status=403)

    with pytest.raises(PermissionDenied, match="ec2:CreateVolume"):
        made(ebs, volume_request())


# Where.


def test_a_full_zone_is_passed_over_at_once(connect: Connect, cloud: FakeEc2) -> None:
    ebs = connect(max_attempts=8)
    cloud.limits.full_zones = {A, B}

    volume = ebs.create_volume(volume_request(topology=topology(A, B, C)))

    assert volume.topology == ({"zone": C},)
    assert cloud.calls["CreateVolume"] == 3


def test_when_all_zones_are_full_each_is_named(ebs: EbsBackend, cloud: FakeEc2) -> None:
    cloud.limits.full_zones = {A, B, C}

    with pytest.raises(ResourceExhausted, match=f"'{B}'.*; .*'{A}'") as told:
        made(ebs, volume_request(topology=topology(B, A)))
    assert C not in str(told.value)


# What.


# From snapshots and volumes.


def test_a_snapshot_is_restored_to_a_larger_volume(ebs: EbsBackend, cloud: FakeEc2) -> None:
    origin = ebs.create_volume(volume_request("pvc-0"))
    source = snapshot(ebs.create_snapshot(snapshot_request("snap-1", origin.handle)).handle)
    ebs.get_snapshot(source.handle)

    larger = made(ebs, volume_request("pvc-1", source=source, size=SizeRange(required=5 * GIB)))
    alike = made(ebs, volume_request("pvc-2", source=source, parameters=parameters(volumeInitializationRate="200")))

    assert (larger.size, alike.size) == (5 * GIB, GIB)
    assert row(cloud, alike.handle).volume_initialization_rate == "200"
    assert larger.stamp.source == source
    with pytest.raises(OutOfRange):
        made(ebs, volume_request("pvc-3", source=source, size=SizeRange(limit=GIB // 2)))


def test_a_pending_snapshot_is_restored_later(ebs: EbsBackend, cloud: FakeEc2) -> None:
    origin = ebs.create_volume(volume_request("pvc-0"))
    cloud.takes.snapshot = seconds(3600)
    source = snapshot(ebs.create_snapshot(snapshot_request("snap-1", origin.handle)).handle)

    with pytest.raises(Busy, match="pending"):
        made(ebs, volume_request("pvc-1", source=source))
    cloud.advance(3601)
    assert made(ebs, volume_request("pvc-1", source=source)).size == GIB


def test_a_snapshot_that_failed_is_never_restored(ebs: EbsBackend, cloud: FakeEc2) -> None:
    origin = ebs.create_volume(volume_request("pvc-0"))
    source = snapshot(ebs.create_snapshot(snapshot_request("snap-1", origin.handle)).handle)
    fail_snapshot(source.handle)

    with pytest.raises(FailedPrecondition, match="has failed"):
        made(ebs, volume_request("pvc-1", source=source))


def test_a_source_that_is_gone_is_not_found_and_a_copy_made_of_it_before_is(ebs: EbsBackend, cloud: FakeEc2) -> None:
    origin = ebs.create_volume(volume_request("pvc-0", topology=topology(A)))
    wish = volume_request("pvc-1", source=volume(origin.handle), topology=topology(A))
    copy = made(ebs, wish)
    delete(ebs, origin)

    assert made(ebs, wish) == copy
    with pytest.raises(NotFound):
        made(ebs, volume_request("pvc-2", source=volume(origin.handle)))
    with pytest.raises(NotFound):
        made(ebs, volume_request("pvc-2", source=snapshot("snap-00000000000000000")))


def test_a_clone_is_in_the_zone_of_its_source_or_nowhere(ebs: EbsBackend, cloud: FakeEc2) -> None:
    origin = ebs.create_volume(volume_request("pvc-0", topology=topology(B)))

    clone = made(ebs, volume_request("pvc-1", source=volume(origin.handle), size=SizeRange(required=3 * GIB)))

    assert (clone.topology, clone.size) == (({"zone": B},), 3 * GIB)
    assert row(cloud, clone.handle).source_volume_id == origin.handle
    with pytest.raises(ResourceExhausted, match="only within its zone"):
        made(ebs, volume_request("pvc-2", source=volume(origin.handle), topology=topology(A)))


def test_a_clone_whose_answer_is_lost_is_made_once(ebs: EbsBackend, cloud: FakeEc2) -> None:
    origin = ebs.create_volume(volume_request("pvc-0"))
    cloud.drop("CopyVolumes", after_effect=True)
    wish = volume_request("pvc-1", source=volume(origin.handle))

    with pytest.raises(Unavailable):
        made(ebs, wish)
    copy = made(ebs, wish)
    assert cloud.everything() == tuple(sorted((origin.handle, copy.handle)))


def test_a_copy_is_not_made_beside_an_older_volume_of_its_name(ebs: EbsBackend, cloud: FakeEc2) -> None:
    older = ebs.create_volume(volume_request("pvc-1"))
    wish = volume_request("pvc-1", source=volume(older.handle), topology=topology(older.topology[0]["zone"]))

    with pytest.raises(AlreadyExists, match="from another content source"):
        made(ebs, wish)
    assert cloud.everything() == (older.handle,)
    assert cloud.calls["CopyVolumes"] == 1


# Many at once.


def test_many_creations_share_their_looks(connect: Connect, cloud: FakeEc2) -> None:
    ebs = connect(poll_seconds=0.25, wait_seconds=30, max_attempts=3)
    cloud.takes.creating = seconds(0.5)

    done = run_together(*[lambda name=name: ebs.create_volume(volume_request(f"pvc-{name}")) for name in range(40)])

    assert len({one.handle for one in done if isinstance(one, Volume)}) == 40
    assert cloud.calls["CreateVolume"] == 40
    assert cloud.calls["DescribeAvailabilityZones"] == 1
    assert cloud.calls["DescribeVolumes"] <= 15


def test_one_bad_id_does_not_spoil_the_lookups_of_others(ebs: EbsBackend, cloud: FakeEc2) -> None:
    volumes = [ebs.create_volume(volume_request(f"pvc-{number}")) for number in range(5)]
    cloud.calls.clear()
    looks_up = [lambda handle=one.handle: ebs.get_volume(handle) for one in volumes]

    *found, lost, odd = run_together(*looks_up, lambda: ebs.get_volume(GONE), lambda: ebs.get_volume("pvc-7"))

    assert found == volumes
    assert isinstance(lost, NotFound)
    assert isinstance(odd, NotFound)
    assert cloud.calls["DescribeVolumes"] <= 4


# Deletion.


def test_only_what_carries_our_tags_is_deleted(connect: Connect, cloud: FakeEc2) -> None:
    theirs = connect("other").create_volume(volume_request())
    by_hand = cloud.client().create_volume(AvailabilityZone=A, Size=1)["VolumeId"]
    before = cloud.everything()

    for handle in (theirs.handle, by_hand):
        with pytest.raises(FailedPrecondition, match=r"does not belong to this driver.*nothing was changed"):
            connect().delete_volume(handle, {})
    assert cloud.everything() == before


def test_a_volume_whose_tags_were_torn_is_not_touched(connect: Connect, cloud: FakeEc2) -> None:
    volume = connect(zones=(A,)).create_volume(volume_request())
    cloud.client().delete_tags(Resources=[volume.handle], Tags=[{"Key": "csi-multi/stamp.0"}])

    with pytest.raises(FailedPrecondition):
        delete(connect(), volume)
    assert "csi-multi/owner" in tags(cloud, volume.handle)


def test_a_volume_in_error_can_be_deleted(ebs: EbsBackend, cloud: FakeEc2) -> None:
    volume = ebs.create_volume(volume_request())
    row(cloud, volume.handle).phase = "error"

    delete(ebs, volume)

    assert cloud.everything() == ()


def test_a_volume_in_the_making_is_deleted_later(ebs: EbsBackend, cloud: FakeEc2) -> None:
    volume = ebs.create_volume(volume_request())
    row(cloud, volume.handle).phase = "creating"

    with pytest.raises(Unavailable, match="creating"):
        delete(ebs, volume)


def test_a_volume_that_still_shows_after_its_deletion_is_gone(ebs: EbsBackend, cloud: FakeEc2) -> None:
    cloud.takes.vanishing = FOREVER
    volume = ebs.create_volume(volume_request())
    delete(ebs, volume)

    with pytest.raises(NotFound):
        delete(ebs, volume)
    with pytest.raises(NotFound):
        ebs.get_volume(volume.handle)
    with pytest.raises(NotFound):
        ebs.find_volume("pvc-1")
    assert ebs.create_volume(volume_request()).handle != volume.handle


def test_a_deleted_volume_that_ec2_still_shows_as_it_was_is_not_given_to_the_next_of_its_name(
    ebs: EbsBackend, cloud: FakeEc2, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud.takes.vanishing = FOREVER
    first = ebs.create_volume(volume_request())
    delete(ebs, first)
    monkeypatch.setattr(fake_ec2_moto.Volume, "status", "available")

    second = made(ebs, volume_request())

    assert second.handle != first.handle
    assert cloud.everything() == (second.handle,)
    assert ebs.find_volume("pvc-1") == second


def test_zones_are_asked_for_again_after_five_minutes(
    ebs: EbsBackend, cloud: FakeEc2, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("pvc-1", "pvc-2"):
        ebs.create_volume(volume_request(name))
    assert cloud.calls["DescribeAvailabilityZones"] == 1
    real = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: real() + 301)

    ebs.create_volume(volume_request("pvc-3"))

    assert cloud.calls["DescribeAvailabilityZones"] == 2


def test_zones_that_cannot_be_asked_for_again_are_believed_on(
    ebs: EbsBackend, cloud: FakeEc2, monkeypatch: pytest.MonkeyPatch
) -> None:
    ebs.create_volume(volume_request("pvc-1"))
    real = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: real() + 301)
    cloud.fail("DescribeAvailabilityZones", "InternalError")

    assert ebs.create_volume(volume_request("pvc-2"))


def test_a_hung_answer_about_zones_holds_nobody_up_beyond_the_deadline(connect: Connect, cloud: FakeEc2) -> None:
    ebs = connect(wait_seconds=1)
    cloud.slow("DescribeAvailabilityZones", 60)
    started = time.monotonic()

    done = run_together(*[lambda name=name: made(ebs, volume_request(f"pvc-{name}")) for name in range(4)])

    assert time.monotonic() - started < 40
    assert all(isinstance(one, Exception) for one in done)
    assert cloud.calls["DescribeAvailabilityZones"] == 1


def fail_snapshot(handle: str) -> None:
    next(store.snapshots[handle] for store in fake_ec2_moto.stores() if handle in store.snapshots).status = "error"
