"""Where a device is mounted on this node: as a filesystem, or as a device node bound on a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..contract.backend import Backend
from ..contract.errors import FailedPrecondition, NotFound
from ..contract.model import Device
from ..host import mounts, sysfs
from ..host.mounts import MountPoint
from . import mount_paths


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


def list_mounts(device: Device, table: Sequence[MountPoint] | None = None) -> list[DeviceMount]:
    """Return every mount of the device, in mount order."""
    entries = mounts.table() if table is None else table
    return [found for entry in entries if (found := match(entry, device))]


def match(entry: MountPoint, device: Device) -> DeviceMount | None:
    """Return the entry as a mount of the device, None when it is a mount of something else."""
    if entry.fs_type in mounts.DEVICE_NODE_FILESYSTEMS:
        node = bound_node_number(entry)
        matches = bool(node) and device.number in (node, backing_number(node))
        return DeviceMount(mount=entry, bound_node=node) if matches else None
    # btrfs has numbers of its own in the mount table; its source is the device that is really used.
    number = _number(entry.source) if entry.fs_type == "btrfs" else entry.number
    return DeviceMount(mount=entry) if number == device.number else None


def bound_node_number(entry: MountPoint) -> str:
    """Return the number of the device node that a mount binds, "" when it binds none."""
    return _number(entry.target) if entry.binds_node else ""


def backing_number(number: str) -> str:
    """Return the number of the device behind a read-only loop device, "" for any other device."""
    backing = sysfs.attribute(number, "loop/backing_file")
    return _number(backing) if backing and sysfs.read_only(number) else ""


def find_device(backend: Backend, handle: str) -> Device | None:
    """Return the volume's device; None when it is not open on this node or the volume does not exist."""
    try:
        return backend.find_device(handle)
    except NotFound:
        return None


def mount_at(path: Path, device: Device | None, handle: str) -> DeviceMount | None:
    """Return the topmost mount of the device at this path, None when nothing is mounted there.

    Raises FailedPrecondition when anything else is mounted there.
    """
    found = None
    for entry in mounts.all_at(path):
        found = match(entry, device) if device else None
        if found is None:
            raise FailedPrecondition(
                f"{path} is occupied by a mount of {entry.source} ({entry.fs_type}), which is not volume {handle!r} "
                f"({f'its device is {device.path}' if device else 'which is not open here'}); unmount it first"
            )
    return found


def staging_mount(staging: Path, device: Device | None, handle: str) -> DeviceMount | None:
    """Return the volume's mount at its staging path, None when it is not staged there."""
    return mount_at(staging, device, handle) or mount_at(staging / mount_paths.BLOCK_FILE, device, handle)


def is_occupied(staging: Path) -> bool:
    """Whether anything is mounted at this staging path."""
    return bool(mounts.at(staging) or mounts.at(staging / mount_paths.BLOCK_FILE))


def find_by_path(backend: Backend, handle: str, path: Path) -> tuple[Device, DeviceMount]:
    """Return the device and its mount at a staging or target path. Raises NotFound."""
    device = backend.find_device(handle)
    if device is not None and path.is_absolute() and "\0" not in str(path):
        resolved = mount_paths.resolve_parent(path)
        for candidate in (resolved, resolved / mount_paths.BLOCK_FILE):
            entry = mounts.at(candidate)
            if entry is not None and (found := match(entry, device)):
                return device, found
    raise NotFound(f"volume {handle!r} is neither staged nor published at {str(path)!r} on this node")


def _number(path: str) -> str:
    return sysfs.find_number(path, follow=path.startswith("/dev/"))
