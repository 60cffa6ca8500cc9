"""Real directories, real filesystems, real loop devices; and crashes at any system call."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

import pytest
from csi_multi_loop import directory_notes, shared_filesystem
from csi_multi_loop.backend import LoopBackend
from csi_multi_loop.config import Config

from csi_multi.contract import (
    ExpandRequest,
    GroupSnapshotRequest,
    OpenRequest,
    Setting,
    SizeRange,
    SnapshotRequest,
    Source,
    SourceKind,
    Stamp,
    VolumeRequest,
)
from csi_multi.host import loopdev, mounts
from csi_multi.host.command import LocalHost
from csi_multi.node import freeze, freeze_notes

MIB = 2**20
NODE = "node-1"
DRIVER = "multi.csi.test"


class Death(BaseException):
    """The process dies here: nothing it does afterwards, cleaning up included, has an effect."""


class SystemCallCounter(threading.local):
    """Counts this thread's system calls, and ends the process at one of them."""

    EVENTS = frozenset(
        f"os.{name}" for name in ("mkdir", "rename", "remove", "rmdir", "truncate", "listdir", "scandir")
    ) | {"open", "fcntl.ioctl", "fcntl.flock"}

    left: int | None = None
    before: tuple[str, str, Callable[[], None]] | None = None  # event, the beginning of its path, what to do

    def hook(self, event: str, args: tuple[Any, ...]) -> None:
        if event not in self.EVENTS or (args and "__pycache__" in str(args[0])):  # a first import keeps its bytecode
            return
        if self.before and self.before[0] == event and (not self.before[1] or str(args[0]).startswith(self.before[1])):
            action, self.before = self.before[2], None
            action()
        if self.left is not None:
            if self.left <= 0:
                raise Death(event)
            self.left -= 1


CALL_COUNTER = SystemCallCounter()
sys.addaudithook(CALL_COUNTER.hook)


class Crash:
    @contextlib.contextmanager
    def at(self, call: int) -> Iterator[None]:
        """Die at this call of the block, and stay dead for the rest of it."""
        CALL_COUNTER.left = call
        try:
            yield
        finally:
            CALL_COUNTER.left = None

    def points(self, prepare: Callable[[int], Callable[[], object]]) -> Iterator[int]:
        """For every call of an operation: prepare afresh, die at that call, and let the caller check the state."""
        for call in itertools.count():
            operation = prepare(call)
            try:
                with self.at(call):
                    operation()
            except Death:
                yield call
            else:
                return

    @contextlib.contextmanager
    def before(self, event: str, action: Callable[[], None], below: Path | str = "") -> Iterator[None]:
        """Run an action right before the first such call of the block, of a path that begins like this."""
        CALL_COUNTER.before = (event, str(below), action)
        try:
            yield
        finally:
            CALL_COUNTER.before = None


class Requests:
    """Makes requests from a few arguments."""

    def stamp(self, name: str, digest: str = "d", source: Source | None = None, driver: str = DRIVER) -> Stamp:
        return Stamp(driver=driver, cluster="c", name=name, digest=digest, source=source, context={"k": "v"})

    def volume(
        self, name: str, size: int = 16 * MIB, *, limit: int = 0, digest: str = "d", **more: Any
    ) -> VolumeRequest:
        size_range = SizeRange(required=size, limit=limit)
        return VolumeRequest(stamp=self.stamp(name, digest), size=size_range, **more)

    def copy(self, name: str, kind: str, handle: str, size: int = 0, *, limit: int = 0, **more: Any) -> VolumeRequest:
        source = Source(kind=SourceKind(kind), handle=handle)
        size_range = SizeRange(required=size, limit=limit)
        return VolumeRequest(stamp=self.stamp(name, source=source), size=size_range, **more)

    def snapshot(self, name: str, source: str, digest: str = "d") -> SnapshotRequest:
        return SnapshotRequest(stamp=self.stamp(name, digest), source=source)

    def group(self, name: str, *sources: str, digest: str = "d") -> GroupSnapshotRequest:
        return GroupSnapshotRequest(stamp=self.stamp(name, digest), sources=sources)

    def expand(self, handle: str, size: int, limit: int = 0) -> ExpandRequest:
        return ExpandRequest(handle=handle, size=SizeRange(required=size, limit=limit))

    def open(self, handle: str, *, read_only: bool = False) -> OpenRequest:
        return OpenRequest(handle=handle, read_only=read_only)


