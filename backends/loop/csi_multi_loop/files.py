"""The calls of the operating system by which a creation changes an instance's directory.

They are behind one door, so that a creation can be gone through without making them (explaining.py).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from . import metadata
from .copies import can_reflink, copy, reflink
from .guard import held
from .metadata import File


class Files:
    """The real ones. Every method raises OSError."""

    def prepare(self, directory: Path) -> None:
        """Make a directory of the instance, and those above it, where they are missing."""
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def mkdir(self, directory: Path) -> None:
        directory.mkdir(mode=0o700)

    @contextmanager
    def held(self, directory: Path, *, wait: bool = False) -> Iterator[None]:
        """Hold a directory for the block, as guard.held does."""
        with held(directory, wait=wait):
            yield

    def empty(self, directory: Path) -> None:
        """Remove the files in a directory of ours, if it is there."""
        with suppress(FileNotFoundError):
            for name in os.listdir(directory):
                (directory / name).unlink(missing_ok=True)

    def clear(self, directory: Path) -> None:
        """Remove a directory of ours and the files in it, whatever of it is still there."""
        self.empty(directory)
        with suppress(FileNotFoundError):
            directory.rmdir()

    def save(self, file: Path, value: File) -> None:
        """Write a metadata file as a whole; who publishes the entry makes it durable."""
        metadata.save(file, value)

    def touch(self, image: Path) -> None:
        image.touch(mode=0o600)

    def link(self, file: Path, image: Path) -> None:
        """Give a file another name."""
        image.hardlink_to(file)

    def truncate(self, image: Path, size: int) -> None:
        os.truncate(image, size)

    def fill(self, image: Path, source: Path, *, shares: bool) -> None:
        """Give an image the bytes of another, by sharing its blocks or by copying what is not a hole."""
        if shares:
            reflink(source, image)
        else:
            copy(source, image)

    def can_reflink(self, directory: Path) -> bool:
        """Whether files in a directory of ours can share blocks, found out by doing it."""
        return can_reflink(directory)

    def sync(self, path: Path) -> None:
        metadata.sync(path)

    def rename(self, old: Path, new: Path) -> None:
        old.rename(new)
