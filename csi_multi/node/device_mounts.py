"""Where a device is mounted on this node: as a filesystem, or as a device node bound on a file."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ..contract.backend import Setting
from ..contract.errors import FailedPrecondition, NotFound
from ..contract.model import NO_SECRETS, Device, OpenRequest, Strings
from ..host import loopdev, mounts, sysfs
from ..host.mounts import MountPoint
from . import mount_flags, mount_paths


class DeviceCloser(Protocol):
    """What unmounting needs of a backend."""

    setting: Setting

    def find_device(self, handle: str, secrets: Strings = NO_SECRETS) -> Device | None: ...
    def close_device(self, handle: str, secrets: Strings = NO_SECRETS) -> None: ...


class VolumeDevices(DeviceCloser, Protocol):
    """What staging needs of a backend: its own methods, or those of the layer that encrypts (encryption.py)."""

    @property
    def opens_exclusively(self) -> bool: ...

    def open_device(self, request: OpenRequest) -> Device: ...
    def formatting(self, handle: str, secrets: Strings = NO_SECRETS) -> None: ...
    def formatted(self, handle: str, secrets: Strings = NO_SECRETS) -> None: ...
    def has_data(self, handle: str, secrets: Strings = NO_SECRETS) -> bool | None: ...


class ExpandedDevices(VolumeDevices, Protocol):
    """What the node's part of an expansion needs."""

    def refresh_device(self, handle: str, secrets: Strings = NO_SECRETS) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMount:
    """One mount of a device: its filesystem, or its device node bound on a file."""

    mount: MountPoint
    bound_node: str = ""  # number of the bound device node: the device's or its read-only loop's; "": a filesystem

    @property
    def block(self) -> bool:
        return bool(self.bound_node)

    @property
    def path(self) -> Path:
        return Path(self.mount.target)

    @property
    def read_only(self) -> bool:
        return self.mount.read_only or (self.block and sysfs.read_only(self.bound_node))

    def difference(self, *, block: bool, visible_flags: frozenset[str], earlier: frozenset[str] | None = None) -> str:
        """Return how the volume is mounted here, if not as requested, otherwise "".

        `visible_flags`: what the mount table shows of the request. `earlier`: what it shows of an earlier version's.
        """
        if self.block != block:
            return "as a raw block device" if self.block else "with a filesystem"
        if self.read_only != ("ro" in visible_flags):
            return "read-only" if self.read_only else "read-write"
        same = self.block or mount_flags.visible(self.mount.options) in (visible_flags, earlier)
        return "" if same else "with other mount flags"


def list_mounts(device: Device, table: Sequence[MountPoint] | None = None) -> list[DeviceMount]:
    """Return every mount of the device, in mount order."""
    entries = mounts.table() if table is None else table
    return [found for entry in entries if (found := match(entry, device))]


def match(entry: MountPoint, device: Device) -> DeviceMount | None:
    """Return the entry as a mount of the device, None when it is a mount of something else."""
    number = device_number(entry)
    if number and (number == device.number or number_behind(entry, number) == device.number):
        return as_mount(entry)
    return None


def as_mount(entry: MountPoint) -> DeviceMount:
    return DeviceMount(mount=entry, bound_node=bound_node_number(entry))


def device_number(entry: MountPoint) -> str:
    """Return the number of the device that is mounted, "" when it is not known any more."""
    if entry.fs_type in mounts.DEVICE_NODE_FILESYSTEMS:
        return bound_node_number(entry)
    return mounts.filesystem_number(entry)


def bound_node_number(entry: MountPoint) -> str:
    """Return the number of the device node that a mount binds, "" when it binds none."""
    return _number(entry.target) if entry.binds_node else ""


def is_node_bound_at(path: Path, number: str) -> bool:
    """Whether the node of a device with this number is bound at this path."""
    return any(bound_node_number(entry) == number for entry in mounts.all_at(path))


def number_behind(entry: MountPoint, number: str) -> str:
    """Return the number of the device behind the read-only loop device of this number that is mounted, else "".

    The kernel mounts a filesystem of a read-only device only read-only, so it is not asked about all others.
    """
    return backing_number(number) if entry.binds_node or "ro" in entry.super_options else ""


def backing_number(number: str) -> str:
    """Return the number of the device behind a read-only loop device, "" for any other device."""
    return loopdev.device_behind(number) if number.startswith(loopdev.MAJOR) and sysfs.read_only(number) else ""


def outside(found: Sequence[DeviceMount], paths: Collection[Path], table: Sequence[MountPoint]) -> list[DeviceMount]:
    """Return those of the mounts that are at none of the paths, and no copy of one that is.

    A copy is the same mount below another path: of a directory that was bound elsewhere, with what is mounted in it.
    """
    by_id = {entry.id: entry for entry in table}
    here = {mounts.place(one.mount, by_id) for one in found if one.path in paths}
    return [one for one in found if one.path not in paths and mounts.place(one.mount, by_id) not in here]


def find_device(backend: DeviceCloser, handle: str, secrets: Strings = NO_SECRETS) -> Device | None:
    """Return the volume's device; None when it is not open on this node or the volume does not exist."""
    try:
        return backend.find_device(handle, secrets=secrets)
    except NotFound:
        return None


def mount_at(
    path: Path, device: Device | None, handle: str, seen: Sequence[MountPoint] | None = None
) -> DeviceMount | None:
    """Return the topmost mount of the device at this path, None when nothing is mounted there.

    `seen`: what is mounted there and elsewhere; without it, the kernel is asked. Raises FailedPrecondition when
    anything else is mounted there.
    """
    found = None
    for entry in mounts.all_at(path) if seen is None else mounts.among(seen, path):
        found = match(entry, device) if device else None
        if found is None:
            raise FailedPrecondition(
                f"{path} is occupied by a mount of {entry.source} ({entry.fs_type}), which is not volume {handle!r} "
                f"({f'its device is {device.path}' if device else 'which is not open here'}); unmount it first"
            )
    return found


def staging_mount(staging: Path, device: Device | None, handle: str, seen: Sequence[MountPoint]) -> DeviceMount | None:
    """Return the volume's mount at its staging path, as it was `seen`; None when it is not staged there."""
    places = (staging, staging / mount_paths.BLOCK_FILE)
    return next((found for place in places if (found := mount_at(place, device, handle, seen))), None)


def find_by_path(
    backend: DeviceCloser, handle: str, path: Path, secrets: Strings = NO_SECRETS
) -> tuple[Device, DeviceMount]:
    """Return the device and its mount at a staging or target path. Raises NotFound."""
    device = backend.find_device(handle, secrets=secrets)
    if device is not None and path.is_absolute() and "\0" not in str(path):
        resolved = mount_paths.resolve_parent(path)
        for candidate in (resolved, resolved / mount_paths.BLOCK_FILE):
            entry = mounts.at(candidate)
            if entry is not None and (found := match(entry, device)):
                return device, found
    raise NotFound(f"volume {handle!r} is neither staged nor published at {str(path)!r} on this node")


def _number(path: str) -> str:
    return sysfs.find_number(path, follow=path.startswith("/dev/"))
