"""The JSON file beside every image: what the resource is, kept where the data is."""

from __future__ import annotations

import enum
import os
import secrets
from pathlib import Path
from typing import TypeVar

import msgspec

from csi_multi.contract import Blank, FailedPrecondition, Stamp

VERSION = 1


class Format(enum.Enum):
    """How far a volume is from its first mount."""

    FRESH = "fresh"
    FORMATTING = "formatting"
    USED = "used"

    @property
    def blank(self) -> Blank:
        return {
            Format.FRESH: Blank.ZEROED,  # an image's holes read as zeros
            Format.FORMATTING: Blank.INTERRUPTED,
            Format.USED: Blank.NEVER,
        }[self]


class VolumeFile(msgspec.Struct, frozen=True, kw_only=True):
    """volume.json. Images that share blocks through reflinks are of one family (space.py)."""

    stamp: Stamp
    size: int
    sector_size: int
    format: Format
    family: str
    version: int = VERSION


class SnapshotFile(msgspec.Struct, frozen=True, kw_only=True):
    """snapshot.json. `data` is how many bytes the image holds on disk once it is complete."""

    stamp: Stamp
    source: str
    created: int  # nanoseconds since 1970, UTC
    size: int
    sector_size: int
    data: int
    family: str
    reflinked: bool
    version: int = VERSION


File = VolumeFile | SnapshotFile
F = TypeVar("F", bound=File)


class Broken(FailedPrecondition):
    """The metadata cannot be read, so that nobody knows whose data lies beside it."""


def new_family() -> str:
    return secrets.token_hex(8)


def load(file: Path, form: type[F]) -> F:
    """Read a metadata file. Raises Broken; OSError other than a missing file is the caller's."""
    try:
        found = msgspec.json.decode(file.read_bytes(), type=form)
    except (FileNotFoundError, NotADirectoryError):
        raise Broken(f"{file} is missing, though its directory exists; restore it or move {file.parent} away") from None
    except msgspec.DecodeError as error:
        raise Broken(f"{file} is damaged: {error}; restore it or move {file.parent} away") from None
    if found.version > VERSION:
        raise Broken(f"{file} has version {found.version}, this driver knows up to {VERSION}; upgrade the driver")
    return found


def save(file: Path, value: File) -> None:
    """Write a metadata file as a whole; who publishes the entry makes it durable."""
    _draft(file, value).replace(file)


def replace(file: Path, value: File) -> None:
    """Replace a metadata file durably: after a crash either the old or the new one is there."""
    draft = _draft(file, value)
    sync(draft)
    draft.replace(file)
    sync(file.parent)


def _draft(file: Path, value: File) -> Path:
    draft = file.with_name(f".{file.name}.new")
    draft.write_bytes(msgspec.json.format(msgspec.json.encode(value)))
    return draft


def sync(path: Path) -> None:
    """Bring a file or a directory to disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
