"""Import a raw image file of the instance's filesystem by a hard link, which becomes the image of a new volume.

The file keeps its own name, so its data survives whatever happens to the volume's entry.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from csi_multi.contract import (
    AlreadyExists,
    FailedPrecondition,
    InUse,
    InvalidArgument,
    NotFound,
    Stamp,
    Volume,
    ids,
    not_imported,
)
from csi_multi.host import loopdev

from .capacity import CapacityAccounting
from .client import Client
from .devices import refuse_attached
from .directory import Directory
from .errors import translated
from .image_usage import ImageUsage, allocated
from .labels import Format, VolumeLabel, new_token
from .store import IMAGE, Store

SECTOR = 512  # bytes: the sector size of a loop device that the operator attached by hand
# How files begin that are not raw images.
FORMATS = {b"QFI\xfb": "qcow", b"KDMV": "VMDK", b"vhdxfile": "VHDX", b"conectix": "VHD", b"<<< ": "VDI"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Importer:
    directory: Directory
    volumes: Store[VolumeLabel]
    capacity: CapacityAccounting
    client: Client

    @translated("importing a volume")
    def import_volume(self, path: Path, stamp: Stamp) -> Volume:
        """Create a volume's entry for the file, or find an earlier import. Raises what Import.import_volume says."""
        self.directory.prepare()
        leaf = ids.leaf(stamp.name)
        exists = os.path.lexists(self.volumes.path / leaf)
        label = self._imported_before(leaf, path, stamp) if exists else self._import(leaf, path, stamp)
        return label.to_volume(self.volumes.handle(leaf))

    @translated("releasing a volume")
    def release(self, handle: str) -> str:
        """Remove the volume's entry; the file stays. Raises what Import.release_volume says."""
        self.directory.require_ready()
        leaf = self.volumes.leaf(handle)
        # A name that is left would keep the file from another import. Only where one is, for the steps of a dry run.
        if self.volumes.removal_was_interrupted(leaf):
            self.volumes.finish_removal(leaf)
        with self.volumes.locked(leaf):
            if not self.volumes.read(leaf).stamp.imported:
                raise not_imported(handle)
            image = self.volumes.image(leaf)
            refuse_attached(handle, image)
            status = image.stat()
            if status.st_nlink < 2:
                raise FailedPrecondition(
                    f"{image} is the only name of the file, so removing it would lose the data; "
                    f"give the file a name that stays: ln {image} PATH"
                )
            self.volumes.remove(leaf)
            return f"the file with inode {status.st_ino} under its other name"

    def _import(self, leaf: str, path: Path, stamp: Stamp) -> VolumeLabel:
        status = self._importable(path, leaf)
        _refuse_open(path)
        label = VolumeLabel(
            stamp=stamp,
            size=status.st_size,
            sector_size=SECTOR,
            format=Format.USED,
            family=new_token(),
            id=new_token(),
        )
        usage = ImageUsage(label.family, label.size, allocated(status))
        with self.volumes.building(leaf) as new, self.capacity.admit(usage):
            self.client.write_label(new / self.volumes.label_name, label)
            self.client.link(path, new / IMAGE)
        return label

    def _imported_before(self, leaf: str, path: Path, stamp: Stamp) -> VolumeLabel:
        label = self.volumes.read(leaf)
        if label.stamp == stamp and path.is_file() and self.volumes.image(leaf).samefile(path):
            return label
        raise AlreadyExists(f"volume {leaf!r} already exists; choose another name")

    def _importable(self, path: Path, leaf: str) -> os.stat_result:
        """Return the file's status. Raises InvalidArgument, NotFound, AlreadyExists, FailedPrecondition."""
        if not path.is_absolute():
            raise InvalidArgument(f"{str(path)!r} is not an absolute path; give one such as /srv/images/data.img")
        try:
            status = path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            raise NotFound(f"{path} does not exist") from None
        if not stat.S_ISREG(status.st_mode):
            raise InvalidArgument(f"{path} is not a regular file; name the image file itself")
        if self.directory.path.resolve() in path.resolve().parents:
            raise AlreadyExists(
                f"{path} is in the directory of this instance, whose files belong to the driver; name a file outside "
                "of it"
            )
        incomplete = self._incomplete_link(leaf, path)
        if status.st_nlink > 1 + incomplete:
            raise FailedPrecondition(
                f"{path} has {status.st_nlink} names, so it may be another volume already; "
                f"find the others with: find -inum {status.st_ino}"
            )
        if status.st_dev != self.directory.existing.stat().st_dev:
            raise FailedPrecondition(
                f"{path} is on another filesystem than {self.directory.path}, so it cannot have a name there; "
                "copy it, or configure an instance whose directory is on the file's filesystem"
            )
        _refuse_other_format(path, status.st_size)
        return status

    def _incomplete_link(self, leaf: str, path: Path) -> bool:
        """Return whether an import that was killed has linked the file; this import starts that one over."""
        image = self.volumes.incomplete_image(leaf)
        return image.exists() and image.samefile(path)


def _refuse_other_format(path: Path, size: int) -> None:
    """Raise FailedPrecondition for what is not a raw image."""
    with path.open("rb") as file:
        start = file.read(8)
    if form := next((name for magic, name in FORMATS.items() if start.startswith(magic)), ""):
        raise FailedPrecondition(f"{path} is a {form} image; convert it to a raw one with qemu-img convert -O raw")
    if not size or size % SECTOR:
        raise FailedPrecondition(f"{path} has {size} bytes, not a multiple of {SECTOR}; enlarge it with truncate -s")


def _refuse_open(path: Path) -> None:
    """Raise InUse when any process has the file open: then the kernel refuses a write lease."""
    if devices := loopdev.find(path):
        raise InUse(f"{path} is attached to {devices[0]}; unmount that device, and detach it with losetup -d")
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            raise InUse(f"a process has {path} open; find it with fuser {path}, and end it first") from None
        raise
    finally:
        os.close(descriptor)
