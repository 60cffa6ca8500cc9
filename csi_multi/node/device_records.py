"""Which volume a device of this node was opened for, so that it can be unmounted whatever its backend says.

A record is a note in /dev, one per device number: it outlives the driver, and is gone after a boot, as all mounts are.
The kernel gives a device number to no other device as long as a filesystem is mounted from it; a device node that is
bound does not keep the number. So no device gets a record while nodes with its number are bound at the paths of another
volume. Its diskseq shows whether a device that exists is still the one that the record is about.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..contract import ids
from ..contract.errors import Unavailable
from ..contract.model import Blank, Device
from ..host import sysfs
from ..host.device_notes import DeviceNotes
from ..host.mounts import MountPoint
from . import device_mounts, mount_paths
from .device_mounts import DeviceCloser
from .record_index import RecordIndex

NOTES = Path("/dev/csi-multi")
_changing = threading.Lock()  # the kernel gives the number of a closed device to another volume at once


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeKey:
    """A volume among those of all drivers of a node."""

    driver: str
    volume: str  # the volume's id

    def __str__(self) -> str:
        return f"{self.driver} {self.volume}"

    @classmethod
    def of(cls, backend: DeviceCloser, handle: str) -> VolumeKey:
        return cls(driver=backend.setting.driver, volume=ids.join(backend.setting.instance, handle))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRecord:
    """A device, or a read-only loop device over it, and what it was opened for."""

    key: VolumeKey
    number: str
    path: Path
    sequence: str  # diskseq, "" before Linux 5.15
    staging: frozenset[str] = frozenset()  # the staging paths
    groups: Mapping[str, str] = field(default_factory=dict)  # target path -> volume_mount_group
    trim: int = 0  # seconds from one trim to the next; 0: it is not trimmed

    @property
    def paths(self) -> frozenset[str]:
        """The paths at which the device may be mounted by this driver."""
        return self.staging | self.groups.keys()

    @property
    def current(self) -> bool:
        """Whether the device exists, and is the one that was opened."""
        return sysfs.exists(self.number) and self.sequence == sysfs.disk_sequence(self.number)

    @property
    def valid(self) -> bool:
        """Whether a mount may be one of this device."""
        return self._is_last or bool(self.bound_paths())

    @property
    def _is_last(self) -> bool:
        """Whether no other device has got the number since, so that every mount that has it is one of this device."""
        return self.current or not sysfs.exists(self.number)

    def bound_paths(self) -> list[Path]:
        """Return the recorded paths at which a node with the device's number is bound, whatever has the number now."""
        recorded = (*map(Path, self.groups), *mount_paths.of_staging(*self.staging))
        return [path for path in recorded if device_mounts.is_node_bound_at(path, self.number)]

    def owns(self, entry: MountPoint) -> bool:
        """Whether a mount that has the device's number is one of this device."""
        return self._is_last or Path(entry.target) in self.bound_paths()

    def device(self) -> Device:
        """Return the device for unmounting: the record is its proof, and it is never formatted."""
        return Device(
            path=self.path,
            number=self.number,
            proof={"diskseq": self.sequence},
            blank=Blank.NEVER,
            read_only=sysfs.read_only(self.number),
        )


def write(key: VolumeKey, path: Path, number: str) -> DeviceRecord:
    """Record for which volume a device is open, unless that is recorded.

    Raises Unavailable, also while the number leads to this device from the mounts of another volume that had it before.
    """
    with _changing:
        known = _read(number)
        if known and known.key == key and known.current:
            return known
        if known:
            _refuse_bound(key, path, known)
        record = DeviceRecord(key=key, number=number, path=path, sequence=sysfs.disk_sequence(number))
        _write(record)
    return record


def _refuse_bound(key: VolumeKey, path: Path, former: DeviceRecord) -> None:
    same_device = former.current and former.sequence  # then each of the two ids means the same data
    if former.key != key and not same_device and (bound := former.bound_paths()):
        raise Unavailable(
            f"volume {key.volume!r}: {path} has the number {former.number} of a device that was taken away from volume "
            f"{former.key.volume!r}, whose node is still bound at {bound[0]}, so this volume would be seen there; stop "
            "the workload there, so that it is unpublished and unstaged, then try again"
        )


