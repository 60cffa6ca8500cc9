"""Steps of these tests: create, open, fill, copy and delete volumes, and see what LVM and the backend report."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from csi_multi_lvm.backend import LvmBackend
from csi_multi_lvm.config import Parameters
from csi_multi_lvm.labels import device_name

from csi_multi.contract import (
    Device,
    ExpandRequest,
    FailedPrecondition,
    OpenRequest,
    PageRequest,
    Result,
    SizeRange,
    Snapshot,
    SnapshotRequest,
    Source,
    SourceKind,
    Stamp,
    StorageError,
    Unavailable,
    Volume,
    VolumeRequest,
)
from csi_multi.host import sysfs
from csi_multi.host.command import LocalHost

from .group import EXTENT, Group

TIME_LIMIT = 55.0  # seconds for some calls in a slow guest: less than the minute that a full pool lets writers wait
SECRET = b"a secret of the deleted volume;"
PATTERN = SECRET * (-(-EXTENT // len(SECRET)))  # it begins elsewhere in every extent


def stamp(backend: LvmBackend, name: str, source: Source | None = None) -> Stamp:
    setting = backend.setting
    return Stamp(driver=setting.driver, cluster=setting.cluster, name=name, digest="d", source=source)


def volume_request(backend: LvmBackend, name: str, size: int = 4 * EXTENT, **parameters: Any) -> VolumeRequest:
    return VolumeRequest(stamp=stamp(backend, name), size=SizeRange(required=size), parameters=Parameters(**parameters))


def create(backend: LvmBackend, name: str, size: int = 4 * EXTENT, **parameters: Any) -> Volume:
    """Create a volume as its StorageClass parameters say."""
    return backend.create_volume(volume_request(backend, name, size, **parameters))


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


def lv_name(volume: Volume) -> str:
    """Return the name of the logical volume."""
    return "csi-" + volume.handle.rpartition("/")[2]


def lv_fields(group: Group, volume: Volume, *fields: str) -> dict[str, str]:
    """Return what LVM reports about a logical volume."""
    words = ("--noheadings", "--units", "b", "--nosuffix", "--separator", "|", "-o", ",".join(fields))
    (line,) = group.lvm.run("lvs", *words, f"{group.name}/{lv_name(volume)}")
    return dict(zip(fields, line.split("|"), strict=True))


def size_of(device: Device) -> int:
    """Return the bytes that the device has, as the kernel says."""
    return sysfs.size_of(device.number)


def fill(path: Path, start: int = 0, end: int | None = None) -> None:
    """Write SECRET all over a device, durably."""
    with path.open("r+b", buffering=0) as disk:
        end = disk.seek(0, os.SEEK_END) if end is None else end
        disk.seek(start)
        while (left := end - disk.tell()) > 0:
            disk.write(PATTERN[:left])
        os.fsync(disk.fileno())


def read(path: Path, start: int = 0, end: int | None = None) -> bytes:
    """Read a device; its page cache is a new one after each activation."""
    with path.open("rb") as disk:
        disk.seek(start)
        return disk.read(-1 if end is None else end - start)


def zeros(path: Path, start: int = 0, end: int | None = None) -> bool:
    data = read(path, start, end)
    return bool(data) and data == bytes(len(data))


class Died(BaseException):
    """The process dies here; it is no Exception, so no error handling runs."""


class DyingHost(LocalHost):
    """A host on which the driver dies before it runs a command with these words, after `spared` of them."""

    def __init__(self, *words: str, spared: int = 0) -> None:
        self._words = words
        self._spared = spared

    def run(self, *argv: str, **more: Any) -> Result:
        if all(any(word in one for one in argv) for word in self._words):
            if self._spared == 0:
                raise Died
            self._spared -= 1
        return super().run(*argv, **more)


def dm_name(group: Group, volume: Volume) -> str:
    """Return device-mapper's name of a volume."""
    return device_name(group.name, lv_name(volume))


def device_mapper_tables(group: Group, volume: Volume) -> list[str]:
    """Return the device-mapper devices of a volume, its parts included."""
    return [name for name in group.devices() if name.startswith(dm_name(group, volume))]


def listed_names(backend: LvmBackend) -> list[str]:
    """Return the requested names of all volumes, and demand that each volume is found by name and by handle."""
    listed = backend.list_volumes(PageRequest()).items
    for one in listed:
        assert backend.get_volume(one.handle) == backend.find_volume(one.stamp.name) == one
    return [one.stamp.name for one in listed]


def reasons(backend: LvmBackend, one: Volume) -> list[str]:
    """Return what the backend reports to be wrong with a volume."""
    return [entry.reason for entry in backend.volume_health(one.handle, {})]


def storage_reasons(backend: LvmBackend) -> list[str]:
    """Return what the backend reports to be wrong with the group."""
    return [entry.reason for entry in backend.node_storage_health({})]


@contextmanager
def in_time() -> Iterator[None]:
    """Demand that the block takes no longer than a call may take."""
    started = time.monotonic()
    yield
    assert time.monotonic() - started < TIME_LIMIT


@contextmanager
def refused(kind: type[StorageError], match: str | None = None) -> Iterator[None]:
    """Demand an error of this class, in time."""
    with in_time(), pytest.raises(kind, match=match) as found:
        yield
    if kind is Unavailable:
        assert not isinstance(found.value, FailedPrecondition)


def write(path: Path, start: int, mebibytes: int, ok: tuple[int, ...] = (0,)) -> int:
    """Write without the page cache, in a process that may hang; return its exit status."""
    words = ("bs=1M", f"seek={start}", f"count={mebibytes}", "oflag=direct", "conv=notrunc")
    return LocalHost().run("dd", "if=/dev/urandom", f"of={path}", *words, ok=ok, timeout=60).status


def raid_images(group: Group, name: str) -> list[set[str]]:
    """Return the disks of each image of a RAID volume, with those of its metadata."""
    fields = ("--noheadings", "--separator", "|", "-o", "lv_name,seg_pe_ranges")
    found: dict[str, set[str]] = {}
    for line in group.lvm.run("lvs", "-a", "--segments", *fields, "-S", f'lv_name=~"^{name}_r"', group.name):
        part, _, ranges = line.partition("|")
        disks = {place.partition(":")[0] for place in ranges.split() if place.startswith("/")}
        found.setdefault(part.strip("[]").split("_")[-1], set()).update(disks)
    return list(found.values())
