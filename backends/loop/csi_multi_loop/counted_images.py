"""The images that share a filesystem, looked at again only where something has changed.

Names come from the kernel's events. What changes inside an entry without an event is looked at each time: what is
built or removed, and what is not complete. A volume that grows touches its entry below the lock, so what was touched is
looked at until that was done below the lock. Volumes are written to without an event; capacity.py says what of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress

from .changes import Changes, Subscription
from .directory_notes import OpenDirectory
from .entry_names import FLAGS
from .image_usage import KINDS, CountedImage, FamilySums, bytes_of, count_image, still_held
from .store import NEW, leaf_of

MANY = 256  # touched entries, above which all are looked at below the next lock

_Key = tuple[int, int, str]  # device and inode of a directory, kind of the images in it


class CountedImages:
    """What the images in several directories count. Its methods raise OSError, and are called one at a time."""

    def __init__(self, changes: Changes) -> None:
        self._changes = changes
        self._directories: dict[_Key, _CountedDirectory] = {}
        self._read_below_lock = False
        self.sums = FamilySums()
        self.given_up = False  # a creation, since all images were looked at

    @property
    def beside(self) -> int:
        """Bytes that the entries hold on disk beside their images."""
        return sum(one.beside for one in self._directories.values())

    def read(self, directories: Iterable[OpenDirectory], measure_free: Callable[[], int], *, locked: bool) -> int:
        """Look at every image. `locked`: the caller keeps all creations and expansions away.

        Return the space that is free, or held by entries, at least. Volumes may discard meanwhile, or be deleted: so
        that no bytes count as held and then as free, what is held is looked at before and after.
        """
        self.sums, known, self._read_below_lock = FamilySums(), self._read_below_lock, False
        self.given_up = False
        with _image_directories(directories) as found:
            for gone in self._directories.keys() - found.keys():
                self._directories.pop(gone).changed.close()
            for key, descriptor in found.items():
                one = self._directories.setdefault(key, _CountedDirectory(key[2], Subscription(self._changes)))
                known &= one.read(descriptor, self.sums, locked=locked)
            free = measure_free()
            shrunk = sum(self._directories[key].shrunk(descriptor) for key, descriptor in found.items())
        self.sums.settle()
        self._read_below_lock = locked or known
        return free + self.sums.used - shrunk + self.beside

    def update(self, directories: Iterable[OpenDirectory], *, locked: bool) -> bool:
        """Look at what has changed since the last call; return False where that is not known."""
        if locked and not self._read_below_lock:
            return False
        known, self._read_below_lock = self._read_below_lock, False  # until it is done
        with _image_directories(directories) as found:
            if found.keys() != self._directories.keys():
                return False
            for key, descriptor in found.items():
                one = self._directories[key]
                if not one.update(descriptor, self.sums, locked=locked):
                    return False
                self.given_up |= one.given_up
        self._read_below_lock = known and all(len(one.touched) <= MANY for one in self._directories.values())
        return True


class _CountedDirectory:
    """The images of one kind of one instance."""

    def __init__(self, kind: str, changed: Subscription) -> None:
        self.kind = kind
        self.changed = changed
        self.touched: set[str] = set()  # names whose images may be growing
        self.given_up = False  # a creation, found by the last update
        self._incomplete: set[str] = set()
        self._images: dict[str, CountedImage] = {}
        self._beside: dict[str, int] = {}  # bytes of directories and labels
        self.beside = 0  # all of these

    def read(self, directory: int, sums: FamilySums, *, locked: bool) -> bool:
        """Look at all; return whether it is known what was touched since the last call."""
        changed = self.changed.take(directory)
        before, self._images, self._incomplete, self._beside = self._images, {}, set(), {}
        self.beside = 0
        self.touched = set() if locked else self.touched | _touched(changed or {})
        for name in os.listdir(directory):
            self._look(name, directory, sums, before.get(name))
        return changed is not None

    def shrunk(self, directory: int) -> int:
        """Return how many bytes fewer the entries hold than when they were looked at, leaving out those that grew."""
        shrunk = 0
        for name, beside in self._beside.items():
            if bytes_of(name, directory) is None:
                shrunk += beside
            if known := self._images.get(name):
                shrunk += known.usage.allocated - still_held(self.kind, name, directory, known)
        return shrunk

    def update(self, directory: int, sums: FamilySums, *, locked: bool) -> bool:
        """Look at what has changed; return False where that is not known."""
        changed = self.changed.take(directory)
        if changed is None:
            return False
        self.touched |= _touched(changed)
        names = {*changed, *self.touched, *self._incomplete}
        for name in names:
            known = self._images.pop(name, None)
            if known:
                sums.remove(known.usage)
            self._look(name, directory, sums, known)
        gone = {leaf_of(name) for name in names - self._incomplete if name.startswith(NEW)}
        self.given_up = bool(gone - names - {""})  # one that was completed has got its name
        if locked:
            self.touched.clear()
        return True

    def _look(self, name: str, directory: int, sums: FamilySums, known: CountedImage | None) -> None:
        if not leaf_of(name):
            return
        found = count_image(self.kind, name, directory, known)
        if found:
            self._images[name] = found
            sums.add(found.usage)
        beside = bytes_of(name, directory)
        self._note_beside(name, None if beside is None else beside + (found.label_bytes if found else 0))
        if name.startswith(".") if found else beside is not None:
            self._incomplete.add(name)
        else:
            self._incomplete.discard(name)

    def _note_beside(self, name: str, count: int | None) -> None:
        self.beside += (count or 0) - self._beside.pop(name, 0)
        if count is not None:
            self._beside[name] = count


def _touched(changed: Mapping[str, bool]) -> set[str]:
    return {name for name, in_place in changed.items() if in_place}


@contextmanager
def _image_directories(directories: Iterable[OpenDirectory]) -> Iterator[dict[_Key, int]]:
    """Open the directories of the images, as far as they are created."""
    with ExitStack() as stack:
        found = {}
        for directory in directories:
            for kind in KINDS:
                with suppress(FileNotFoundError):
                    descriptor = os.open(f"{kind}s", FLAGS, dir_fd=directory.descriptor)
                    stack.callback(os.close, descriptor)
                    status = os.fstat(descriptor)
                    found[status.st_dev, status.st_ino, kind] = descriptor
        yield found
