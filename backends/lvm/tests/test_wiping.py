"""Old data in the space of a new volume is neither readable nor taken for the new volume's, on real LVM."""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from csi_multi_lvm import block_io, labels
from csi_multi_lvm.backend import LvmBackend

from csi_multi.contract import AccessMode, Blank, Capability, CapacityRequest, FailedPrecondition, Mount, Setting
from csi_multi.host import loopdev
from csi_multi.host.command import LocalHost
from csi_multi.node import stage, unstage
from csi_multi.node.requests import StageRequest

from .group import EXTENT, MIB, Group, Lvm, NewGroup, volume_group
from .matrix import once
from .volume_steps import (
    SECRET,
    Died,
    DyingHost,
    copy,
    create,
    delete,
    expand,
    fill,
    lv_fields,
    open_device,
    opened,
    read,
    size_of,
    snapshot,
    zeros,
)

pytestmark = pytest.mark.devicemapper

BackendOn = Callable[..., LvmBackend]
DISK = 25 * MIB  # six extents and LVM's own MiB
START = MIB  # where the first extent is
ROOM = 12 * EXTENT  # of the group
SOON = 120.0  # seconds, for a thread in a slow guest
FILESYSTEM = Capability(mode=AccessMode.SINGLE_NODE_WRITER, mount=Mount(fs_type="ext4"))


