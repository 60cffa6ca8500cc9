"""Take over a raw image file that lies on the instance's filesystem: it gets a second name among the volumes.

The file stays where it is, so nothing that happens to the volume's entry can lose it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from pathlib import Path

from csi_multi.contract import AlreadyExists, FailedPrecondition, InUse, InvalidArgument, NotFound, Stamp, not_imported
from csi_multi.host import loopdev

from .files import Files
from .metadata import Format, VolumeFile, new_family
from .place import Place
from .shelf import IMAGE, Shelf
from .space import BLOCK, Image, Space

SECTOR = 512  # bytes: what a loop device of the operator's own had
# What files that are no raw images begin with.
FORMATS = {b"QFI\xfb": "qcow", b"KDMV": "VMDK", b"vhdxfile": "VHDX", b"conectix": "VHD", b"<<< ": "VDI"}


class Importer:
    def __init__(self, place: Place, volumes: Shelf[VolumeFile], space: Space, files: Files) -> None:
        self._place = place
        self._volumes = volumes
        self._space = space
        self._files = files

    def take(self, leaf: str, path: Path, stamp: Stamp) -> VolumeFile:
        """Make an entry for the file, or find the one that was made. Raises what Import.import_volume says."""
        if os.path.lexists(self._volumes.path / leaf):
            return self._earlier(leaf, path, stamp)
        found = self._status(path, leaf)
        _refuse_used(path)
        value = VolumeFile(stamp=stamp, size=found.st_size, sector_size=SECTOR, format=Format.USED, family=new_family())
        counted = Image(value.family, value.size, found.st_blocks * BLOCK)
        with self._volumes.building(leaf) as new, self._space.admitting(counted):
            self._files.save(new / self._volumes.metadata, value)
            self._files.link(path, new / IMAGE)
        return value

    def release(self, leaf: str, handle: str) -> str:
        """Take the volume's name from the file. Raises what Import.release_volume says."""
        with self._volumes.holding(leaf):
            if not self._volumes.read(leaf).stamp.imported:
                raise not_imported(handle)
            image = self._volumes.image(leaf)
            if attached := loopdev.find(image):
                raise InUse(f"volume {handle!r} is attached to {attached[0]}; unpublish and unstage it first")
            found = image.stat()
            if found.st_nlink < 2:
                raise FailedPrecondition(
                    f"{image} is the only name that the file has left: removing it would lose the data; give it one "
                    f"where it is to stay, with ln {image} PATH"
                )
            self._volumes.remove(leaf)
            return f"the file with inode {found.st_ino} under its other name"

    def _earlier(self, leaf: str, path: Path, stamp: Stamp) -> VolumeFile:
        value = self._volumes.read(leaf)
        if value.stamp == stamp and path.is_file() and self._volumes.image(leaf).samefile(path):
            return value
        raise AlreadyExists(f"there is another volume {leaf!r} already; choose another name")

    def _status(self, path: Path, leaf: str) -> os.stat_result:
        """Raises InvalidArgument, NotFound, FailedPrecondition for what cannot become a volume."""
        if not path.is_absolute():
            raise InvalidArgument(f"{str(path)!r} is not an absolute path of an image file")
        try:
            found = path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            raise NotFound(f"{path} does not exist") from None
        if not stat.S_ISREG(found.st_mode):
            raise InvalidArgument(f"{path} is no regular file: an image file is imported by its own path")
        if self._place.directory.resolve() in path.resolve().parents:
            raise AlreadyExists(f"{path} lies in the directory of this instance, where all is the driver's")
        half_made = self._volumes.draft(leaf)  # by an import that was killed: begun anew below
        ours = half_made.exists() and half_made.samefile(path)
        if found.st_nlink > 1 + ours:
            raise FailedPrecondition(f"{path} has {found.st_nlink} names; it may be another volume: find -inum tells")
        if found.st_dev != self._place.existing.stat().st_dev:
            raise FailedPrecondition(
                f"{path} is on another filesystem than {self._place.directory}, so it cannot have a name there; "
                "copy it, or configure an instance with a directory beside it"
            )
        _refuse_form(path, found.st_size)
        return found


def _refuse_form(path: Path, size: int) -> None:
    """Raise FailedPrecondition for what is not a raw image."""
    with path.open("rb") as file:
        start = file.read(8)
    if form := next((name for magic, name in FORMATS.items() if start.startswith(magic)), ""):
        raise FailedPrecondition(f"{path} is a {form} image; make a raw one of it with qemu-img convert -O raw")
    if not size or size % SECTOR:
        raise FailedPrecondition(f"{path} has {size} bytes, not a multiple of {SECTOR}; enlarge it with truncate -s")


def _refuse_used(path: Path) -> None:
    """Raise InUse when anybody has the file open: a lease for writing is given only to who is alone."""
    if attached := loopdev.find(path):
        raise InUse(f"{path} is attached to {attached[0]}; unmount that, and detach it with losetup -d")
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            raise InUse(f"{path} is open in some process (fuser {path} tells); end that first") from None
        raise
    finally:
        os.close(descriptor)
