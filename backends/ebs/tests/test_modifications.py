"""Expansion and changes on EBS: one ModifyVolume for simultaneous requests, and retries that wait for it."""

from __future__ import annotations

import time
from typing import Any

import pytest
from csi_multi_ebs.backend import EbsBackend

from csi_multi.contract import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    OutOfRange,
    ResourceExhausted,
    SizeRange,
    Unavailable,
    Volume,
)

from .backend_requests import GIB, GONE, A, Connect, expand_request, modify_request, mutable, row, tags, volume_request
from .fake_ec2 import FOREVER, NOW, Call, FakeEc2, looks
from .thread_helpers import run_together


@pytest.fixture
def made(ebs: EbsBackend) -> Volume:
    """A volume of 10 GiB, gp3."""
    return ebs.create_volume(volume_request(size=SizeRange(required=10 * GIB)))


def shape(cloud: FakeEc2, volume: Volume) -> tuple[int, str, int]:
    """Return size, type and IOPS as EC2 has them."""
    one = row(cloud, volume.handle)
    return one.size, one.volume_type, one.iops


# Together and alone.


def test_size_and_class_that_change_at_once_are_one_modification(
    connect: Connect, cloud: FakeEc2, made: Volume
) -> None:
    ebs = connect(merge_seconds=0.3)

    expansion, modified = run_together(
        lambda: ebs.expand_volume(expand_request(made, 20)),
        lambda: ebs.modify_volume(modify_request(made, iops="4000")),
    )

    assert getattr(expansion, "size", expansion) == 20 * GIB
    assert modified is None
    assert cloud.calls["ModifyVolume"] == 1
    assert shape(cloud, made) == (20, "gp3", 4000)


@pytest.mark.parametrize("grows", [True, False])
def test_a_change_undoes_nothing_that_another_process_changes_meanwhile(
    connect: Connect, cloud: FakeEc2, made: Volume, monkeypatch: pytest.MonkeyPatch, grows: bool
) -> None:
    """Both have looked at the volume before."""
    one, other = connect(), connect()
    changes = {
        True: lambda ebs: ebs.expand_volume(expand_request(made, 20)),
        False: lambda ebs: ebs.modify_volume(modify_request(made, type="io2", iops="2000")),
    }
    join = one._modifications._join

    def join_later(*requested: Any) -> Any:
        changes[not grows](other)
        return join(*requested)

    monkeypatch.setattr(one._modifications, "_join", join_later)

    changes[grows](one)

    assert shape(cloud, made) == (20, "io2", 2000)


def test_a_volume_grows_alone(ebs: EbsBackend, cloud: FakeEc2, made: Volume) -> None:
    assert ebs.expand_volume(expand_request(made, 20)).size == 20 * GIB
    assert (cloud.calls["ModifyVolume"], shape(cloud, made)) == (1, (20, "gp3", 3000))


def test_a_class_changes_alone(ebs: EbsBackend, cloud: FakeEc2, made: Volume) -> None:
    ebs.modify_volume(modify_request(made, type="io2", iops="2000"))

    assert shape(cloud, made) == (10, "io2", 2000)


def test_what_is_so_already_costs_no_modification(ebs: EbsBackend, cloud: FakeEc2, made: Volume) -> None:
    ebs.expand_volume(expand_request(made, 5))
    ebs.modify_volume(modify_request(made, type="gp3", iops="3000"))

    assert cloud.calls["ModifyVolume"] == 0


def test_a_volume_that_is_large_enough_waits_for_nobody(connect: Connect, cloud: FakeEc2, made: Volume) -> None:
    ebs = connect(merge_seconds=60)
    started = time.monotonic()

    ebs.expand_volume(expand_request(made, 10))

    assert time.monotonic() - started < 40


def test_two_volumes_that_change_at_once_do_not_wait_for_each_other(connect: Connect, cloud: FakeEc2) -> None:
    ebs = connect(zones=(A,), merge_seconds=0.1)
    both = [ebs.create_volume(volume_request(name)) for name in ("pvc-1", "pvc-2")]

    done = run_together(*[lambda one=one: ebs.expand_volume(expand_request(one, 2)) for one in both])

    assert [getattr(one, "size", one) for one in done] == [2 * GIB] * 2
    assert cloud.calls["ModifyVolume"] == 2


