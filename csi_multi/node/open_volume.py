"""A volume as it is open and mounted on this node now, for the calls that undo that.

Whether a mount is this volume's is known from the record of its device, or else from the volume's backend. So a volume
is unmounted also when its device or the volume itself is gone, or its backend is not configured any more.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..contract.backend import Setting
from ..contract.errors import FailedPrecondition, StorageError, Unavailable
from ..contract.model import NO_SECRETS, Device, Strings
from ..host import mounts
from ..host.mounts import MountPoint
from . import device_mounts, device_records, readonly_loop
from .device_mounts import DeviceCloser, DeviceMount
from .device_records import DeviceRecord, VolumeKey


class UnconfiguredBackend:
    """In place of the backend of a volume whose instance cannot be used: it finds nothing and closes nothing."""

    def __init__(self, setting: Setting, advice: str) -> None:
        self.setting = setting
        self.advice = advice  # why the instance cannot be used, and what to do

    def find_device(self, handle: str, secrets: Strings = NO_SECRETS) -> Device | None:
        return None

    def close_device(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        """Raise Unavailable: a device that was opened stays open."""
        raise Unavailable(f"volume {handle!r} is unmounted, but its device stays open because {self.advice}")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenVolume:
    """What was found at one moment: the device, all mounts of it, and the other entries of the mount table."""

    handle: str
    key: VolumeKey
    device: Device | None
    records: Sequence[DeviceRecord]  # of the device, and of read-only loop devices over it
    mounts: Sequence[DeviceMount]  # in mount order
    table: Sequence[MountPoint]
    foreign: Sequence[MountPoint]  # those that are no mounts of it
    advice: str  # of an UnconfiguredBackend

    @property
    def staging_paths(self) -> set[Path]:
        """The paths it was staged at, and may be staged at now."""
        return {Path(path) for record in self.records for path in record.staging}

    def require_own(self, *paths: Path) -> None:
        """Raise FailedPrecondition when something else is mounted at one of the paths, Unavailable if unknown."""
        for path in paths:
            for entry in self.foreign:
                if entry.target == str(path):
                    raise self._foreign(entry, device_records.of_mount(entry))

    def readonly_loops(self) -> list[Path]:
        """Return the read-only loop devices over its device, also when that device is gone."""
        recorded = [one for one in self.records if one.current]
        loops = [one.path for one in recorded if readonly_loop.is_read_only_loop(one.number)]
        return [*loops, *(readonly_loop.loops_over(self.device) if self.device else ())]

    def _foreign(self, entry: MountPoint, owner: DeviceRecord | None) -> StorageError:
        what = f"{entry.target} is occupied by a mount of {entry.source} ({entry.fs_type})"
        if owner:
            return FailedPrecondition(f"{what}, which is volume {owner.key.volume!r}, not {self.handle!r}")
        if self.advice:
            return Unavailable(f"{what}, and whether this is volume {self.handle!r} is unknown: {self.advice}")
        state = f"its device is {self.device.path}" if self.device else "which is not open here"
        return FailedPrecondition(f"{what}, which is not volume {self.handle!r} ({state}); unmount it first")


def find(backend: DeviceCloser, handle: str, *paths: Path) -> OpenVolume:
    """Look at a volume that is to be undone at these paths.

    The backend is asked only if no record of these paths shows the device. Raises as its find_device does.
    """
    key = VolumeKey.of(backend, handle)
    known = device_records.of_volume(key)
    used = {record.number for record in known if record.paths & {str(path) for path in paths}}
    device = _device([record for record in known if record.number in used])
    device = device or device_mounts.find_device(backend, handle)
    numbers = used | ({device.number} if device else set())
    records = [one for one in known if {one.number, device_mounts.backing_number(one.number)} & numbers]
    table = mounts.table()
    own: list[DeviceMount] = []
    foreign: list[MountPoint] = []
    sources = {str(one.path) for one in known}
    possible = {one.number for one in known} | numbers
    for entry in table:
        owner = device_records.of_mount(entry) if _may_be_own(entry, possible, sources) else None
        recorded = owner and owner.key == key and (owner in records or Path(entry.target) in paths)
        of_former_device = owner and owner.key != key and not owner.current  # which had the number before
        if recorded or (device and not of_former_device and device_mounts.match(entry, device)):
            own.append(device_mounts.as_mount(entry))
        else:
            foreign.append(entry)
    return OpenVolume(
        handle=handle,
        key=key,
        device=device,
        records=records,
        mounts=own,
        table=table,
        foreign=foreign,
        advice=backend.advice if isinstance(backend, UnconfiguredBackend) else "",
    )


def _may_be_own(entry: MountPoint, numbers: Collection[str], sources: Collection[str]) -> bool:
    """Whether a mount may be one of the devices with these numbers and paths. Of others no record is read."""
    number = device_mounts.device_number(entry)
    if not number:
        return entry.fs_type == "btrfs" and entry.source in sources
    return number in numbers or device_mounts.number_behind(entry, number) in numbers


def _device(records: Sequence[DeviceRecord]) -> Device | None:
    """Return the device that one of the records shows, and not a loop device over it."""
    found = [one for one in records if one.current and not readonly_loop.is_read_only_loop(one.number)]
    return found[0].device() if found else None
