"""A killed lvm command: users of the volume continue, and nothing is left."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from csi_multi_lvm import activation
from csi_multi_lvm.backend import LvmBackend

from csi_multi.contract import AlreadyExists, NotFound, PageRequest, Snapshot, StorageError, Volume
from csi_multi.host.command import LocalHost

from .faulty import clear, resume_devices
from .group import EXTENT, MIB, Group, Lvm, NewGroup, volume_group
from .matrix import once
from .volume_steps import create, delete, open_device, snapshot

pytestmark = pytest.mark.devicemapper

WRITER = """
import os, sys
number = 0
with open(sys.argv[1], "wb", buffering=0) as file, open(sys.argv[2], "w") as counter:
    while True:
        number += 1
        file.seek(number % 64 * 65536)
        file.write(os.urandom(65536))
        os.fsync(file.fileno())
        counter.seek(0)
        counter.write(str(number))
        counter.flush()
"""
STUCK = 3.0  # seconds instead of ten after which a suspended device is resumed
SIZE = 8 * EXTENT
SOON = 120.0  # seconds, for a process in an emulated guest

Make = Callable[..., LvmBackend]


@pytest.fixture(scope="module")
def group(lvm: Lvm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    with volume_group(lvm, tmp_path_factory.mktemp("killed"), disks=1, size=256 * MIB) as group:
        yield group


@pytest.fixture(autouse=True)
def mended_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activation, "SUSPENSION_SECONDS", STUCK)


@pytest.fixture(autouse=True)
def nobody_hangs(group: Group) -> Iterator[None]:
    yield
    resume_devices(group)
    clear(group)


class Writer:
    """A process that writes to a filesystem, durably, and counts its writes."""

    def __init__(self, file: Path, counter: Path) -> None:
        self._counter = counter
        self._process = subprocess.Popen([sys.executable, "-S", "-c", WRITER, str(file), str(counter)])
        self.must_continue()

    def count(self) -> int:
        try:
            return int(self._counter.read_text() or 0)
        except FileNotFoundError:
            return 0

    def must_continue(self) -> None:
        """Demand that it continues to write."""
        before, ends = self.count(), time.monotonic() + SOON
        while self.count() < before + 3:
            assert self._process.poll() is None, "the writer met an error"
            assert time.monotonic() < ends, "the writer hangs"
            time.sleep(0.05)

    def end(self) -> None:
        self._process.kill()
        self._process.wait(SOON)


@contextmanager
def busy(ours: LvmBackend, one: Volume, directory: Path) -> Iterator[Writer]:
    """Have a volume mounted and written to; its filesystem must be in order afterwards. It stays open."""
    device = open_device(ours, one, block=False)
    where = directory / "mounted"
    where.mkdir()
    host = LocalHost()
    host.run("mkfs.ext4", "-q", "-F", str(device.path))
    host.run("mount", str(device.path), str(where))
    writer = Writer(where / "file", directory / "counter")
    try:
        yield writer
    finally:
        writer.end()
        host.run("umount", str(where))
    host.run("fsck.ext4", "-f", "-n", str(device.path))


def dm(*words: str) -> None:
    LocalHost().run("dmsetup", *words, timeout=20)


def suspended(group: Group) -> list[str]:
    host = LocalHost()
    lines = host.run("dmsetup", "info", "-c", "--noheadings", "--separator", " ", "-o", "name,suspended").stdout
    return [line.split()[0] for line in lines.splitlines() if line.endswith("Suspended") and group.devices()]


def made(ours: LvmBackend, name: str, one: Volume) -> Snapshot:
    """Create a snapshot as the core does: retry while the error says that it helps."""
    for _ in range(3):
        with suppress(NotFound):
            return ours.find_snapshot(name)  # the kill came too late
        with suppress(AlreadyExists):
            try:
                return snapshot(ours, name, one)
            except StorageError as error:
                print(name, "again after", repr(error))
    raise AssertionError(f"{name} cannot be made")


@pytest.mark.parametrize("asked", once("open", "check"))
def test_a_suspended_thick_origin_is_resumed_lower_device_first(
    backend_on: Make, group: Group, tmp_path: Path, asked: str
) -> None:
    ours = backend_on(group)
    one = create(ours, "one", 8 * EXTENT, type="linear")
    name = f"{group.name.replace('-', '--')}-csi--one"
    with busy(ours, one, tmp_path) as writer:
        snap = snapshot(ours, "snap", one)
        dm("suspend", name)
        dm("suspend", f"{name}-real")
        if asked == "open":
            open_device(ours, one, block=False)
        else:
            ours.check()

        assert suspended(group) == []
        writer.must_continue()
        delete(ours, snap)
        writer.must_continue()
    ours.close_device(one.handle)
    delete(ours, one)
    assert group.devices() == []


@pytest.mark.parametrize("asked", ["open", "check", "open another"])
def test_a_thin_pool_that_a_killed_growth_of_one_volume_left_suspended_is_resumed(
    backend_on: Make, new_group: NewGroup, tmp_path: Path, asked: str
) -> None:
    """lvextend suspends the volume and the pool below it, so the users of all other volumes wait, too."""
    group = new_group(disks=1, size=256 * MIB, pool=64 * MIB)
    ours = backend_on(group)
    one, other, closed = (create(ours, name, SIZE, type="thin") for name in ("one", "other", "closed"))
    dm_group = group.name.replace("-", "--")
    with busy(ours, other, tmp_path) as writer:
        open_device(ours, one, block=False)
        devices = [*(f"{dm_group}-pool0{part}" for part in ("_tmeta", "_tdata", "-tpool")), f"{dm_group}-csi--one"]
        if asked != "open another":
            dm("suspend", devices[-1])
        for name in reversed(devices[:-1]):
            dm("suspend", name)
        try:
            if asked == "check":
                ours.check()
            else:
                open_device(ours, one if asked == "open" else closed, block=False)
            assert suspended(group) == []
        finally:
            for name in devices:  # in the order in which the kernel does not hang
                dm("resume", name)
        writer.must_continue()
    for volume in (one, other, closed):
        ours.close_device(volume.handle)
        delete(ours, volume)


def test_the_table_of_an_incomplete_snapshot_is_discarded(backend_on: Make, group: Group, tmp_path: Path) -> None:
    """The origin is suspended, its inactive table on a device without a table: resuming that loses writes."""
    ours = backend_on(group)
    one = create(ours, "one", 8 * EXTENT, type="linear")
    name = f"{group.name.replace('-', '--')}-csi--one"
    with busy(ours, one, tmp_path) as writer:
        device = ours.find_device(one.handle)
        assert device
        uuid = next(iter(device.proof.values()))
        table = LocalHost().run("dmsetup", "table", name).stdout.strip()
        dm("create", "--notable", "--uuid", f"{uuid}-real", f"{name}-real")
        dm("load", f"{name}-real", "--table", table)
        dm("mknodes", f"{name}-real")
        dm("suspend", name)
        dm("load", name, "--table", f"0 {8 * EXTENT // 512} snapshot-origin /dev/mapper/{name}-real")
        ours.check()

        assert suspended(group) == []
        writer.must_continue()
        snap = snapshot(ours, "snap", one)
        writer.must_continue()
        delete(ours, snap)
    ours.close_device(one.handle)
    delete(ours, one)
    assert group.devices() == []


def test_an_incomplete_snapshot_is_not_listed_and_is_replaced(backend_on: Make, group: Group) -> None:
    """lvcreate -s first creates an ordinary volume with all the tags."""
    ours = backend_on(group)
    one = create(ours, "one", type="linear")
    snap = snapshot(ours, "snap", one)
    (found,) = group.lvm.run("lvs", "--noheadings", "-o", "lv_tags", f"{group.name}/csis-snap")
    delete(ours, snap)
    words = [word for tag in found.split(",") for word in ("--addtag", tag)]
    group.lvm.run("lvcreate", "-qq", "-an", "-Zn", "-Wn", "-l", "1", "-n", "csis-snap", *words, group.name)

    assert ours.list_snapshots(PageRequest()).items == ()
    for look in (lambda: ours.get_snapshot(snap.handle), lambda: ours.find_snapshot("snap")):
        with pytest.raises(NotFound):
            look()
    delete(ours, made(ours, "snap", one), one)
