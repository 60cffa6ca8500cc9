"""Where a device shows in the mount table: as a mounted filesystem, or as a node bound on a file."""

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
class View:
    """One place where a device shows."""

    mount: MountPoint
    node: str = ""  # the number of the bound device node, its own or a read-only layer's; "": a filesystem

    @property
    def block(self) -> bool:
        return bool(self.node)

    @property
    def path(self) -> Path:
        return Path(self.mount.target)

    @property
    def read_only(self) -> bool:
        return self.mount.read_only or (self.block and sysfs.read_only(self.node))


def of(device: Device, table: Sequence[MountPoint] | None = None) -> list[View]:
    """Return every view of the device, in mount order."""
    entries = mounts.table() if table is None else table
    return [found for entry in entries if (found := view(entry, device))]


def view(entry: MountPoint, device: Device) -> View | None:
    """Return how this mount shows the device, None when it does not."""
    if entry.fs_type in mounts.DEVICE_NODE_FILESYSTEMS:
        node = node_at(entry)
        return View(mount=entry, node=node) if node and device.number in (node, below(node)) else None
    # btrfs has numbers of its own in the mount table; its source is the device that is really used.
    number = _number(entry.source) if entry.fs_type == "btrfs" else entry.number
    return View(mount=entry) if number == device.number else None


def node_at(entry: MountPoint) -> str:
    """Return the number of the device node that a mount binds, "" when it binds none."""
    return _number(entry.target) if entry.binds_node else ""


def below(number: str) -> str:
    """Return the number of the device that a read-only loop device is layered over, "" for any other."""
    backing = sysfs.attribute(number, "loop/backing_file")
    return _number(backing) if backing and sysfs.read_only(number) else ""


def find(backend: Backend, handle: str) -> Device | None:
    """Return the volume's device; None when it is not open here or the volume is gone."""
    try:
        return backend.find_device(handle)
    except NotFound:
        return None


def at(path: Path, device: Device | None, handle: str) -> View | None:
    """Return the topmost view at this path, None when nothing is mounted there.

    Raises FailedPrecondition when anything mounted there is not the volume's.
    """
    found = None
    for entry in mounts.stack(path):
        found = view(entry, device) if device else None
        if found is None:
            raise FailedPrecondition(
                f"{path} is occupied by a mount of {entry.source} ({entry.fs_type}), which is not volume {handle!r} "
                f"({f'its device is {device.path}' if device else 'which is not open here'}); unmount it first"
            )
    return found


def staged(staging: Path, device: Device | None, handle: str) -> View | None:
    """Return how the volume is staged at this path, None when it is not."""
    return at(staging, device, handle) or at(staging / mount_paths.NODE, device, handle)


def occupied(staging: Path) -> bool:
    """Whether anything is mounted at this staging path."""
    return bool(mounts.at(staging) or mounts.at(staging / mount_paths.NODE))


def locate(backend: Backend, handle: str, path: Path) -> tuple[Device, View]:
    """Return the device and its view at a staging or target path. Raises NotFound."""
    device = backend.find_device(handle)
    if device is not None and path.is_absolute() and "\0" not in str(path):
        place = mount_paths.real(path)
        for candidate in (place, place / mount_paths.NODE):
            entry = mounts.at(candidate)
            if entry is not None and (found := view(entry, device)):
                return device, found
    raise NotFound(f"volume {handle!r} is neither staged nor published at {str(path)!r} on this node")


def _number(path: str) -> str:
    return sysfs.find_number(path, follow=path.startswith("/dev/"))
