"""Group snapshots over a pool in memory: all members or none, whatever fails or dies between."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import count

import pytest
from csi_multi_lvm.activation import Activation
from csi_multi_lvm.backend import LvmBackend
from csi_multi_lvm.client import Client
from csi_multi_lvm.config import Config

from csi_multi.contract import (
    AlreadyExists,
    Busy,
    FailedPrecondition,
    GroupSnapshot,
    GroupSnapshotRequest,
    InUse,
    InvalidArgument,
    NotFound,
    PageRequest,
    ResourceExhausted,
    StorageError,
    Unavailable,
    Volume,
)

from .fake_lvm import GROUP
from .fake_pool import POOL, FakePool, backend_over, fake_pool
from .volume_steps import Died, copy, create, snapshot, stamp

__all__ = ["fake_pool"]
NAMES = ("one", "two")


def group(backend: LvmBackend, *sources: Volume, name: str = "g") -> GroupSnapshot:
    request = GroupSnapshotRequest(stamp=stamp(backend, name), sources=tuple(one.handle for one in sources))
    return backend.create_group_snapshot(request)


def volumes(lvm: FakePool, *, active: Sequence[str] = NAMES) -> list[Volume]:
    """Create volumes, each with its name as its data; of these names, the device exists."""
    backend = backend_over(lvm)
    made = [create(backend, name, type="thin") for name in NAMES]
    for name in NAMES:
        lvm.write(f"csi-{name}", name)
        if name in active:
            lvm.run("lvm", "lvchange", "-ay", "-K", f"vg0/csi-{name}")
    return made


def listed(backend: LvmBackend) -> list[str]:
    return [one.group for one in backend.list_snapshots(PageRequest()).items]


def snapshots_left(lvm: FakePool) -> list[str]:
    return [name for name in lvm.volumes if name.startswith("csis-")]


@pytest.mark.parametrize("active", [NAMES, ("one",), ()], ids=["all in use", "one in use", "none in use"])
def test_members_hold_what_their_volumes_held_at_one_moment(fake_pool: FakePool, active: Sequence[str]) -> None:
    """What is written after lvm has created the first member is in all members, or in none."""
    made = volumes(fake_pool, active=active)
    numbers = count(1)

    def write(_words: Sequence[str]) -> None:
        for name in NAMES:
            if name in active and f"csi-{name}" not in fake_pool.suspended:
                fake_pool.write(f"csi-{name}", f"{name} {next(numbers)}")

    fake_pool.after = write
    found = group(backend_over(fake_pool), *made)
    fake_pool.after = lambda _words: None

    held = [fake_pool.content("csis-" + one.handle.rpartition("/")[2]).split() for one in found.snapshots]
    assert [name for name, *_ in held] == list(NAMES)
    if active == NAMES:
        assert abs(int(held[0][1]) - int(held[1][1])) == 1
    assert [len(one) for one in held] == [1 + (name in active) for name in NAMES]
    assert (fake_pool.suspended, [one.group for one in found.snapshots]) == (set(), [found.handle] * 2)
    assert backend_over(fake_pool).get_group_snapshot(found.handle) == found
    assert not fake_pool.volumes["pool0"].active, "the pool is active only as long as that is needed"


def test_a_volume_that_is_opened_while_the_group_is_cut_ends_it(fake_pool: FakePool) -> None:
    made = volumes(fake_pool, active=("one",))

    def open_it(words: Sequence[str]) -> None:
        if words[:2] == ("dmsetup", "message") and "create_snap" in words[-1]:
            fake_pool._appear(fake_pool.volumes["csi-two"])

    fake_pool.before = open_it
    with pytest.raises(Unavailable, match="was resumed, or opened"):
        group(backend_over(fake_pool), *made)

    assert (snapshots_left(fake_pool), fake_pool.suspended) == ([], set())


def test_a_volume_that_another_process_resumes_ends_the_group(fake_pool: FakePool) -> None:
    made = volumes(fake_pool)

    def resume(words: Sequence[str]) -> None:
        if "create_snap" in words[-1]:
            fake_pool.suspended.clear()

    fake_pool.before = resume
    with pytest.raises(Unavailable, match="was resumed, or opened"):
        group(backend_over(fake_pool), *made)

    assert snapshots_left(fake_pool) == []


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("deletes", [False, True], ids=["creation", "deletion"])
def test_a_group_is_whole_or_absent_after_a_death_at_any_command(
    fake_pool: FakePool, when: str, deletes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next process resumes what is suspended, removes what is left, and finishes what is asked again."""
    monkeypatch.setattr("csi_multi_lvm.activation.SUSPENSION_SECONDS", 0.0)
    made = volumes(fake_pool)
    for moment in count(1):
        backend = backend_over(fake_pool)
        found = group(backend, *made, name=f"g{moment}") if deletes else None
        left, dead = [moment], [False]

        def die(_words: Sequence[str], left: list[int] = left, dead: list[bool] = dead) -> None:
            left[0] -= 1
            if dead[0] or left[0] == 0:
                dead[0] = True
                raise Died

        setattr(fake_pool, when, die)
        with suppress(Died):
            backend.delete_group_snapshot(found.handle, {}) if found else group(backend, *made, name=f"g{moment}")
        setattr(fake_pool, when, lambda _words: None)
        if not dead[0]:
            break

        again = backend_over(fake_pool)
        assert len(listed(again)) in (0, 2)
        again.check()
        again.resume()
        assert (fake_pool.suspended, len(snapshots_left(fake_pool)) in (0, 2)) == (set(), True)
        try:
            group(again, *made, name=f"g{moment}")
        except AlreadyExists:
            assert len(listed(again)) == 2
        handle = again.find_group_snapshot(f"g{moment}").handle
        again.delete_group_snapshot(handle, {})
        assert snapshots_left(fake_pool) == []
    assert moment > 4


