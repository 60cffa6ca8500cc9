"""What can be wrong with an image, its device, or the directory."""

from __future__ import annotations

from pathlib import Path

from csi_multi.contract import FailedPrecondition, Health, HealthEntry, StorageError, StorageHealth, StorageHealthEntry
from csi_multi.host import loopdev, sysfs

from .metadata import Broken, VolumeFile
from .place import Place
from .shelf import Shelf

FULL = 0.95


def of_image(image: Path, size: int) -> HealthEntry | None:
    """Return what is wrong with a backing file that should hold `size` bytes."""
    try:
        found = image.stat().st_size
    except FileNotFoundError:
        return HealthEntry(
            status=Health.DATA_LOSS,
            reason="BackingFileMissing",
            message=f"{image} is gone; restore it from a backup, or delete the volume",
        )
    if found < size:
        return HealthEntry(
            status=Health.DATA_LOSS,
            reason="BackingFileTruncated",
            message=f"{image} has {found} of {size} bytes; restore it from a backup, or delete the volume",
        )
    return None


def refuse_incomplete(image: Path, size: int) -> int:
    """Return the image's size. Raises FailedPrecondition when data is missing: nothing repairs that."""
    if trouble := of_image(image, size):
        raise FailedPrecondition(trouble.message)
    return image.stat().st_size


def of_volume(volumes: Shelf[VolumeFile], leaf: str) -> tuple[HealthEntry, ...]:
    """Return what is wrong with a volume. Raises NotFound, Foreign."""
    try:
        found = volumes.read(leaf)
    except Broken as error:
        return (HealthEntry(status=Health.INACCESSIBLE, reason="MetadataBroken", message=str(error)),)
    trouble = of_image(volumes.image(leaf), found.size)
    return (trouble,) if trouble else ()


def of_listed(volumes: Shelf[VolumeFile], leaf: str) -> tuple[HealthEntry, ...] | None:
    """Return what is wrong with something found in the directory; None: nothing, or not ours.

    A directory without metadata counts only with an image in it: the shape of a volume that lost them.
    """
    try:
        found = of_volume(volumes, leaf)
    except StorageError:  # another's, or gone meanwhile
        return None
    if (
        found
        and found[0].reason == "MetadataBroken"
        and not (volumes.image(leaf).exists() or volumes.file(leaf).exists())
    ):
        return None
    return found or None


def of_device(image: Path) -> tuple[HealthEntry, ...]:
    """Return what is wrong with an image's loop devices on this node."""
    attached = loopdev.find(image)
    entries = []
    for device in attached:
        if not loopdev.backs(device, image):
            message = f"{device} still holds the deleted file {image}; copy its data away before unstaging"
            entries.append(HealthEntry(status=Health.DATA_LOSS, reason="BackingFileDeleted", message=message))
        elif (shown := sysfs.size_of(sysfs.number_of(device))) > image.stat().st_size:
            message = f"{device} shows {shown} bytes, more than {image} has; restore it from a backup"
            entries.append(HealthEntry(status=Health.DATA_LOSS, reason="BackingFileTruncated", message=message))
    if len(attached) > 1:
        names = ", ".join(str(device) for device in attached)
        message = f"{image} is attached more than once: {names}; unstage the volume and stage it again"
        entries.append(HealthEntry(status=Health.DEGRADED, reason="AttachedTwice", message=message))
    return tuple(entries)


def of_place(place: Place) -> tuple[StorageHealthEntry, ...]:
    """Return what is wrong with the directory."""
    try:
        place.guard()
        filled = place.filled()
        read_only = place.read_only()
    except (OSError, StorageError) as error:
        return (_storage(StorageHealth.STORAGE_UNREACHABLE, "DirectoryUnreachable", str(error)),)
    where = f"the filesystem of {place.directory}"
    entries = []
    if read_only:
        message = f"{where} is read-only; check the kernel log"
        entries.append(_storage(StorageHealth.STORAGE_UNREACHABLE, "DirectoryReadOnly", message))
    if filled > FULL:
        message = f"{where} is {filled:.1%} full; volumes on it may fail to write"
        entries.append(_storage(StorageHealth.STORAGE_DEGRADED, "DirectoryAlmostFull", message))
    return tuple(entries)


def _storage(status: StorageHealth, reason: str, message: str) -> StorageHealthEntry:
    return StorageHealthEntry(status=status, reason=reason, message=message)
