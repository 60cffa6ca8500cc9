"""What a command of lvm, or a driver, that was killed leaves: whoever uses a volume goes on, and nothing stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from csi_multi_lvm import activation, contents, tags
from csi_multi_lvm.backend import LvmBackend

from csi_multi.contract import AlreadyExists, NotFound, PageRequest, Snapshot, StorageError, Volume
from csi_multi.host.command import LocalHost

from . import volumes
from .faulty import clear
from .group import EXTENT, MIB, Group, Lvm, volume_group
from .matrix import once
from .volumes import copy, create, delete, open_device, opened, read, snapshot

pytestmark = pytest.mark.devicemapper

WRITER = """
import os, sys
number = 0
with open(sys.argv[1], "wb", buffering=0) as file, open(sys.argv[2], "w") as told:
    while True:
        number += 1
        file.seek(number % 64 * 65536)
        file.write(os.urandom(65536))
        os.fsync(file.fileno())
        told.seek(0)
        told.write(str(number))
        told.flush()
"""
STUCK = 3.0  # seconds instead of ten after which nothing suspended is believed to come back by itself
SIZE = 8 * EXTENT
MARK = b"!" * 4096
SOON = 30.0  # seconds, for a writer in an emulated guest to get on

Make = Callable[..., LvmBackend]


@pytest.fixture(scope="module")
def group(lvm: Lvm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    with volume_group(lvm, tmp_path_factory.mktemp("killed"), disks=1, size=256 * MIB) as group:
        yield group


@pytest.fixture(autouse=True)
def mended_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activation, "SUSPENDED", STUCK)


@pytest.fixture(autouse=True)
def nobody_hangs(group: Group) -> Iterator[None]:
    """Let go of whoever a failed test leaves hanging: nothing could be ended otherwise."""
    yield
    for name in sorted(group.devices(), key=len, reverse=True):
        LocalHost().run("dmsetup", "resume", name, ok=(0, 1), timeout=20)
    clear(group)


class Writer:
    """A process that writes to a filesystem, durably, and tells how often."""

    def __init__(self, file: Path, told: Path) -> None:
        self._told = told
        self._process = subprocess.Popen([sys.executable, "-S", "-c", WRITER, str(file), str(told)])
        self.goes_on()

    def count(self) -> int:
        try:
            return int(self._told.read_text() or 0)
        except FileNotFoundError:
            return 0

    def goes_on(self) -> None:
        """Demand that it gets on."""
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
    writer = Writer(where / "file", directory / "told")
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
    """Cut a snapshot as the core does: ask again while asking again is said to help."""
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
        cut = snapshot(ours, "cut", one)
        dm("suspend", name)
        dm("suspend", f"{name}-real")
        if asked == "open":
            open_device(ours, one, block=False)
        else:
            ours.check()

        assert suspended(group) == []
        writer.goes_on()
        delete(ours, cut)
        writer.goes_on()
    ours.close_device(one.handle)
    delete(ours, one)
    assert group.devices() == []


def test_a_table_of_a_snapshot_that_never_came_to_be_is_thrown_away(
    backend_on: Make, group: Group, tmp_path: Path
) -> None:
    """The origin suspended, its next table over a lower device without any: resuming it as it is loses writes."""
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
        writer.goes_on()
        cut = snapshot(ours, "cut", one)
        writer.goes_on()
        delete(ours, cut)
    ours.close_device(one.handle)
    delete(ours, one)
    assert group.devices() == []


def test_half_a_snapshot_is_invisible_and_gives_way(backend_on: Make, group: Group) -> None:
    """lvcreate -s makes a plain volume with all the tags first."""
    ours = backend_on(group)
    one = create(ours, "one", type="linear")
    cut = snapshot(ours, "cut", one)
    (found,) = group.lvm.run("lvs", "--noheadings", "-o", "lv_tags", f"{group.name}/csis-cut")
    delete(ours, cut)
    words = [word for tag in found.split(",") for word in ("--addtag", tag)]
    group.lvm.run("lvcreate", "-qq", "-an", "-Zn", "-Wn", "-l", "1", "-n", "csis-cut", *words, group.name)

    assert ours.list_snapshots(PageRequest()).items == ()
    for look in (lambda: ours.get_snapshot(cut.handle), lambda: ours.find_snapshot("cut")):
        with pytest.raises(NotFound):
            look()
    delete(ours, made(ours, "cut", one), one)


@pytest.fixture
def noting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Note after every chunk how far a copy is."""
    monkeypatch.setattr(contents, "NOTED", 0.0)
    monkeypatch.setattr(contents, "CHUNK", EXTENT)