@pytest.fixture(scope="module")
def small(lvm: Lvm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    """A group so small that volumes get the space of deleted ones."""
    with volume_group(lvm, tmp_path_factory.mktemp("small"), disks=2, size=DISK) as group:
        yield group


@pytest.fixture
def used(small: Group) -> Group:
    """The small group, with old data in all of its space."""
    for file in images(small):
        fill(file, START, START + ROOM // 2)
    return small


def images(group: Group) -> list[Path]:
    """Return the files that hold the disks' bytes."""
    bound = {str(device): Path(file) for device, file in loopdev.bound_devices().items()}
    return [bound[str(disk)] for disk in group.disks]


def secrets(path: Path) -> int:
    """Return how often SECRET is on it."""
    return read(path).count(SECRET)


@pytest.mark.parametrize("kind", once("linear", "raid1"))
def test_a_raw_block_volume_shows_nothing_of_a_deleted_one(kind: str, small: Group, backend_on: BackendOn) -> None:
    backend = backend_on(small)
    size = {"linear": ROOM, "raid1": 5 * EXTENT}[kind]  # all there is
    old = create(backend, "old", size, type=kind)
    with opened(backend, old) as device:
        fill(device.path)
    delete(backend, old)
    assert sum(secrets(file) for file in images(small)) > 2 * 5 * EXTENT // len(SECRET) - 100

    new = create(backend, "new", size, type=kind)
    with opened(backend, new) as device:
        assert zeros(device.path)
        assert device.blank is Blank.STAMPED
    delete(backend, new)


@pytest.fixture(scope="module", params=once("gpt", "ext4", "xfs"))  # gpt has one at each end
def signed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bytes]:
    """The first and last MiB of a disk with a signature."""
    file = tmp_path_factory.mktemp("signed") / "disk"
    with file.open("wb") as disk:
        disk.truncate(320 * MIB if request.param == "xfs" else ROOM)
    words = {"ext4": ("mkfs.ext4", "-q", "-F"), "xfs": ("mkfs.xfs", "-q", "-f"), "gpt": ("sfdisk", "-q")}[request.param]
    LocalHost().run(*words, str(file), stdin="label: gpt\n,,\n" if request.param == "gpt" else None)
    size = file.stat().st_size
    return read(file, 0, MIB), read(file, size - MIB)


def test_a_volume_for_filesystems_has_no_old_signature_and_is_formatted(
    signed: tuple[bytes, bytes], used: Group, backend_on: BackendOn, tmp_path: Path
) -> None:
    backend = backend_on(used)
    old = create(backend, "old", ROOM, type="linear", wipe="none")
    with opened(backend, old) as device:
        with device.path.open("r+b") as disk:
            disk.write(signed[0])
            disk.seek(ROOM - MIB)
            disk.write(signed[1])
        assert probed(device.path) == 0
    delete(backend, old)

    new = create(backend, "new", ROOM, type="linear")
    with opened(backend, new, block=False) as device:
        assert device.blank is Blank.STAMPED
        assert probed(device.path) == 2
        assert zeros(device.path, 0, MIB)
        assert zeros(device.path, ROOM - MIB)
    staged(backend, new.handle, tmp_path)
    with pytest.raises(FailedPrecondition, match=r"created for filesystems.*volumeMode Block"):
        open_device(backend, new, block=True)
    with opened(backend, new, block=False) as device:
        assert device.blank is Blank.NEVER
    delete(backend, new)


def probed(path: Path) -> int:
    """Return 0 when blkid sees a signature, 2 when it sees none."""
    return LocalHost().run("blkid", "-p", str(path), ok=(0, 2)).status


def staged(backend: LvmBackend, handle: str, staging: Path) -> None:
    """Let the node engine format, mount and unmount the volume."""
    stage.stage(LocalHost(), backend, StageRequest(handle=handle, staging=staging, capability=FILESYSTEM))
    try:
        assert [one.name for one in staging.iterdir()] == ["lost+found"]
    finally:
        unstage.unstage(LocalHost(), backend, handle, staging)


@pytest.mark.parametrize("wipe", ["auto", "zero", "none"])
def test_wipe_decides_whether_a_volume_for_filesystems_keeps_old_data(
    wipe: str, used: Group, backend_on: BackendOn
) -> None:
    backend = backend_on(used)
    volume = create(backend, "v", 4 * EXTENT, type="linear", wipe=wipe)
    with opened(backend, volume, block=False) as device:
        assert (secrets(device.path) == 0) == (wipe == "zero")
        assert zeros(device.path, 0, MIB)
    marks = set(lv_fields(used, volume, "lv_tags")["lv_tags"].split(","))
    expected = {"auto": {labels.DIRTY}, "zero": set(), "none": {labels.DIRTY, labels.UNWIPED}}[wipe]
    assert marks & {labels.NEW, labels.DIRTY, labels.UNWIPED, labels.ZERO} == expected
    delete(backend, volume)


def test_without_wiping_a_raw_block_volume_can_show_old_data(used: Group, backend_on: BackendOn) -> None:
    backend = backend_on(used)
    volume = create(backend, "v", 4 * EXTENT, type="linear", wipe="none")
    with opened(backend, volume) as device:
        assert secrets(device.path) > 0
    assert labels.UNWIPED in lv_fields(used, volume, "lv_tags")["lv_tags"]
    delete(backend, volume)


@contextmanager
def watched(path: Path, start: int) -> Iterator[list[int]]:
    """Read an extent of a device repeatedly; count the reads, and those that returned anything but zeros."""
    counts, done = [0, 0], threading.Event()
    thread = threading.Thread(target=_watch, args=(path, start, counts, done))
    thread.start()
    try:
        yield counts
    finally:
        done.set()
        thread.join()


def _watch(path: Path, start: int, counts: list[int], done: threading.Event) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    with mmap.mmap(-1, EXTENT) as buffer:
        while not done.is_set():
            if (count := os.preadv(descriptor, [buffer], start)) > 0:
                counts[0] += 1
                counts[1] += buffer[:count] != bytes(count)
            time.sleep(0.01)  # let the other thread have its turn
    os.close(descriptor)


def read_again(counts: list[int]) -> None:
    """Wait until the current data has been read."""
    before, ends = counts[0], time.monotonic() + SOON
    while counts[0] < before + 2:
        assert time.monotonic() < ends, "the added space is not read"
        time.sleep(0.01)


@pytest.mark.parametrize("kind", once("linear", "raid1"))
def test_a_raw_block_volume_never_shows_old_data_in_added_space(kind: str, used: Group, backend_on: BackendOn) -> None:
    backend = backend_on(used)
    volume = create(backend, "v", EXTENT, type=kind)
    with opened(backend, volume) as device:
        fill(device.path)
        with watched(device.path, EXTENT) as counts:
            assert expand(backend, volume, 2 * EXTENT) == size_of(device) == 2 * EXTENT
            read_again(counts)
        assert counts[1] == 0, f"of {counts[0]} readings so many saw old data: {counts[1]}"
    assert expand(backend, volume, 3 * EXTENT) == 3 * EXTENT
    with opened(backend, volume) as device:
        assert zeros(device.path, EXTENT, 3 * EXTENT)
        assert read(device.path, 0, EXTENT).count(0) == 0
    assert sum(secrets(file) for file in images(used)) > 0
    delete(backend, volume)


@pytest.mark.parametrize("source", once("snapshot", "volume"))
def test_a_larger_copy_shows_its_source_followed_by_zeros(source: str, used: Group, backend_on: BackendOn) -> None:
    backend = backend_on(used)
    origin = create(backend, "origin", EXTENT, type="linear")
    with opened(backend, origin) as device, device.path.open("r+b") as disk:
        disk.write(EXTENT * b"x")
    snap = [snapshot(backend, "snap", origin)] if source == "snapshot" else []

    volume = copy(backend, "v", *(snap or [origin]), size=3 * EXTENT, type="linear")
    assert volume.size == 3 * EXTENT
    with opened(backend, volume) as device:
        assert read(device.path) == EXTENT * b"x" + 2 * EXTENT * b"\0"
        assert device.blank is Blank.NEVER
    assert sum(secrets(file) for file in images(used)) > 0
    delete(backend, volume, *snap, origin)


def test_a_thin_volume_shows_no_old_data_and_a_pool_that_would_is_refused(
    new_group: NewGroup, backend_on: BackendOn
) -> None:
    """A new volume gets the chunks of a deleted one. After it wrote a page of a chunk, the rest must be zeros."""
    group = new_group(disks=1, size=96 * MIB, pool=16 * MIB)
    backend = backend_on(group)
    old = create(backend, "old", 12 * MIB)
    with opened(backend, old) as device:
        fill(device.path)
    delete(backend, old)
    assert secrets(images(group)[0]) > 12 * MIB // len(SECRET) - 1000

    new = create(backend, "new", 12 * MIB)
    with opened(backend, new) as device:
        assert device.blank is Blank.ZEROED
        touch_every_chunk(device.path)
        assert secrets(device.path) == 0
    delete(backend, new)

    group.lvm.run("lvchange", "-qq", "--zero", "n", f"{group.name}/{group.pool}")
    fresh = backend_on(group)
    assert fresh.capacity(CapacityRequest()).available == 0
    with pytest.raises(FailedPrecondition, match=f"lvchange --zero y {group.name}/{group.pool}"):
        create(fresh, "refused", EXTENT)


def touch_every_chunk(path: Path) -> None:
    with path.open("r+b", buffering=0) as disk:
        for offset in range(0, 12 * MIB, 64 * 1024):
            disk.seek(offset)
            disk.write(b"x" * 4096)
        os.fsync(disk.fileno())


def test_interrupted_zeroing_is_resumed(
    used: Group, backend_on: BackendOn, setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_io, "ZERO_CHUNK", EXTENT)
    monkeypatch.setattr(block_io, "RECORD_INTERVAL", 0.0)
    starts: list[int] = []
    zero = block_io.zero

    def counted(path: Path, start: int, *rest: Any, **more: Any) -> None:
        starts.append(start)
        zero(path, start, *rest, **more)

    monkeypatch.setattr(block_io, "zero", counted)
    dying = backend_on(used, setting=replace(setting, host=DyingHost(f"{labels.BYTES_ZEROED}{2 * EXTENT}", "--addtag")))
    volume = create(dying, "v", 4 * EXTENT, type="linear")
    with pytest.raises(Died):
        open_device(dying, volume)
    assert secrets(Path("/dev/mapper") / f"{used.name.replace('-', '--')}-csi--v") > 0

    backend = backend_on(used)
    with opened(backend, volume) as device:
        assert starts == [0, EXTENT]
        assert zeros(device.path)
    left = lv_fields(used, volume, "lv_tags")["lv_tags"].split(",")
    assert labels.with_prefix(left, labels.BYTES_ZEROED, labels.NEW, labels.DIRTY) == []
    assert labels.FRESH in left
    delete(backend, volume)
