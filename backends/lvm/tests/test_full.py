"""Pools and snapshots that are full, on real LVM: what is full is said, nothing hangs, and nobody's data changes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from csi_multi_lvm.backend import LvmBackend
from csi_multi_lvm.config import SnapshotParameters

from csi_multi.contract import (
    FailedPrecondition,
    PageRequest,
    ResourceExhausted,
    Snapshot,
    SnapshotRequest,
    StorageError,
    Volume,
)
from csi_multi.host.command import LocalHost

from . import volumes
from .faulty import clear
from .group import EXTENT, MIB, Group, Lvm, NewGroup, volume_group
from .volumes import copy, create, delete, expand, open_device, opened, read, snapshot

pytestmark = pytest.mark.devicemapper

PROMPT = 30.0  # seconds for some calls in a slow guest: far below the minute that a full pool makes writers wait
POOL = 32 * MIB
SIZE = 8 * EXTENT
NO_SPACE = Path("/sys/module/dm_thin_pool/parameters/no_space_timeout")

Make = Callable[..., LvmBackend]


@pytest.fixture(scope="module")
def group(lvm: Lvm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    """A group with a pool that is soon full."""
    with volume_group(lvm, tmp_path_factory.mktemp("full"), disks=1, size=256 * MIB, pool=POOL) as group:
        yield group


@pytest.fixture(autouse=True)
def nothing_left(group: Group) -> Iterator[None]:
    """Remove what a failed test left, so that the next one is not about it."""
    yield
    clear(group)


@contextmanager
def prompt() -> Iterator[None]:
    started = time.monotonic()
    yield
    assert time.monotonic() - started < PROMPT


@contextmanager
def refused(kind: type[StorageError], match: str) -> Iterator[None]:
    with prompt(), pytest.raises(kind, match=match):
        yield


def known(backend: LvmBackend) -> list[str]:
    return [one.stamp.name for one in backend.list_volumes(PageRequest()).items]


def reasons(backend: LvmBackend, one: Volume) -> list[str]:
    return [entry.reason for entry in backend.volume_health(one.handle, {})]


def storage_reasons(backend: LvmBackend) -> list[str]:
    return [entry.reason for entry in backend.node_storage_health({})]


def write(path: Path, start: int, mebibytes: int, ok: tuple[int, ...] = (0,)) -> int:
    """Write past the page cache, in a process that can be left behind; return its exit status."""
    words = ("bs=1M", f"seek={start}", f"count={mebibytes}", "oflag=direct", "conv=notrunc")
    return LocalHost().run("dd", "if=/dev/urandom", f"of={path}", *words, ok=ok, timeout=60).status


# A thin pool


@pytest.fixture
def impatient_pool() -> Iterator[None]:
    """Let writes to a full pool fail after a second; the kernel's own default is a minute."""
    before = NO_SPACE.read_text()
    NO_SPACE.write_text("1")
    yield
    NO_SPACE.write_text(before)


