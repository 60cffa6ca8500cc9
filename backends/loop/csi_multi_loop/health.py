"""Health: problems of an image, its loop devices, and the instance's directory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from csi_multi.contract import (
    FailedPrecondition,
    Health,
    HealthEntry,
    StorageError,
    StorageHealth,
    StorageHealthEntry,
    VolumeHealth,
)
from csi_multi.host import loopdev, sysfs

from .directory import Directory
from .errors import translated
from .labels import UnreadableLabel, VolumeLabel
from .store import Store, loop_devices

ALMOST_FULL = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthReporter:
    """The health of one instance's volumes and of its directory."""

    directory: Directory
    volumes: Store[VolumeLabel]

    @translated("reading the health of a volume")
    def volume(self, handle: str) -> tuple[HealthEntry, ...]:
        leaf = self.volumes.leaf(handle)
        self.directory.require_ready()
        return self._volume(leaf)

    @translated("reading the health of a volume on its node")
    def volume_on_node(self, handle: str) -> tuple[HealthEntry, ...]:
        leaf = self.volumes.leaf(handle)
        entries = {(entry.status, entry.reason): entry for entry in self._volume(leaf)}
        for entry in device_health(self.volumes.image(leaf)):
            entries.setdefault((entry.status, entry.reason), entry)
        return tuple(entries.values())

    def listed_volume(self, leaf: str) -> VolumeHealth | None:
        """Return what is wrong with an entry of the directory; None: nothing, or it is not a volume of this instance.

        A directory without a label counts only if it holds an image: that is a volume that lost its label.
        """
        try:
            entries = self._volume(leaf)
        except StorageError:  # another driver's, or removed meanwhile
            return None
        if (
            entries
            and entries[0].reason == "MetadataBroken"
            and not (self.volumes.image(leaf).exists() or self.volumes.label_file(leaf).exists())
        ):
            return None
        return VolumeHealth(handle=self.volumes.handle(leaf), entries=entries) if entries else None

    def storage(self) -> tuple[StorageHealthEntry, ...]:
        """Return what is wrong with the directory."""
        try:
            self.directory.require_ready()
            fullness = self.directory.fullness()
            read_only = self.directory.read_only()
        except (OSError, StorageError) as error:
            return (_storage_entry(StorageHealth.STORAGE_UNREACHABLE, "DirectoryUnreachable", str(error)),)
        filesystem = f"the filesystem of {self.directory.path}"
        entries = []
        if read_only:
            message = f"{filesystem} is read-only; check the kernel log"
            entries.append(_storage_entry(StorageHealth.STORAGE_UNREACHABLE, "DirectoryReadOnly", message))
        if fullness > ALMOST_FULL:
            message = f"{filesystem} is {fullness:.1%} full, so writes to volumes may fail; free some space"
            entries.append(_storage_entry(StorageHealth.STORAGE_DEGRADED, "DirectoryAlmostFull", message))
        return tuple(entries)

    def _volume(self, leaf: str) -> tuple[HealthEntry, ...]:
        broken: tuple[HealthEntry, ...] = ()
        size = 0
        try:
            size = self.volumes.read(leaf).size
        except UnreadableLabel as error:  # then the image's size is not known
            broken = (HealthEntry(status=Health.INACCESSIBLE, reason="MetadataBroken", message=str(error)),)
        entry = image_health(self.volumes.image(leaf), size)
        return (*broken, entry) if entry else broken


def image_health(image: Path, size: int) -> HealthEntry | None:
    """Return what is wrong with an image that should hold `size` bytes."""
    try:
        found = image.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        return HealthEntry(
            status=Health.DATA_LOSS,
            reason="BackingFileMissing",
            message=f"image {image} is missing; restore it from a backup, or delete the volume",
        )
    if found < size:
        return HealthEntry(
            status=Health.DATA_LOSS,
            reason="BackingFileTruncated",
            message=f"image {image} has {found} of {size} bytes; restore it from a backup, or delete the volume",
        )
    return None


def complete_size(image: Path, size: int) -> int:
    """Return the image's size. Raises FailedPrecondition when data is missing: nothing repairs that."""
    if entry := image_health(image, size):
        raise FailedPrecondition(entry.message)
    return image.stat().st_size


def device_health(image: Path) -> tuple[HealthEntry, ...]:
    """Return what is wrong with an image's loop devices on this node."""
    devices = loop_devices(image)
    entries = []
    for device in devices:
        if not loopdev.is_bound_to(device, image):
            message = f"{device} shows image {image}, which was deleted; copy the device's data before you unstage it"
            entries.append(HealthEntry(status=Health.DATA_LOSS, reason="BackingFileDeleted", message=message))
        elif (size := sysfs.size_of(sysfs.number_of(device))) > (present := image.stat().st_size):
            message = f"{device} shows {size} bytes, but its image {image} has {present}; restore it from a backup"
            entries.append(HealthEntry(status=Health.DATA_LOSS, reason="BackingFileTruncated", message=message))
    if len(devices) > 1:
        names = ", ".join(str(device) for device in devices)
        message = f"image {image} is attached more than once: {names}; unstage the volume and stage it again"
        entries.append(HealthEntry(status=Health.DEGRADED, reason="AttachedTwice", message=message))
    return tuple(entries)


def _storage_entry(status: StorageHealth, reason: str, message: str) -> StorageHealthEntry:
    return StorageHealthEntry(status=status, reason=reason, message=message)
