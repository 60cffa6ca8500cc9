"""A backend whose creations change nothing: for `csi-multi explain`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from csi_multi.contract import DryRunReport, Setting, Unpredictable, VolumeRequest
from csi_multi.host import mounts
from csi_multi.host.mounts import MountPoint

from .backend import LoopBackend
from .config import Config
from .files import Files
from .freeze import Freezer
from .metadata import File
from .place import FROZEN, Place
from .shelf import GONE

SHARING = frozenset({"btrfs", "xfs"})  # filesystems whose files can share blocks, as their mkfs makes them
ROOM = 2**62  # bytes: everything fits
SECTOR = 512  # bytes, of most disks


class DryRunBackend(LoopBackend):
    def __init__(self, config: Config, setting: Setting, report: DryRunReport) -> None:
        place = _Place(config, report)
        freezer = _Freezer(setting.host, place.directory / FROZEN)
        freezer.report = report
        super().__init__(config, setting, _Files(report), place, freezer)
        self._report = report

    def _source(self, kind: str, request: VolumeRequest) -> str:
        if self._report.offline:
            raise Unpredictable(f"what the {kind} holds is not known")
        return super()._source(kind, request)


class _Files(Files):
    def __init__(self, report: DryRunReport) -> None:
        self._report = report

    def prepare(self, directory: Path) -> None:
        if not directory.is_dir() or self._report.offline:
            self._report.change("mkdir", "-p", str(directory), why="the instance's own directory, on first use")

    def mkdir(self, directory: Path) -> None:
        why = "where it is built, out of sight; a directory that a killed process left is taken over"
        self._report.change("mkdir", "-m", "700", str(directory), why=why)

    @contextmanager
    def held(self, directory: Path, *, wait: bool = False) -> Iterator[None]:
        """What is not changed need not be held."""
        yield

    def empty(self, directory: Path) -> None:
        """The directory would be new."""

    def clear(self, directory: Path) -> None:
        self._report.change("rm", "-r", str(directory), why="what is left of it goes")

    def save(self, file: Path, value: File) -> None:
        text = msgspec.json.encode(value).decode()
        self._report.change("write", str(file), text, why="whose it is, its size, and how far its formatting is")

    def touch(self, image: Path) -> None:
        self._report.change("touch", str(image), why="the image: a sparse file, which takes space as it is written")

    def link(self, file: Path, image: Path) -> None:
        self._report.change("ln", str(file), str(image), why="the file stays where it is, and has a second name")

    def truncate(self, image: Path, size: int) -> None:
        why = f"its size: {size} bytes, a multiple of 4096; all of them read as zeros"
        self._report.change("truncate", "-s", str(size), str(image), why=why)

    def fill(self, image: Path, source: Path, *, shares: bool) -> None:
        how = "--reflink=always" if shares else "--sparse=always"
        why = "the source's bytes, by sharing its blocks" if shares else "the source's bytes, but for its holes"
        self._report.change("cp", how, str(source), str(image), why=why)

    def can_reflink(self, directory: Path) -> bool:
        kind = _filesystem(directory)
        if self._report.offline:
            kind = "one that is not known"
        shares = kind in SHARING
        can = "can" if shares else "cannot"
        self._report.assume(f"files of the directory's filesystem ({kind}) {can} share blocks; the driver tries it")
        return shares

    def sync(self, path: Path) -> None:
        self._report.change("sync", str(path), why="so that it survives a power cut")

    def rename(self, old: Path, new: Path) -> None:
        does = "disappears" if new.name.startswith(GONE) else "appears, whole,"
        self._report.change("mv", "-T", str(old), str(new), why=f"the volume {does} in one step")


class _Place(Place):
    """A directory that is not made; before its first use what it would lie on is asked."""

    def __init__(self, config: Config, report: DryRunReport) -> None:
        super().__init__(config, _Files(report))
        self._report = report

    def guard(self) -> None:
        if not self._report.offline:
            super().guard()

    def free(self) -> tuple[int, int]:
        if self._report.offline:
            self._report.assume("there is room in the directory")
            return ROOM, 0
        told = super().free()
        why = f"{told[0]} bytes are free, of which {told[1]} stay so"
        self._report.look("stat", "-f", str(self.existing), why=why)
        return told

    def sector_size(self) -> int:
        if not self._report.offline:
            return super().sector_size()
        self._report.assume(f"the disk below has sectors of {SECTOR} bytes")
        return SECTOR

    @property
    def existing(self) -> Path:
        return next(path for path in (self.directory, *self.directory.parents) if path.is_dir())


class _Freezer(Freezer):
    report: DryRunReport

    @contextmanager
    def frozen(self, leaf: str, found: list[MountPoint]) -> Iterator[None]:
        place = found[0].target
        why = "the source is mounted: everything written so far is in its image, and nothing half-written"
        self.report.change("fsfreeze", "--freeze", place, why=why)
        yield
        self.report.change("fsfreeze", "--unfreeze", place, why="the source's users go on")


def _filesystem(directory: Path) -> str:
    """Return the kind of the filesystem that a path would be on."""
    path = os.path.realpath(directory)
    above = [mount for mount in mounts.table() if f"{path}/".startswith(f"{mount.target.rstrip('/')}/")]
    return max(above, key=lambda mount: len(mount.target)).fs_type
