"""Volumes in the words of these tests: made, opened, filled, and gone again."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from csi_multi_lvm.backend import LvmBackend
from csi_multi_lvm.config import Parameters

from csi_multi.contract import (
    Device,
    ExpandRequest,
    OpenRequest,
    Result,
    SizeRange,
    Snapshot,
    SnapshotRequest,
    Source,
    SourceKind,
    Stamp,
    Volume,
    VolumeRequest,
)
from csi_multi.host import sysfs
from csi_multi.host.command import LocalHost

from .group import EXTENT, Group

SECRET = b"a secret of the old tenant;"
PATTERN = SECRET * (-(-EXTENT // len(SECRET)))  # it begins elsewhere in every extent


def stamp(backend: LvmBackend, name: str, source: Source | None = None) -> Stamp:
    setting = backend.setting
    return Stamp(driver=setting.driver, cluster=setting.cluster, name=name, digest="d", source=source)


def wish(backend: LvmBackend, name: str, size: int = 4 * EXTENT, **parameters: Any) -> VolumeRequest:
    return VolumeRequest(stamp=stamp(backend, name), size=SizeRange(required=size), parameters=Parameters(**parameters))


def create(backend: LvmBackend, name: str, size: int = 4 * EXTENT, **parameters: Any) -> Volume:
    """Make a volume as its StorageClass parameters say."""
    return backend.create_volume(wish(backend, name, size, **parameters))


def copy(backend: LvmBackend, name: str, source: Volume | Snapshot, size: int = 0, **parameters: Any) -> Volume:
    """Clone a volume, or restore a snapshot."""
    kind = SourceKind.VOLUME if isinstance(source, Volume) else SourceKind.SNAPSHOT
    request = VolumeRequest(
        stamp=stamp(backend, name, Source(kind=kind, handle=source.handle)),
        size=SizeRange(required=size),
        parameters=Parameters(**parameters),
    )
    return backend.clone_volume(request) if kind is SourceKind.VOLUME else backend.restore_volume(request)


def snapshot(backend: LvmBackend, name: str, source: Volume) -> Snapshot:
    return backend.create_snapshot(SnapshotRequest(stamp=stamp(backend, name), source=source.handle))


def expand(backend: LvmBackend, volume: Volume, size: int) -> int:
    return backend.expand_volume(ExpandRequest(handle=volume.handle, size=SizeRange(required=size))).size


def open_device(backend: LvmBackend, volume: Volume, *, block: bool = True, read_only: bool = False) -> Device:
    return backend.open_device(OpenRequest(handle=volume.handle, block=block, read_only=read_only))


@contextmanager
def opened(backend: LvmBackend, volume: Volume, *, block: bool = True, read_only: bool = False) -> Iterator[Device]:
    """Open a volume's device, and close it."""
    device = open_device(backend, volume, block=block, read_only=read_only)
    try:
        yield device
    finally:
        backend.close_device(volume.handle)


def delete(backend: LvmBackend, *ones: Volume | Snapshot) -> None:
    for one in ones:
        if isinstance(one, Volume):
            backend.delete_volume(one.handle, {})
        else:
            backend.delete_snapshot(one.handle, {})


def lv(volume: Volume) -> str:
    """Return the name of the logical volume."""
    return "csi-" + volume.handle.rpartition("/")[2]


def told(group: Group, volume: Volume, *fields: str) -> dict[str, str]:
    """Return what LVM itself says about a logical volume."""
    words = ("--noheadings", "--units", "b", "--nosuffix", "--separator", "|", "-o", ",".join(fields))
    (line,) = group.lvm.run("lvs", *words, f"{group.name}/{lv(volume)}")
    return dict(zip(fields, line.split("|"), strict=True))


def size_of(device: Device) -> int:
    """Return the bytes that the device has, as the kernel says."""
    return sysfs.size_of(device.number)


def fill(path: Path, start: int = 0, end: int | None = None) -> None:
    """Write the old tenant's secret to all of a device, durably."""
    with path.open("r+b", buffering=0) as disk:
        end = disk.seek(0, os.SEEK_END) if end is None else end
        disk.seek(start)
        while (left := end - disk.tell()) > 0:
            disk.write(PATTERN[:left])
        os.fsync(disk.fileno())


def read(path: Path, start: int = 0, end: int | None = None) -> bytes:
    """Read a device past the page cache of those who wrote it: it is a new one after each activation."""
    with path.open("rb") as disk:
        disk.seek(start)
        return disk.read(-1 if end is None else end - start)


def zeros(path: Path, start: int = 0, end: int | None = None) -> bool:
    data = read(path, start, end)
    return bool(data) and data == bytes(len(data))


class Died(BaseException):
    """The process dies here: nothing that handles errors runs any more."""


class Mortal(LocalHost):
    """A host on which the driver dies right before it runs a command with these words, each time but the first few."""

    def __init__(self, *words: str, spared: int = 0) -> None:
        self._words = words
        self._spared = spared

    def run(self, *argv: str, **more: Any) -> Result:
        if all(any(word in one for one in argv) for word in self._words):
            if self._spared == 0:
                raise Died
            self._spared -= 1
        return super().run(*argv, **more)
