"""Thick snapshots with little space, on real LVM: they are extended in time, or report that they overflowed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from csi_multi_lvm.backend import LvmBackend
from csi_multi_lvm.config import SnapshotParameters

from csi_multi.contract import (
    FailedPrecondition,
    PageRequest,
    Snapshot,
    SnapshotRequest,
    Volume,
)

from . import volume_steps
from .faulty import clear
from .group import EXTENT, MIB, Group, Lvm, volume_group
from .volume_steps import copy, create, delete, listed_names, opened, read, refused, storage_reasons, write

pytestmark = pytest.mark.devicemapper

POOL = 32 * MIB
SIZE = 8 * EXTENT
Make = Callable[..., LvmBackend]


@pytest.fixture(scope="module")
def group(lvm: Lvm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    """A group with a pool that is soon full."""
    with volume_group(lvm, tmp_path_factory.mktemp("full"), disks=1, size=256 * MIB, pool=POOL) as group:
        yield group


@pytest.fixture(autouse=True)
def nothing_left(group: Group) -> Iterator[None]:
    """Remove what a failed test left, so that it does not affect the next one."""
    yield
    clear(group)


def small(backend: LvmBackend, source: Volume, **parameters: Any) -> Snapshot:
    """Create a snapshot with space for two extents of changes."""
    chosen = SnapshotParameters(snapshot_size=str(2 * EXTENT), **parameters)
    request = SnapshotRequest(stamp=volume_steps.stamp(backend, "snap"), source=source.handle, parameters=chosen)
    return backend.create_snapshot(request)


def test_a_snapshot_that_overflowed_is_never_ready_again(backend: Make) -> None:
    ours = backend()
    one = create(ours, "one", SIZE, type="linear")
    with opened(ours, one, block=False) as device:
        snap = small(ours, one, auto_extend_threshold=100)
        assert snap.ready
        write(device.path, 0, 16)

        ours.check()
        assert not ours.get_snapshot(snap.handle).ready
        assert storage_reasons(ours) == ["SnapshotOverflowed"]
    again = backend()  # and LVM does not show it while it is inactive
    assert not again.get_snapshot(snap.handle).ready
    assert [found.ready for found in again.list_snapshots(PageRequest()).items] == [False]
    assert storage_reasons(again) == ["SnapshotOverflowed"]
    with refused(FailedPrecondition, "is invalid"):
        copy(again, "two", snap, type="linear")
    assert listed_names(again) == ["one"]
    delete(again, snap, one)


def test_an_unnoticed_overflow_is_detected_before_a_restore(backend: Make, group: Group) -> None:
    ours = backend()
    one = create(ours, "one", SIZE, type="linear")
    with opened(ours, one, block=False) as device:
        snap = small(ours, one, auto_extend_threshold=100)
        write(device.path, 0, 16)

    with refused(FailedPrecondition, "is invalid"):
        copy(ours, "two", snap, type="linear")
    assert group.lvm.run("lvs", "--noheadings", "-o", "lv_name", "-S", "lv_name=csi-two", group.name) == []
    delete(ours, snap, one)


def test_a_snapshot_that_fills_up_is_extended_in_time_and_only_up_to_a_useful_size(
    backend: Make, group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    ours = backend()
    one = create(ours, "one", SIZE, type="linear")
    sizes, start = [], 0
    with opened(ours, one, block=False) as device:
        volume_steps.fill(device.path)
        before = read(device.path)
        snap = small(ours, one, auto_extend_threshold=70, auto_extend_percent=100)
        for mebibytes in (4, 2, 6, 12, 8):  # each fits into what the one before has left, or has led to
            write(device.path, start, mebibytes)
            start += mebibytes
            ours.check()
            words = ("--units", "b", "--nosuffix", "-o", "lv_size", "-S", "lv_name=csis-snap")
            (size,) = group.lvm.run("lvs", "--noheadings", *words, group.name)
            sizes.append(int(size))

    assert start * MIB == SIZE
    most = SIZE + EXTENT  # all of the volume, and the list of what has changed
    assert sizes == [2 * EXTENT, 4 * EXTENT, 8 * EXTENT, most, most]
    assert caplog.messages == []  # nothing to warn of
    assert ours.get_snapshot(snap.handle).ready
    two = copy(ours, "two", snap, type="linear")
    with opened(ours, two) as device:
        assert read(device.path) == before
    delete(ours, two, snap, one)
