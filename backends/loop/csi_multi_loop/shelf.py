"""Entries that appear and disappear as a whole: <directory>/<kind>s/<leaf>/{image,<kind>.json}.

An entry is built in `.new-<leaf>`, held by a flock, and renamed; it is removed by renaming it to
`.gone-<leaf>` first. A process that dies leaves at most such dot-directories, which nobody holds:
the retry removes them, or sweep() does. Everything else in the directory belongs to somebody else.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Generic

from csi_multi.contract import LEAF_SHAPE, AlreadyExists, Busy, FailedPrecondition, NotFound, Setting, missing

from . import metadata
from .files import Files
from .guard import held
from .metadata import Broken, F

log = logging.getLogger(__name__)

IMAGE = "image"
NEW = ".new-"
GONE = ".gone-"
TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)  # rename onto something that is there


class Foreign(FailedPrecondition):
    """The entry carries the stamp of another driver or cluster."""


class Shelf(Generic[F]):
    """All volumes, or all snapshots, of one instance."""

    def __init__(self, directory: Path, kind: str, form: type[F], setting: Setting, files: Files | None = None) -> None:
        self.path = directory / f"{kind}s"
        self.directory = directory
        self.kind = kind
        self.metadata = f"{kind}.json"
        self._form = form
        self._setting = setting
        self._files = files or Files()

    def image(self, leaf: str) -> Path:
        return self.path / leaf / IMAGE

    def file(self, leaf: str) -> Path:
        return self.path / leaf / self.metadata

    def draft(self, leaf: str) -> Path:
        """Return where the image of an entry is while it is built."""
        return self.path / f"{NEW}{leaf}" / IMAGE

    def leaves(self) -> list[str]:
        """Return what has the shape of an entry, sorted; whether it is one its metadata tells."""
        try:
            return sorted(name for name in os.listdir(self.path) if LEAF_SHAPE.fullmatch(name))
        except FileNotFoundError:
            return []

    def read(self, leaf: str) -> F:
        """Return the metadata of an entry of ours. Raises NotFound, Broken, Foreign."""
        try:
            found = metadata.load(self.file(leaf), self._form)
        except Broken:
            if not os.path.lexists(self.path / leaf):
                raise missing(self.kind, f"{self._setting.node}/{leaf}") from None
            raise
        owner, ours = (found.stamp.driver, found.stamp.cluster), (self._setting.driver, self._setting.cluster)
        if owner != ours:
            raise Foreign(
                f"{self.path / leaf} belongs to driver {owner[0]!r} in cluster {owner[1]!r}, "
                f"not to {ours[0]!r} in {ours[1]!r}; give each its own directory"
            )
        return found

    def ours(self, leaf: str) -> F | None:
        """Return the metadata for a listing; None for what is not ours, gone, or (warned of) broken."""
        try:
            return self.read(leaf)
        except (NotFound, Foreign):
            return None
        except Broken as error:
            log.warning("%s is left out of a listing: %s", self.path / leaf, error)
            return None

    def write(self, leaf: str, value: F) -> None:
        metadata.replace(self.file(leaf), value)

    def save(self, new: Path, value: F) -> None:
        """Write the metadata of an entry that is being built; its image is made if it is not there."""
        self._files.save(new / self.metadata, value)
        self._files.touch(new / IMAGE)

    def refuse_taken(self, leaf: str) -> None:
        if os.path.lexists(self.path / leaf):
            raise AlreadyExists(f"{self.kind} {leaf!r} exists")

    @contextmanager
    def holding(self, leaf: str, *, shared: bool = False) -> Iterator[None]:
        """Keep other operations away from an entry. Raises NotFound, Busy."""
        with ExitStack() as stack:
            try:
                stack.enter_context(held(self.path / leaf, shared=shared))
            except FileNotFoundError:
                raise missing(self.kind, f"{self._setting.node}/{leaf}") from None
            except BlockingIOError:
                raise Busy(f"{self.kind} {leaf!r} is being worked on; ask again") from None
            except NotADirectoryError:
                raise Broken(f"{self.path / leaf} is not a directory; move it away") from None
            yield

    @contextmanager
    def building(self, leaf: str) -> Iterator[Path]:
        """Give a directory to build an entry in, and publish it at the end. Raises AlreadyExists, Busy."""
        new = self.path / f"{NEW}{leaf}"
        with ExitStack() as stack:
            self._claim(new, stack)
            published = False
            try:
                self._files.empty(new)  # what a dead process left
                self.refuse_taken(leaf)
                yield new
                self._publish(new, leaf)
                published = True
            finally:
                if not published:
                    self._files.clear(new)
            self._files.sync(self.path)

    def remove(self, leaf: str) -> None:
        """Remove an entry that the caller holds. Raises FailedPrecondition for strange contents."""
        strange = set(os.listdir(self.path / leaf)) - {IMAGE, self.metadata, f".{self.metadata}.new"}
        if strange:
            raise FailedPrecondition(
                f"{self.path / leaf} holds {min(strange)!r}, which this driver did not make; move it away"
            )
        self._files.rename(self.path / leaf, self.path / f"{GONE}{leaf}")
        self._files.sync(self.path)
        self.finish_removal(leaf)

    def finish_removal(self, leaf: str) -> None:
        """Remove what an interrupted removal of this entry left."""
        self._files.clear(self.path / f"{GONE}{leaf}")

    def sweep(self) -> None:
        """Remove what dead processes left half-made or half-removed."""
        for name in os.listdir(self.path):
            prefix = next((prefix for prefix in (NEW, GONE) if name.startswith(prefix)), None)
            if prefix and LEAF_SHAPE.fullmatch(name.removeprefix(prefix)):
                with suppress(FileNotFoundError, BlockingIOError), held(self.path / name):
                    log.info("removing %s, which an interrupted operation left", self.path / name)
                    self._files.clear(self.path / name)

    def _claim(self, new: Path, stack: ExitStack) -> None:
        for _ in range(10):  # a sweep may remove the directory before it is held
            with suppress(FileExistsError):
                self._files.mkdir(new)
            with suppress(FileNotFoundError):
                try:
                    stack.enter_context(self._files.held(new))
                except BlockingIOError:
                    break
                return
        raise Busy(f"{self.kind} {new.name.removeprefix(NEW)!r} is being made; ask again")

    def _publish(self, new: Path, leaf: str) -> None:
        for path in (new / IMAGE, new / self.metadata, new):
            self._files.sync(path)
        try:
            # Space counts what is being built, too: the name must not change while it looks.
            with self._files.held(self.directory, wait=True):
                self._files.rename(new, self.path / leaf)
        except OSError as error:
            if error.errno in TAKEN:
                raise AlreadyExists(f"{self.kind} {leaf!r} exists") from None
            raise