@pytest.mark.parametrize("wrong", ["here", "there"])
def test_a_bad_class_does_not_keep_the_volume_from_growing(
    connect: Connect, cloud: FakeEc2, made: Volume, wrong: str
) -> None:
    ebs = connect(merge_seconds=0.3)
    iops = "10" if wrong == "here" else "4000"
    cloud.fail("ModifyVolume", "InvalidParameterCombination", when=lambda call: bool(call.get("Iops")))

    expansion, modified = run_together(
        lambda: ebs.expand_volume(expand_request(made, 20)), lambda: ebs.modify_volume(modify_request(made, iops=iops))
    )

    assert getattr(expansion, "size", expansion) == 20 * GIB
    assert isinstance(modified, InvalidArgument)
    assert shape(cloud, made) == (20, "gp3", 3000)


def test_a_class_that_meets_a_quota_does_not_keep_the_volume_from_growing(
    connect: Connect, cloud: FakeEc2, made: Volume
) -> None:
    ebs = connect(merge_seconds=0.3)
    cloud.fail("ModifyVolume", "MaxIOPSLimitExceeded", when=lambda call: bool(call.get("Iops")), times=9)

    expansion, modified = run_together(
        lambda: ebs.expand_volume(expand_request(made, 20)),
        lambda: ebs.modify_volume(modify_request(made, iops="4000")),
    )

    assert getattr(expansion, "size", expansion) == 20 * GIB
    assert isinstance(modified, ResourceExhausted)
    assert shape(cloud, made) == (20, "gp3", 3000)


@pytest.mark.parametrize("limit", ["quota", "type"])
def test_a_size_that_is_refused_does_not_keep_the_class_from_changing(
    connect: Connect, cloud: FakeEc2, made: Volume, limit: str
) -> None:
    ebs = connect(merge_seconds=0.3)
    cloud.fail("ModifyVolume", "VolumeLimitExceeded", when=lambda call: call.get("Size") == "20", times=9)

    expansion, modified = run_together(
        lambda: ebs.expand_volume(expand_request(made, 20 if limit == "quota" else 70_000)),
        lambda: ebs.modify_volume(modify_request(made, iops="4000")),
    )

    assert isinstance(expansion, ResourceExhausted if limit == "quota" else OutOfRange)
    assert modified is None
    assert shape(cloud, made) == (10, "gp3", 4000)


def test_a_bad_class_alone_changes_nothing(ebs: EbsBackend, cloud: FakeEc2, made: Volume) -> None:
    with pytest.raises(InvalidArgument, match="500000"):
        ebs.modify_volume(modify_request(made, iops="500000", tagSpecification_1="team=red"))
    assert (cloud.calls["ModifyVolume"], cloud.calls["CreateTags"]) == (0, 0)


def test_a_size_that_no_volume_has_is_out_of_range(ebs: EbsBackend, made: Volume) -> None:
    with pytest.raises(OutOfRange):
        ebs.expand_volume(expand_request(made, 70_000))


def test_what_is_not_there_or_not_ours_is_not_changed(ebs: EbsBackend, connect: Connect, cloud: FakeEc2) -> None:
    theirs = connect("other").create_volume(volume_request())
    nothing = Volume(handle=GONE, size=GIB, stamp=theirs.stamp)

    for volume, error in ((nothing, NotFound), (theirs, FailedPrecondition)):
        with pytest.raises(error):
            ebs.expand_volume(expand_request(volume, 2))
        with pytest.raises(error):
            ebs.modify_volume(modify_request(volume, iops="4000"))
    assert cloud.calls["ModifyVolume"] == 0


# Changes that go on.


def test_a_change_is_awaited_until_the_volume_has_it(ebs: EbsBackend, cloud: FakeEc2, made: Volume) -> None:
    cloud.takes.modifying = looks(3)
    cloud.takes.optimizing = FOREVER

    assert ebs.expand_volume(expand_request(made, 20)).size == 20 * GIB
    assert shape(cloud, made)[0] == 20