@pytest.fixture
def requests() -> Requests:
    return Requests()


@pytest.fixture
def crash() -> Crash:
    return Crash()


@pytest.fixture
def host() -> LocalHost:
    return LocalHost()


@pytest.fixture(autouse=True)
def notes(tmp_path: Path) -> Iterator[None]:
    """These tests note what they freeze, and their directories, where no driver on this machine looks."""
    with pytest.MonkeyPatch.context() as patch:  # of its own: a test may undo what it has patched
        patch.setattr(freeze_notes, "NOTES", tmp_path / "notes")
        patch.setattr(directory_notes, "NOTES", tmp_path / "directory-notes")
        yield


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """No instance of an earlier test shares the filesystem: the traceback of one that failed keeps it alive."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared_filesystem, "_filesystems", WeakKeyDictionary())
        yield


@pytest.fixture
def setting(host: LocalHost) -> Setting:
    return Setting(instance="scratch", driver=DRIVER, cluster="c", node=NODE, host=host, frozen=freeze.frozen)


@pytest.fixture
def connect(setting: Setting, tmp_path: Path) -> Callable[..., LoopBackend]:
    """Make a backend as a new process would; settings given by keyword win."""

    def connect(directory: Path = tmp_path / "pool", *, setting: Setting = setting, **config: Any) -> LoopBackend:
        config = {"reserve_percent": 0, "min_size": MIB, **config}
        return LoopBackend(Config(directory=str(directory), **config), setting)

    return connect


@pytest.fixture
def backend(connect: Callable[..., LoopBackend]) -> LoopBackend:
    return connect()


@pytest.fixture
def leftovers() -> Callable[[LoopBackend], list[str]]:
    """What an instance's directory holds beside complete volumes and snapshots."""

    def leftovers(backend: LoopBackend) -> list[str]:
        directory = Path(backend.config.directory)
        entries = [path for kind in ("volumes", "snapshots", "groups") for path in (directory / kind).glob("*")]
        unexpected = [str(path) for path in entries if path.name.startswith(".")]
        complete = {"volumes": 2, "snapshots": 2, "groups": 1}
        incomplete = [
            str(path)
            for path in entries
            if not path.name.startswith(".") and len(os.listdir(path)) != complete[path.parent.name]
        ]
        return unexpected + incomplete

    return leftovers