def test_a_retry_resumes_what_a_dead_process_left_suspended_before_lvm_makes_a_snapshot(
    fake_pool: FakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("csi_multi_lvm.activation.SUSPENSION_SECONDS", 0.0)
    one, two = volumes(fake_pool)
    backend = backend_over(fake_pool)
    for ask in (
        lambda: group(backend, one, two),
        lambda: snapshot(backend, "snap", one),
        lambda: copy(backend, "three", one, type="thin"),
    ):
        fake_pool.suspended |= {"csi-one", "csi-two"}
        ask()
        assert "csi-one" not in fake_pool.suspended


@pytest.mark.parametrize("at", ["first", "second", "cut"])
def test_a_full_pool_leaves_nothing(fake_pool: FakePool, at: str) -> None:
    made = volumes(fake_pool)
    seen = count()

    def fill(words: Sequence[str]) -> None:
        created = words[0] == "lvcreate" and next(seen) == ("first", "second").index(at) if at != "cut" else False
        fake_pool.full = fake_pool.full or created or (at == "cut" and words[1] == "suspend")

    fake_pool.before = fill
    with pytest.raises(StorageError) as error:
        group(backend_over(fake_pool), *made)

    assert isinstance(error.value, Unavailable if at == "cut" else ResourceExhausted)
    assert (snapshots_left(fake_pool), fake_pool.suspended) == ([], set())


def test_a_group_that_cannot_be_removed_after_a_failure_is_retried(fake_pool: FakePool) -> None:
    made = volumes(fake_pool)

    def fail(words: Sequence[str]) -> None:
        if words[0] in ("lvremove", "dmsetup"):
            raise Unavailable("the disk does not answer")

    fake_pool.before = fail
    with pytest.raises(Busy, match="incomplete, and cannot be removed yet"):
        group(backend_over(fake_pool), *made)

    fake_pool.before = lambda _words: None
    assert listed(backend_over(fake_pool)) == []
    assert len(group(backend_over(fake_pool), *made).snapshots) == 2
    assert len(snapshots_left(fake_pool)) == 2


def test_a_group_whose_removal_has_begun_is_not_completed(fake_pool: FakePool) -> None:
    made = volumes(fake_pool)

    def mark(words: Sequence[str]) -> None:
        if words[0] == "lvchange" and "--deltag" in words:
            fake_pool.volumes[words[-1].removeprefix("vg0/")].tags.add("csi.removing")

    fake_pool.before = mark
    with pytest.raises(Busy, match="another process removed"):
        group(backend_over(fake_pool), *made)

    assert snapshots_left(fake_pool) == []


def test_a_group_that_is_removed_while_another_process_completes_it_is_not_shown(fake_pool: FakePool) -> None:
    made = volumes(fake_pool)

    def remove(words: Sequence[str]) -> None:
        if words[0] == "lvchange" and "--deltag" in words:
            fake_pool.before = lambda _words: None
            backend_over(fake_pool).resume()

    fake_pool.before = remove
    with pytest.raises((Busy, Unavailable)):
        group(backend_over(fake_pool), *made)

    assert snapshots_left(fake_pool) == []


def test_a_member_is_hidden_and_not_restored_while_its_group_is_not_complete(fake_pool: FakePool) -> None:
    made, backend = volumes(fake_pool), backend_over(fake_pool)
    found = group(backend, *made)
    first, second = found.snapshots
    fake_pool.volumes["csis-" + first.handle.rpartition("/")[2]].tags.add("csi.removing")

    again = backend_over(fake_pool)
    for one in (first, second):
        with pytest.raises(NotFound):
            again.get_snapshot(one.handle)
        with pytest.raises(NotFound):
            again.delete_snapshot(one.handle, {})
        with pytest.raises(NotFound):
            copy(again, "copy", one, type="thin")
    with pytest.raises(NotFound):
        again.get_group_snapshot(found.handle)
    assert listed(again) == []
    again.delete_group_snapshot(found.handle, {})
    assert snapshots_left(fake_pool) == []


def test_a_member_is_not_deleted_alone(fake_pool: FakePool) -> None:
    backend = backend_over(fake_pool)
    found = group(backend, *volumes(fake_pool))
    for one in found.snapshots:
        with pytest.raises(InvalidArgument, match="delete the group"):
            backend.delete_snapshot(one.handle, {})

    assert listed(backend) == [found.handle] * 2


def test_a_group_of_which_a_member_is_being_copied_is_not_deleted(fake_pool: FakePool) -> None:
    backend = backend_over(fake_pool)
    found = group(backend, *volumes(fake_pool))
    fake_pool.volumes["csis-" + found.snapshots[1].handle.rpartition("/")[2]].holders = 1
    with pytest.raises(InUse, match="restored from it"):
        backend.delete_group_snapshot(found.handle, {})

    assert backend.get_group_snapshot(found.handle) == found


def test_a_volume_of_another_pool_is_refused_with_the_remedy(fake_pool: FakePool) -> None:
    made = volumes(fake_pool)
    fake_pool.pools["csi-two"] = "pool9"
    with pytest.raises(FailedPrecondition, match="in thin pool pool9, and this instance is configured for pool0"):
        group(backend_over(fake_pool), *made)

    assert snapshots_left(fake_pool) == []


def test_another_owners_group_of_this_name_is_left_alone(fake_pool: FakePool) -> None:
    made, backend = volumes(fake_pool), backend_over(fake_pool)
    found = group(backend, *made)
    for name in snapshots_left(fake_pool):
        fake_pool.volumes[name].tags = {one.replace("csi.test/c", "csi.test/d") for one in fake_pool.volumes[name].tags}

    again = backend_over(fake_pool)
    again.resume()
    with pytest.raises(AlreadyExists):
        group(again, *made)
    for ask in (lambda: again.get_group_snapshot(found.handle), lambda: again.delete_group_snapshot(found.handle, {})):
        with pytest.raises(FailedPrecondition, match="belongs to"):
            ask()
    assert len(snapshots_left(fake_pool)) == 2


def test_a_pool_is_deactivated_when_the_last_user_has_ended_and_stays_if_it_was_active(fake_pool: FakePool) -> None:
    client = Client(fake_pool, Config(volume_group=GROUP, thin_pool=POOL))
    activation = Activation(fake_pool, client, GROUP)
    pool = fake_pool.volumes[POOL]
    first = activation.pool_active(POOL)
    first.__enter__()
    with activation.pool_active(POOL) as target:
        first.__exit__(None, None, None)
        assert (target, pool.active) == (f"{GROUP}-{POOL}-tpool", True)
    assert not pool.active

    pool.active = True
    with activation.pool_active(POOL):
        pass
    assert pool.active