def test_a_change_that_a_dead_process_began_is_awaited(connect: Connect, cloud: FakeEc2, made: Volume) -> None:
    cloud.takes.modifying = looks(4)
    cloud.drop("ModifyVolume", after_effect=True)
    with pytest.raises(Unavailable):
        connect().expand_volume(expand_request(made, 20))

    assert connect().expand_volume(expand_request(made, 20)).size == 20 * GIB
    assert shape(cloud, made)[0] == 20


def test_a_change_that_outlasts_the_callers_patience_goes_on(connect: Connect, cloud: FakeEc2, made: Volume) -> None:
    cloud.takes.modifying = FOREVER

    with pytest.raises(Unavailable, match="is still in progress"):
        connect(wait_seconds=2).expand_volume(expand_request(made, 20))


def test_a_repeated_call_of_the_client_finds_what_the_first_did(connect: Connect, cloud: FakeEc2, made: Volume) -> None:
    ebs = connect(max_attempts=3)
    cloud.fail("ModifyVolume", "InternalError", after_effect=True)
    cloud.takes.modifying = looks(2)

    assert ebs.expand_volume(expand_request(made, 20)).size == 20 * GIB


def test_what_ec2_still_tells_of_the_last_change_is_not_taken_for_this_one(
    ebs: EbsBackend, cloud: FakeEc2, made: Volume
) -> None:
    ebs.expand_volume(expand_request(made, 20))
    (before,) = row(cloud, made.handle).modifications
    seen: list[object] = []

    def late(call: Call) -> bool:
        """Let EC2 show the last change to the first two looks."""
        records = row(cloud, made.handle).modifications
        seen.append(records[0] if not seen else seen[0])
        records[:] = [before if len(seen) < 3 else seen[0]]
        return False

    cloud.fail("DescribeVolumesModifications", "never", when=late)

    assert ebs.expand_volume(expand_request(made, 30)).size == 30 * GIB
    assert len(seen) == 3


def test_a_change_that_failed_is_told_with_the_reason_to_try_again(
    ebs: EbsBackend, cloud: FakeEc2, made: Volume
) -> None:
    def fail(volume: str, _size: int) -> None:
        row(cloud, volume).modifications[-1].modification_state = "failed"

    cloud.on_modified = fail

    with pytest.raises(Unavailable, match=r"could not change volume.*try again"):
        ebs.expand_volume(expand_request(made, 20))


# EC2's pace.


def test_the_cooldown_says_when_to_come_back(ebs: EbsBackend, cloud: FakeEc2, made: Volume) -> None:
    cloud.limits.modifications = 1
    ebs.expand_volume(expand_request(made, 20))

    with pytest.raises(FailedPrecondition, match=r"try again some hours, at most a day.*RateExceeded"):
        ebs.expand_volume(expand_request(made, 30))
    cloud.advance(24 * 3600)
    assert ebs.expand_volume(expand_request(made, 30)).size == 30 * GIB


def test_a_change_before_the_last_one_is_completed_says_what_it_waits_for(
    ebs: EbsBackend, cloud: FakeEc2, made: Volume
) -> None:
    cloud.takes.optimizing = FOREVER
    ebs.expand_volume(expand_request(made, 20))

    with pytest.raises(FailedPrecondition, match=r"change to 20 GiB of type gp3 is optimizing.*try again when"):
        ebs.modify_volume(modify_request(made, iops="4000"))
    assert ebs.expand_volume(expand_request(made, 20)).size == 20 * GIB


def test_a_change_of_throughput_is_not_taken_for_another_one(ebs: EbsBackend, cloud: FakeEc2, made: Volume) -> None:
    cloud.takes.optimizing = FOREVER
    ebs.modify_volume(modify_request(made, throughput="200"))

    with pytest.raises(FailedPrecondition, match="try again when"):
        ebs.modify_volume(modify_request(made, throughput="250"))