@pytest.fixture(autouse=True)
def space(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without root there is no filesystem of its own for a test: then it sees a fixed space instead of this disk's."""
    if not request.node.get_closest_marker("root"):
        blocks = 2**24  # of 4 KiB: 64 GiB
        empty = SimpleNamespace(f_blocks=blocks, f_bfree=blocks, f_bavail=blocks, f_frsize=4096, f_flag=0)
        monkeypatch.setattr("csi_multi_loop.directory.os.statvfs", lambda _: empty)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> SimpleNamespace:
    """A filesystem of which the tests say how much is free beside directories and labels; `hidden`: shown nowhere."""
    state = SimpleNamespace(free=100 * MIB, hidden=0)

    def taken() -> int:
        entries = [path for path in tmp_path.glob("pool/*s/*") if path.is_dir()]
        beside = [*entries, *tmp_path.glob("pool/*s/*/*.json")]
        return state.hidden * len(entries) + sum(path.stat().st_blocks * 512 for path in beside)

    monkeypatch.setattr("csi_multi_loop.directory.Directory.free", lambda _: (state.free - taken(), 0))
    return state


@pytest.fixture(autouse=True)
def nothing_leaks(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[None]:
    """A test that uses devices leaves none of its own attached, and nothing mounted."""
    yield
    if request.node.get_closest_marker("root"):
        assert [mount.target for mount in mounts.table() if mount.target.startswith(str(tmp_path))] == []
        deadline = time.monotonic() + 20  # another program may look at a device, which keeps it for a moment
        while bound := [file for file in loopdev.bound_devices().values() if str(tmp_path) in file]:
            assert time.monotonic() < deadline, bound
            time.sleep(0.05)


@pytest.fixture
def undo() -> Iterator[contextlib.ExitStack]:
    """What a test mounts and opens is undone in reverse order, whatever else happened."""
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.fixture
def mount(host: LocalHost, undo: contextlib.ExitStack) -> Callable[..., Path]:
    """Mount something at a new directory."""

    def unmount(target: Path) -> None:
        if mounts.at(target):
            host.run("fsfreeze", "--unfreeze", str(target), ok=(0, 1))
            deadline = time.monotonic() + 20  # the kernel may release a loop device on it a moment after its unmount
            while mounts.at(target):
                host.run("umount", str(target), ok=(0, 32) if time.monotonic() < deadline else (0,))
                time.sleep(0.05 if mounts.at(target) else 0)

    def mount(source: Path | str, target: Path, *options: str) -> Path:
        target.mkdir(parents=True, exist_ok=True)
        host.run("mount", *options, str(source), str(target))
        undo.callback(unmount, target)
        return target

    return mount


@pytest.fixture
def filesystem(mount: Callable[..., Path], host: LocalHost, tmp_path: Path) -> Callable[..., Path]:
    """Make a filesystem of its own to keep an instance's directory on; `memory`: its disk is as fast as can be."""

    def filesystem(kind: str, size: int = 400 * MIB, *, memory: bool = False) -> Path:
        target = tmp_path / kind
        if kind == "tmpfs":
            return mount("tmpfs", target, "-t", "tmpfs", "-o", f"size={size}")
        below = mount("tmpfs", tmp_path / "memory", "-t", "tmpfs") if memory else tmp_path
        image = below / f"{kind}.disk"
        with image.open("wb") as file:
            file.truncate(size)
        host.run(f"mkfs.{kind}", "-q", str(image))
        device = Path(host.run("losetup", "--find", "--show", str(image)).stdout.strip())
        try:
            return mount(device, target)
        finally:
            host.run("losetup", "--detach", str(device))  # freed with the unmount

    return filesystem


@pytest.fixture
def opened(undo: contextlib.ExitStack) -> Callable[..., Path]:
    """Open a volume's device."""

    def opened(backend: LoopBackend, handle: str, *, read_only: bool = False) -> Path:
        undo.callback(backend.close_device, handle)
        return backend.open_device(OpenRequest(handle=handle, read_only=read_only)).path

    return opened


@pytest.fixture
def image() -> Callable[[LoopBackend, str], Path]:
    """The backing file of a volume or snapshot."""

    def image(backend: LoopBackend, handle: str, kind: str = "volumes") -> Path:
        return Path(backend.config.directory) / kind / handle.partition("/")[2] / "image"

    return image


@pytest.fixture
def volume(backend, requests):
    return backend.create_volume(requests.volume("v", 32 * MIB)).handle


@pytest.fixture
def mounted(backend, volume, opened, host, mount, tmp_path):
    device = opened(backend, volume)
    host.run("mkfs.ext4", "-q", str(device))
    return mount(device, tmp_path / "mnt")


@pytest.fixture
def filled(backend, requests, image):
    """A volume with data at the head, in the middle and at the tail, and holes between."""
    handle = backend.create_volume(requests.volume("source", 16 * MIB)).handle
    write(image(backend, handle))
    return handle


def write(path, seed=1):
    source = random.Random(seed)
    with path.open("r+b") as file:
        for offset in (0, 3 * MIB + 512, 16 * MIB - 4096):
            file.seek(offset)
            file.write(source.randbytes(4096))


def digest(path, size=16 * MIB):
    with path.open("rb") as file:
        return hashlib.sha256(file.read(size)).hexdigest()


@pytest.fixture
def staged(connect, requests, filesystem, opened, host, mount, tmp_path):
    """A mounted volume, whose image is on a filesystem of this kind."""

    def staged(directory_on="ext4", fs_type="ext4", size=64 * MIB):
        backend = connect(filesystem(directory_on, 1024 * MIB) / "pool")
        handle = backend.create_volume(requests.volume("source", size)).handle
        device = opened(backend, handle)
        host.run(f"mkfs.{fs_type}", "-q", str(device))
        return backend, handle, mount(device, tmp_path / "mnt")

    return staged
