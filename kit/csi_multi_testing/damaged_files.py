"""Damage to a file below Storage.records, for a block."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from .context import CheckContext
from .occupied_space import beside
from .storage_contents import MAX_RECORD


def damages(t: CheckContext, file: Path) -> dict[str, AbstractContextManager[None]]:
    """Return what can happen to a file below Storage.records, for a block, by what is then said of it."""
    place = next(beside(directory) for directory in t.storage.records if file.is_relative_to(directory))
    size = file.stat().st_size
    found: dict[str, AbstractContextManager[None]] = {
        "is missing": missing(file, place),
        "is empty": replaced(file, place, 0),
        "holds zeros": replaced(file, place, size),
    }
    if size <= MAX_RECORD:
        found["was overwritten with zeros"] = overwritten(file)
    return found


@contextmanager
def missing(file: Path, place: Path) -> Iterator[None]:
    """Take a file away for the block, to `place`, or where that is another filesystem or subvolume, beside itself."""
    with ExitStack() as undo:
        try:
            away = _moved(file, place, undo)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            away = _moved(file, file.parent, undo)
        try:
            yield
        finally:
            away.rename(file)


def _moved(file: Path, place: Path, undo: ExitStack) -> Path:
    away = Path(undo.enter_context(TemporaryDirectory(prefix=".kit-away-", dir=place)), "file")
    return file.rename(away)


@contextmanager
def replaced(file: Path, place: Path, size: int) -> Iterator[None]:
    """Put a file of zeros in the place of this one for the block."""
    with missing(file, place):
        try:
            file.touch()
            os.truncate(file, size)
            yield
        finally:
            file.unlink(missing_ok=True)


@contextmanager
def overwritten(file: Path) -> Iterator[None]:
    """Overwrite a small file with zeros for the block: it stays the same file, with its owner and its attributes."""
    content = file.read_bytes()
    try:
        file.write_bytes(bytes(len(content)))
        yield
    finally:
        file.write_bytes(content)