def test_a_full_pool_is_survived(backend_on: Make, new_group: NewGroup, impatient_pool: None) -> None:
    """What is full is said, nothing hangs, deleting helps, extending helps, and nobody's data has changed."""
    group = new_group(disks=1, size=128 * MIB, pool=POOL)  # of its own, for the pool grows
    ours = backend_on(group, pool_full_percent=100)
    keep, spare, greedy = (create(ours, name, POOL, type="thin") for name in ("keep", "spare", "greedy"))
    for one in (keep, spare):
        with opened(ours, one) as device:
            write(device.path, 0, 8)
            if one is keep:
                before = read(device.path)
    full = open_device(ours, greedy).path
    assert write(full, 0, POOL // MIB, ok=(1,)) == 1, "the pool did not fill up"
    ours.check()

    with refused(ResourceExhausted, "full"):
        create(ours, "more", type="thin")
    with refused(ResourceExhausted, "full"):
        snapshot(ours, "cut", keep)
    with prompt():
        assert known(ours) == ["greedy", "keep", "spare"]
        assert reasons(ours, keep) == ["PoolFull"]
        assert "PoolAlmostFull" in storage_reasons(ours)
    with prompt(), opened(ours, keep) as device:
        assert read(device.path) == before

    with prompt():
        delete(ours, spare)
    write(full, 20, 4)
    assert reasons(ours, keep) == []

    group.lvm.run("lvextend", "-qq", "-L", "+16M", f"{group.name}/{group.pool}")
    write(full, 0, POOL // MIB)
    ours.close_device(greedy.handle)
    with opened(ours, keep) as device:
        assert read(device.path) == before
    ours.check()
    more, cut = create(ours, "more", type="thin"), snapshot(ours, "cut", keep)
    delete(ours, cut, more, keep, greedy)


def test_a_pool_that_is_nearly_full_takes_nothing_new_while_its_volumes_go_on(backend: Make) -> None:
    ours = backend(pool_full_percent=40)
    one = create(ours, "one", 2 * POOL, type="thin")
    with opened(ours, one) as device:
        write(device.path, 0, 24)
        ours.check()

        asked: list[Callable[[], object]] = [
            lambda: create(ours, "more", type="thin"),
            lambda: snapshot(ours, "cut", one),
            lambda: copy(ours, "two", one, type="thin"),
            lambda: expand(ours, one, 3 * POOL),
        ]
        for ask in asked:
            with refused(ResourceExhausted, "and from 40 % on"):
                ask()
        assert known(ours) == ["one"]
        assert storage_reasons(ours) == ["PoolAlmostFull"]
        assert reasons(ours, one) == []
        write(device.path, 24, 2)
    delete(ours, one)


# Thick snapshots with little space


def small(backend: LvmBackend, source: Volume, **parameters: Any) -> Snapshot:
    """Cut a snapshot with room for two extents of changes."""
    chosen = SnapshotParameters(snapshot_size=str(2 * EXTENT), **parameters)
    request = SnapshotRequest(stamp=volumes.stamp(backend, "cut"), source=source.handle, parameters=chosen)
    return backend.create_snapshot(request)


def test_a_snapshot_that_overflowed_is_never_ready_again(backend: Make) -> None:
    ours = backend()
    one = create(ours, "one", SIZE, type="linear")
    with opened(ours, one, block=False) as device:
        cut = small(ours, one, auto_extend_threshold=100)
        assert cut.ready
        write(device.path, 0, 16)

        ours.check()
        assert not ours.get_snapshot(cut.handle).ready
        assert storage_reasons(ours) == ["SnapshotOverflowed"]
    again = backend()  # and LVM does not show it while it is inactive
    assert not again.get_snapshot(cut.handle).ready
    assert [found.ready for found in again.list_snapshots(PageRequest()).items] == [False]
    assert storage_reasons(again) == ["SnapshotOverflowed"]
    with refused(FailedPrecondition, "is invalid"):
        copy(again, "two", cut, type="linear")
    assert known(again) == ["one"]
    delete(again, cut, one)


def test_an_overflow_that_nobody_saw_is_found_out_before_anything_is_restored(backend: Make, group: Group) -> None:
    ours = backend()
    one = create(ours, "one", SIZE, type="linear")
    with opened(ours, one, block=False) as device:
        cut = small(ours, one, auto_extend_threshold=100)
        write(device.path, 0, 16)

    with refused(FailedPrecondition, "is invalid"):
        copy(ours, "two", cut, type="linear")
    assert group.lvm.run("lvs", "--noheadings", "-o", "lv_name", "-S", "lv_name=csi-two", group.name) == []
    delete(ours, cut, one)


def test_a_snapshot_that_fills_up_is_extended_in_time_and_no_further_than_it_can_use(
    backend: Make, group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    ours = backend()
    one = create(ours, "one", SIZE, type="linear")
    sizes, start = [], 0
    with opened(ours, one, block=False) as device:
        volumes.fill(device.path)
        before = read(device.path)
        cut = small(ours, one, auto_extend_threshold=70, auto_extend_percent=100)
        for mebibytes in (4, 2, 6, 12, 8):  # each fits into what the one before has left, or has led to
            write(device.path, start, mebibytes)
            start += mebibytes
            ours.check()
            words = ("--units", "b", "--nosuffix", "-o", "lv_size", "-S", "lv_name=csis-cut")
            (size,) = group.lvm.run("lvs", "--noheadings", *words, group.name)
            sizes.append(int(size))

    assert start * MIB == SIZE
    most = SIZE + EXTENT  # all of the volume, and the list of what has changed
    assert sizes == [2 * EXTENT, 4 * EXTENT, 8 * EXTENT, most, most]
    assert caplog.messages == []  # nothing to warn of
    assert ours.get_snapshot(cut.handle).ready
    two = copy(ours, "two", cut, type="linear")
    with opened(ours, two) as device:
        assert read(device.path) == before
    delete(ours, two, cut, one)