def copied(group: Group, name: str) -> int:
    """Return how far the notes say that a copy is, 0: nothing noted."""
    rows = group.lvm.run("lvs", "--noheadings", "-o", "lv_tags", "-S", f"lv_name=csi-{name}", group.name)
    notes = [tag for row in rows for tag in row.split(",") if tag.startswith("csi.copied=")]
    return min((int(note.partition("=")[2]) for note in notes), default=0)


def kill_in_the_middle(group: Group, name: str, work: Callable[[], object]) -> int:
    """Do it in a process of its own, which is killed when it has noted something. Return what is noted."""
    child = os.fork()
    if child == 0:
        with suppress(BaseException):
            work()
        os._exit(1)
    ends = time.monotonic() + SOON
    while not copied(group, name):
        assert time.monotonic() < ends
    os.kill(child, signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL, "the copy was finished, or failed"
    while LocalHost().run("pgrep", "-P", "1", "-x", "lvm", ok=(0, 1)).status == 0:
        time.sleep(0.05)  # the last command outlives the driver
    return copied(group, name)


Torn = tuple[LvmBackend, Volume, Snapshot, int]


@pytest.fixture
def torn(backend_on: Make, group: Group, noting: None) -> Iterator[Torn]:
    """A restore whose driver was killed: the next driver, the source, its snapshot, how far the copy was."""
    ours = backend_on(group)
    one = create(ours, "one", SIZE, type="linear")
    with opened(ours, one, block=False) as device:
        volumes.fill(device.path)
    cut = snapshot(ours, "cut", one)
    done = kill_in_the_middle(group, "two", lambda: copy(backend_on(group), "two", cut, type="linear"))
    assert EXTENT <= done < SIZE
    ours = backend_on(group)
    yield ours, one, cut, done
    delete(ours, cut, one)
    assert group.devices() == []


def test_a_copy_goes_on_where_the_killed_driver_was(torn: Torn, group: Group) -> None:
    ours, one, cut, _ = torn
    half = device_of(group, "two")
    with half.open("r+b") as disk:
        disk.write(MARK)  # a copy that begins again would write over it
        os.fsync(disk.fileno())
    ours.resume()

    two = copy(ours, "two", cut, type="linear")
    with opened(ours, one, block=False) as device:
        source = read(device.path)
    with opened(ours, two) as device:
        found = read(device.path)
    assert found[: len(MARK)] == MARK
    assert found[len(MARK) :] == source[len(MARK) :]
    delete(ours, two)


def test_a_copy_that_was_cut_off_is_invisible_and_can_be_deleted(torn: Torn, group: Group) -> None:
    ours, one, _, _ = torn
    handle = one.handle.replace("one", "two")

    assert [found.handle for found in ours.list_volumes(PageRequest()).items] == [one.handle]
    for look in (lambda: ours.find_volume("two"), lambda: ours.get_volume(handle), lambda: ours.find_device(handle)):
        with pytest.raises(NotFound):
            look()
    with suppress(NotFound):
        ours.delete_volume(handle, {})
    assert held(group) == ["csi-one", "csis-cut"]
    ours.resume()  # the source was active only to be read


def test_only_what_nobody_asks_for_any_more_is_swept(torn: Torn, group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy is kept for a day; what has no use at once goes, and the source is not left active."""
    ours, _, _, _ = torn
    owner = tags.owner(ours.setting.driver, ours.setting.cluster)
    for name in ("csit-gone", "csix-gone", "csit-foreign"):
        words = () if name.endswith("foreign") else ("--addtag", owner)
        group.lvm.run("lvcreate", "-qq", "-an", "-Zn", "-Wn", "-l", "1", "-n", name, *words, group.name)
    ours.resume()
    assert held(group) == ["csi-one", "csi-two", "csis-cut", "csit-foreign"]
    assert [name for name in group.devices() if name.endswith(("one", "cut", "real", "cow"))] == []

    later = time.time() + 25 * 3600
    monkeypatch.setattr(time, "time", lambda: later)
    ours.resume()
    group.lvm.run("lvremove", "-qq", "-y", f"{group.name}/csit-foreign")
    assert held(group) == ["csi-one", "csis-cut"]


def device_of(group: Group, leaf: str) -> Path:
    (name,) = (name for name in group.devices() if name.endswith(f"csi--{leaf}"))
    return Path("/dev/mapper") / name


def held(group: Group) -> list[str]:
    """Return the logical volumes as LVM shows them."""
    return sorted(group.lvm.run("lvs", "--noheadings", "-o", "lv_name", group.name))
