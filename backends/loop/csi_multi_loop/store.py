"""Entries that appear and disappear atomically: <directory>/<kind>s/<leaf>/{image,<kind>.json}.

An entry is built in `.new-<leaf>` under a flock, and renamed; it is removed by renaming it to `.gone-<leaf>` first.
A process that dies leaves at most such dot-directories without a lock: the retry or leftovers.py removes them.
Other files in the directory are foreign: they are neither listed nor touched.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Generic

from csi_multi.contract import (
    LEAF_SHAPE,
    AlreadyExists,
    Busy,
    FailedPrecondition,
    NotFound,
    Setting,
    Unavailable,
    WrongNode,
    missing,
    split_local,
)
from csi_multi.host import loopdev

from . import labels
from .client import Client, InvalidLabelFile
from .directory import Directory
from .entry_names import EntryNames
from .labels import ForeignLabel, L, UnreadableLabel

log = logging.getLogger(__name__)

IMAGE = "image"
NAME_PARTS = 2  # of an image's path, <leaf>/image, that are the same wherever the directory is mounted
NEW = ".new-"
GONE = ".gone-"
FULL = (errno.ENOSPC, errno.EDQUOT)
TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)  # of a rename to a name that is taken


def loop_devices(image: Path) -> list[Path]:
    """Return the loop devices bound to an image. Raises Unavailable when one of them does not answer."""
    return loopdev.find(image, name_parts=NAME_PARTS)


def refuse_lost(image: Path) -> None:
    """Raise Unavailable when an image that is not here may be on a disk that is not mounted: a device shows it."""
    if lost := loopdev.find_lost(image, name_parts=NAME_PARTS):
        raise Unavailable(
            f"{image} is not here, but {lost[0]} shows an image of this name; mount its disk again and restart the "
            f"driver, or detach the device (losetup --detach {lost[0]}) when it belongs to nothing that is needed"
        )


def leaf_of(name: str) -> str:
    """Return the leaf of the entry whose directory has this name, also while it is built or removed; "" if foreign."""
    leaf = name.removeprefix(GONE if name.startswith(GONE) else NEW)
    return leaf if LEAF_SHAPE.fullmatch(leaf) else ""


class Store(Generic[L]):
    """All volumes, or all snapshots, of one instance."""

    def __init__(
        self, directory: Directory, kind: str, form: type[L], setting: Setting, client: Client, *, word: str = ""
    ) -> None:
        """`word`: what the directory and the labels are called, where that is not the kind."""
        word = word or kind
        self.path = directory.path / f"{word}s"
        self.directory = directory
        self.kind = kind
        self.label_name = f"{word}.json"
        self._form = form
        self._setting = setting
        self._client = client
        self._names = EntryNames(self.path, directory.changes)

    # Names

    def handle(self, leaf: str) -> str:
        return f"{self._setting.node}/{leaf}"

    def leaf(self, handle: str) -> str:
        """Return the leaf of a handle. Raises NotFound, and WrongNode for a handle of another node."""
        node, leaf = split_local(self.kind, handle)
        if node != self._setting.node:
            raise WrongNode(
                f"{self.kind} {handle!r} is on node {node!r}, and this is node {self._setting.node!r}; "
                "send the request to the driver on that node"
            )
        return leaf

    def image(self, leaf: str) -> Path:
        return self.path / leaf / IMAGE

    def label_file(self, leaf: str) -> Path:
        return self.path / leaf / self.label_name

    def incomplete_image(self, leaf: str) -> Path:
        """Return where the image of an entry is while it is built."""
        return self.path / f"{NEW}{leaf}" / IMAGE

    def leaves(self) -> list[str]:
        """Return all names with the shape of an entry, sorted; some may not be entries."""
        names = self._names.current()
        self.directory.require_ready()  # afterwards, so that a directory that has vanished is not taken for empty
        return names

    # Labels

    def read(self, leaf: str) -> L:
        """Return the label of an entry of this instance. Raises NotFound, UnreadableLabel, ForeignLabel."""
        try:
            label = self._load(self.label_file(leaf))
        except UnreadableLabel:
            if not os.path.lexists(self.path / leaf) or self.half_removed(leaf):
                raise self._missing(leaf) from None
            raise
        owner, own = (label.stamp.driver, label.stamp.cluster), (self._setting.driver, self._setting.cluster)
        if owner != own:
            raise ForeignLabel(
                f"{self.path / leaf} belongs to driver {owner[0]!r} in cluster {owner[1]!r}, "
                f"not to driver {own[0]!r} in cluster {own[1]!r}; give each its own directory"
            )
        return label

    def read_for_listing(self, leaf: str) -> L | None:
        """Return the label; None when the entry is foreign, removed, or (with a warning) unreadable."""
        try:
            return self.read(leaf)
        except (NotFound, ForeignLabel):
            return None
        except UnreadableLabel as error:
            log.warning("%s is left out of a listing: %s", self.path / leaf, error)
            return None

    def replace(self, leaf: str, label: L) -> None:
        """Change the label of an entry. Raises Unavailable without space for it: no other place would help."""
        file = self.label_file(leaf)
        try:
            self._client.replace_label(file, label)
        except OSError as error:
            if error.errno not in FULL:
                raise
            raise Unavailable(
                f"label {file} cannot be changed: {error.strerror}; delete volumes or snapshots, or grow the filesystem"
            ) from error

    def write(self, new: Path, label: L) -> None:
        """Write the label of an entry that is being built, and create its image if that is missing."""
        self._client.write_label(new / self.label_name, label)
        self._client.touch(new / IMAGE)

    def files(self, entry: Path) -> tuple[Path, ...]:
        """Return the files of a complete entry."""
        return entry / IMAGE, entry / self.label_name

    def _load(self, file: Path) -> L:
        try:
            data = self._client.read(file)
        except (FileNotFoundError, NotADirectoryError):
            raise UnreadableLabel(
                f"label {file} is missing, though its directory exists; "
                f"restore it from a backup, or move {file.parent} away"
            ) from None
        except InvalidLabelFile as error:
            raise UnreadableLabel(
                f"label {file} is damaged: {error}; restore it from a backup, or move {file.parent} away"
            ) from None
        return labels.decode(file, data, self._form)

    def _missing(self, leaf: str) -> NotFound:
        """Return that an entry does not exist. Raises Unavailable when the directory has vanished instead."""
        self.directory.require_ready()
        refuse_lost(self.image(leaf))
        return missing(self.kind, self.handle(leaf))

    # Entries

    def refuse_taken(self, leaf: str) -> None:
        if os.path.lexists(self.path / leaf):
            raise AlreadyExists(f"{self.kind} {leaf!r} already exists")

    @contextmanager
    def locked(self, leaf: str, *, shared: bool = False) -> Iterator[None]:
        """Keep other operations away from an entry. Raises NotFound, Busy."""
        with ExitStack() as stack:
            try:
                stack.enter_context(self._client.lock_entry(self.path / leaf, shared=shared))
            except FileNotFoundError:
                raise self._missing(leaf) from None
            except BlockingIOError:
                raise Busy(f"{self.kind} {leaf!r} is locked by another operation; try again") from None
            except NotADirectoryError:
                raise UnreadableLabel(f"{self.path / leaf} is not a directory; move it away") from None
            yield

    @contextmanager
    def building(self, leaf: str, give_up: Callable[[], None] = lambda: None) -> Iterator[Path]:
        """Yield a directory to build an entry in, and give it its name at the end. Raises AlreadyExists, Busy.

        If the block fails, as for a source that is gone, nothing stays, and nothing of an earlier try either. Then
        `give_up` removes what belongs to the entry elsewhere, before the name can be built again.
        """
        with ExitStack() as stack:
            new = self.claim(leaf, stack)
            completed = False
            try:
                self._client.empty(new)  # what an interrupted creation left
                self.refuse_taken(leaf)
                yield new
                self._complete(new, leaf)
                completed = True
            finally:
                if not completed:
                    give_up()
                    self._client.remove(new)
            self._client.sync(self.path)

    def remove(self, leaf: str) -> None:
        """Remove an entry that the caller has locked. Raises FailedPrecondition when it holds foreign files."""
        self.refuse_foreign_files(leaf)
        try:
            self._client.rename(self.path / leaf, self.path / f"{GONE}{leaf}")
        except OSError as error:
            if error.errno not in FULL:
                raise
            self._client.remove_in_place(self.path / leaf)  # which needs no space, not even for a name
        self._client.sync(self.path)
        self.finish_removal(leaf)

    def refuse_foreign_files(self, leaf: str) -> None:
        """Raise FailedPrecondition when the directory of an entry holds files that this driver did not create."""
        foreign = set(os.listdir(self.path / leaf)) - {IMAGE, self.label_name, f".{self.label_name}.new"}
        if foreign:
            raise FailedPrecondition(
                f"{self.path / leaf} holds {min(foreign)!r}, which this driver did not create; move it away"
            )

    def finish_removal(self, leaf: str) -> None:
        """Remove what an interrupted removal of this entry left."""
        self._client.remove(self.path / f"{GONE}{leaf}")
        if self.half_removed(leaf):
            self._client.remove(self.path / leaf)

    def removal_was_interrupted(self, leaf: str) -> bool:
        return os.path.lexists(self.path / f"{GONE}{leaf}") or self.half_removed(leaf)

    def half_removed(self, leaf: str) -> bool:
        """Whether a removal in place was interrupted after it had removed the label."""
        return self.is_marked(leaf) and not os.path.lexists(self.label_file(leaf))

    def is_marked(self, leaf: str) -> bool:
        """Whether an entry has the mark of a removal in place."""
        with suppress(OSError):
            mode = (self.path / leaf).lstat().st_mode
            return stat.S_ISDIR(mode) and bool(mode & stat.S_ISVTX)
        return False

    def claim(self, leaf: str, stack: ExitStack) -> Path:
        """Create the directory in which an entry is built, and lock it until the stack ends. Raises Busy."""
        new = self.path / f"{NEW}{leaf}"
        for _ in range(10):  # leftovers.py may remove the directory before it is locked
            with suppress(FileExistsError):
                self._client.mkdir(new)
            with suppress(FileNotFoundError):
                try:
                    stack.enter_context(self._client.lock(new))
                except BlockingIOError:
                    break
                except FileNotFoundError:
                    raise
                except OSError:
                    self._client.remove_empty(new)
                    raise
                return new
        raise Busy(f"{self.kind} {leaf!r} is being created by another operation; try again")

    def _complete(self, new: Path, leaf: str) -> None:
        for path in (*self.files(new), new):
            self._client.sync(path)
        try:
            # Capacity also counts entries that are being built: the name must not change while it is read.
            with self.directory.lock():
                self._client.rename(new, self.path / leaf)
        except OSError as error:
            if error.errno in TAKEN:
                raise AlreadyExists(f"{self.kind} {leaf!r} already exists") from None
            raise
