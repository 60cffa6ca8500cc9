"""Notes by which the drivers of a node find each other's directories on one filesystem.

A container sees only the directories that are mounted into it. But the kernel opens any directory of a filesystem by
its file handle, for a process that has another one of it open. So a note says where a directory is, and nothing about
its volumes: those are read, and locked, in the directory itself, so nothing that a note says can be out of date.

The containers of a node share /dev and nothing else, so the notes are there, by the number of the filesystem. A boot
removes them; each instance therefore keeps copies of the others' notes in its directory, because one of them may start
later or never. A note is outdated when its directory does not exist any more, or has no owner file or another one.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from csi_multi.contract import Unavailable
from csi_multi.host import mounts

from . import owner
from .client import DIRECTORY_FLAGS, Client, InvalidLabelFile, read_label
from .file_handles import FileHandle, handle_of, open_directory

NOTES = Path("/dev/csi-multi-loop")
COPIES = "sharing.json"  # in an instance's directory: the others' notes by their names

T = TypeVar("T")


class DirectoryNote(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of a note."""

    path: str  # where its driver sees the directory, for people
    token: str  # of its owner file
    handle: FileHandle


class OpenDirectory(NamedTuple):
    """An instance's directory that is open. `path` is where its own driver sees it."""

    descriptor: int
    path: Path


class DirectoryNotes:
    """The notes about the filesystem of one instance's directory. All methods raise OSError and Unavailable."""

    def __init__(self, directory: Path, client: Client) -> None:
        self._directory = directory
        self._copies = directory / COPIES
        self._client = client

    def missing(self, token: str) -> dict[Path, bytes]:
        """Return the files that are still to be written: the directory's own note, and the copies of the others."""
        with _opened(self._directory) as descriptor:
            folder, handle = NOTES / _number(descriptor), handle_of(descriptor)
            if handle is None:
                return {}  # nobody could open the directory by its note
            own = msgspec.json.encode(DirectoryNote(path=str(self._directory), token=token, handle=handle))
            name = hashlib.sha256(own).hexdigest()[:32]
            names, copies = _names(folder), self._read_copies()
            found = {} if name in names else {folder / name: own}
            if names - copies.keys() - {name}:
                notes = {file.name: note for file, note in self._all(descriptor) if file.name != name}
                current = {name: note for name, note in notes.items() if not _is_outdated(note, descriptor)}
                found[self._copies] = msgspec.json.format(msgspec.json.encode(current))
        return found

    def write(self, files: dict[Path, bytes]) -> None:
        """Write what is missing. The caller has locked the directory."""
        for file, data in files.items():
            try:
                self._client.write_note(file, data)
            except OSError as error:
                if file == self._copies:
                    continue  # they are needed after a boot only; the next check tries again
                raise Unavailable(
                    f"{file}: {error.strerror}; mount the /dev of the node into the container of the driver, writable"
                ) from None

    def open_others(self, descriptor: int, known: Iterable[int]) -> Iterator[OpenDirectory]:
        """Open the noted directories on the filesystem of an open one, without those that are open already."""
        handles = {handle_of(one) for one in known}
        for file, note in self._all(descriptor):
            if note.handle in handles:
                continue
            handles.add(note.handle)
            other = _open(note, descriptor)
            if other is not None:
                yield OpenDirectory(other, Path(note.path))
            elif file.parent != self._copies:
                self._client.remove_note(file)

    def _all(self, descriptor: int) -> Iterator[tuple[Path, DirectoryNote]]:
        folder = NOTES / _number(descriptor)
        for name in sorted(_names(folder)):
            with suppress(FileNotFoundError):
                yield folder / name, _decoded(folder / name, DirectoryNote)
        yield from ((self._copies / name, note) for name, note in self._read_copies().items())

    def _read_copies(self) -> dict[str, DirectoryNote]:
        try:
            return _decoded(self._copies, dict[str, DirectoryNote])
        except FileNotFoundError:
            return {}


def _names(folder: Path) -> set[str]:
    with suppress(FileNotFoundError):
        return {name for name in os.listdir(folder) if not name.startswith(".")}
    return set()


def _decoded(file: Path, form: type[T]) -> T:
    try:
        return msgspec.json.decode(read_label(file), type=form)
    except (InvalidLabelFile, msgspec.DecodeError) as error:
        raise Unavailable(f"{file} is not of this driver, or damaged: {error}; remove the file") from None


def _is_outdated(note: DirectoryNote, descriptor: int) -> bool:
    with suppress(Unavailable):  # then it is not known
        other = _open(note, descriptor)
        if other is None:
            return True
        os.close(other)
    return False


def _open(note: DirectoryNote, descriptor: int) -> int | None:
    """Open the directory of a note; None when the note is outdated."""
    try:
        other = open_directory(note.handle, descriptor)
    except OSError as error:
        if error.errno == errno.ESTALE:
            return None
        if error.errno == errno.EPERM:
            raise Unavailable(
                f"{note.path}, a directory of another instance on the same filesystem, cannot be opened to count its "
                "volumes; give the driver CAP_DAC_READ_SEARCH, which a privileged container has, or a filesystem of "
                "its own"
            ) from None
        raise
    with ExitStack() as undo:
        undo.callback(os.close, other)
        if not owner.has_token(other, note.token):
            return None
        undo.pop_all()
    return other


@contextmanager
def _opened(directory: Path) -> Iterator[int]:
    descriptor = os.open(directory, DIRECTORY_FLAGS)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _number(descriptor: int) -> str:
    """Return the number of the filesystem that an open directory is on."""
    mount = mounts.id_of(descriptor)
    for one in mounts.table():
        if one.id == mount:
            return one.number
    raise Unavailable("the filesystem of the directory has just been unmounted; mount it again")