def test_a_change_that_failed_is_not_awaited_when_ec2_refuses_to_begin_it_again(
    ebs: EbsBackend, cloud: FakeEc2, made: Volume
) -> None:
    def fail(volume: str, _size: int) -> None:
        row(cloud, volume).size = 10
        row(cloud, volume).modifications[-1].modification_state = "failed"

    cloud.on_modified = fail
    with pytest.raises(Unavailable, match="could not change volume"):
        ebs.expand_volume(expand_request(made, 20))

    with pytest.raises(FailedPrecondition, match="cannot be changed now"):
        ebs.expand_volume(expand_request(made, 20))


def test_a_volume_that_shows_its_new_size_late_is_waited_for(ebs: EbsBackend, cloud: FakeEc2, made: Volume) -> None:
    looked: list[Call] = []

    def shrink(volume: str, _size: int) -> None:
        row(cloud, volume).size = 10

        def late(call: Call) -> bool:
            looked.append(call)
            row(cloud, volume).size = 20 if len(looked) > 2 else 10
            return False

        cloud.fail("DescribeVolumes", "never", when=late)

    cloud.on_modified = shrink

    assert ebs.expand_volume(expand_request(made, 20)).size == 20 * GIB
    assert len(looked) == 3


# Tags.


def test_tags_are_set_and_removed_without_a_modification(ebs: EbsBackend, cloud: FakeEc2, made: Volume) -> None:
    ebs.modify_volume(modify_request(made, tagSpecification_1="team=red", tagSpecification_2="tier=gold"))
    ebs.modify_volume(modify_request(made, tagSpecification_1="team=blue", tagDeletion_1="tier"))

    found = tags(cloud, made.handle)
    assert (found["team"], "tier" in found) == ("blue", False)
    assert cloud.calls["ModifyVolume"] == 0
    assert ebs.get_volume(made.handle).stamp == made.stamp


def test_tags_that_are_so_already_cost_no_call(ebs: EbsBackend, cloud: FakeEc2, made: Volume) -> None:
    for _ in range(2):
        ebs.modify_volume(modify_request(made, tagSpecification_1="team=red"))

    assert cloud.calls["CreateTags"] == 1


def test_our_own_tags_are_not_for_classes(ebs: EbsBackend, cloud: FakeEc2, made: Volume) -> None:
    with pytest.raises(InvalidArgument, match="is reserved for the driver"):
        ebs.modify_volume(modify_request(made, tagDeletion_1="csi-multi/owner"))


def test_the_iops_per_gib_of_a_class_are_kept_up_when_the_volume_grows(ebs: EbsBackend, cloud: FakeEc2) -> None:
    kept = mutable(type="io2", iopsPerGB="100", allowAutoIOPSIncreaseOnModify="true")
    made = ebs.create_volume(volume_request(size=SizeRange(required=10 * GIB), mutable=kept))
    cloud.takes.modifying = NOW

    ebs.expand_volume(expand_request(made, 20))

    assert shape(cloud, made) == (20, "io2", 2000)


# What ValidateVolumeCapabilities asks.


@pytest.mark.parametrize(
    "given",
    [
        {"iops": "500000"},
        {"type": "gp2", "iops": "3000"},
        {"throughput": "2000"},
        {"type": "st1"},  # too small
        {"tagSpecification_1": "csi-multi/owner=me"},
        {"tagSpecification_1": "no value"},
    ],
)
def test_what_a_change_refuses_is_not_confirmed_for_the_volume(
    ebs: EbsBackend, cloud: FakeEc2, made: Volume, given: dict[str, str]
) -> None:
    reason = ebs.unmodifiable(made.handle, mutable(**given))

    with pytest.raises(InvalidArgument) as refusal:
        ebs.modify_volume(modify_request(made, **given))
    assert reason == str(refusal.value) != ""
    assert (cloud.calls["ModifyVolume"], cloud.calls["CreateTags"]) == (0, 0)


def test_what_a_change_does_is_confirmed_for_the_volume_and_changes_nothing(
    ebs: EbsBackend, cloud: FakeEc2, made: Volume
) -> None:
    assert ebs.unmodifiable(made.handle, mutable(iops="4000", tagSpecification_1="team=red")) == ""
    assert shape(cloud, made) == (10, "gp3", 3000)
    assert "team" not in tags(cloud, made.handle)
    with pytest.raises(NotFound):
        ebs.unmodifiable(GONE, mutable(iops="4000"))