def add_staging(key: VolumeKey, device: Device, staging: Path, trim: int | None = None) -> None:
    """Record a staging path of an open device, before it is mounted there, and how often it is trimmed, if known."""
    record = write(key, device.path, device.number)
    wanted = replace(record, staging=record.staging | {str(staging)}, trim=record.trim if trim is None else trim)
    if wanted != record:
        with _changing:
            _write(wanted)


def add_target(key: VolumeKey, path: Path, number: str, target: Path, group: str) -> None:
    """Record a target path of a device, before it is mounted there, and its volume_mount_group."""
    record = write(key, path, number)
    if record.groups.get(str(target)) != group:
        with _changing:
            _write(replace(record, groups={**record.groups, str(target): group}))


def remove_path(record: DeviceRecord, path: Path) -> None:
    """Forget a staging or target path that is not mounted any more."""
    if str(path) not in record.paths:
        return
    groups = {target: group for target, group in record.groups.items() if target != str(path)}
    with _changing:
        if _read(record.number) == record:
            _write(replace(record, staging=record.staging - {str(path)}, groups=groups))


def remove(key: VolumeKey, *numbers: str) -> None:
    """Forget the devices of a volume that was closed, and those that were closed before."""
    outdated = [record.number for record in _of_key(key) if not record.valid]
    for closed in (*numbers, *outdated):
        with _changing:
            known = _read(closed)
            if known is None or known.key == key:
                DeviceNotes(NOTES).remove(closed)
            _index.remove(str(key), closed)


def of_device(number: str) -> DeviceRecord | None:
    """Return the record of a device that exists, None when there is none."""
    record = _read(number)
    return record if record and record.current else None


def of_driver(driver: str) -> list[DeviceRecord]:
    """Return the records of a driver's devices on this node."""
    return [record for record in _all().values() if record.key.driver == driver]


def of_id(volume: str) -> list[DeviceRecord]:
    """Return the records of the volumes with this id, of any driver."""
    return [record for record in _all().values() if record.key.volume == volume]


def of_volume(key: VolumeKey) -> list[DeviceRecord]:
    """Return a volume's records: of its device, of read-only loop devices over it, of devices that vanished."""
    return [record for record in _of_key(key) if record.valid]


def open_volumes() -> set[VolumeKey]:
    """Return the volumes, of all drivers, that are open on this node."""
    return {record.key for record in _all().values() if record.current}


def of_mount(entry: MountPoint) -> DeviceRecord | None:
    """Return the record of the device that is mounted, None when there is none."""
    return next((record for record in _candidates(entry) if record and record.owns(entry)), None)


def _candidates(entry: MountPoint) -> Iterator[DeviceRecord | None]:
    number = device_mounts.device_number(entry)
    if number:
        yield _read(number)
        behind = device_mounts.number_behind(entry, number)
        yield _read(behind) if behind else None
    elif entry.fs_type == "btrfs":  # its source is the only trace of a device that vanished
        yield from (record for record in _all().values() if str(record.path) == entry.source)


def _of_key(key: VolumeKey) -> list[DeviceRecord]:
    found = [_read(number) for number in _index.numbers(str(key))]
    return [record for record in found if record and record.key == key]


def _all() -> dict[str, DeviceRecord]:
    return {name: record for name in DeviceNotes(NOTES).names() if (record := _read(name))}


def _read(number: str) -> DeviceRecord | None:
    facts = DeviceNotes(NOTES).read(number)
    try:
        uses: dict[str, Any] = json.loads(facts["uses"])
        return DeviceRecord(
            key=VolumeKey(driver=facts["driver"], volume=facts["volume"]),
            number=number,
            path=Path(facts["path"]),
            sequence=facts["sequence"],
            staging=frozenset(uses["staging"]),
            groups=dict(uses["groups"]),
            trim=int(facts.get("trim", 0)),
        )
    except (KeyError, ValueError, TypeError):  # absent, or written by another version
        return None


_index = RecordIndex(NOTES, lambda: {number: str(record.key) for number, record in _all().items()})


def _write(record: DeviceRecord) -> None:
    _index.add(str(record.key), record.number)
    uses = {"staging": sorted(record.staging), "groups": dict(record.groups)}
    facts = {
        "driver": record.key.driver,
        "volume": record.key.volume,
        "path": str(record.path),
        "sequence": record.sequence,
        "uses": json.dumps(uses),
        "trim": str(record.trim),
    }
    DeviceNotes(NOTES).write(record.number, facts)
