"""The dry run for `csi-multi explain`: the same backend over a client that reports changes instead of making them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import msgspec

from csi_multi.contract import FREEZE_SECONDS, DryRunReport, Freeze, Setting, Unpredictable
from csi_multi.host import loopfile

from .client import Client
from .config import Config
from .directory import Directory
from .directory_notes import OpenDirectory
from .labels import Label
from .shared_filesystem import mount_of
from .store import GONE

REFLINK_FILESYSTEMS = frozenset({"btrfs", "xfs"})  # with the defaults of their mkfs
UNLIMITED_SPACE = 2**62  # bytes
WHOLE_COPY = (
    "the source's bytes, except for its holes; if the source is mounted, whatever writes to it waits until all of them "
    "are copied: keep the directory on xfs or btrfs"
)
USUAL_SECTOR = 512  # bytes


class DryRunClient(Client):
    def __init__(self, report: DryRunReport) -> None:
        self._report = report

    def create_directory(self, directory: Path) -> None:
        if self._report.offline or not directory.is_dir():
            self._report.record_change(
                "mkdir", "-p", str(directory), why="a directory of the instance, created on first use"
            )

    def mkdir(self, directory: Path) -> None:
        why = "the volume is built here, under a name that is not listed; what a killed process left is reused"
        self._report.record_change("mkdir", "-m", "700", str(directory), why=why)

    def lock(self, directory: Path, *, wait: float = 0.0) -> AbstractContextManager[None]:
        """Nothing is created, so nothing needs a lock."""
        return nullcontext()

    def lock_open(self, directory: int, *, wait: float = 0.0) -> AbstractContextManager[None]:
        """As lock()."""
        return nullcontext()

    def lock_entry(self, directory: Path, *, shared: bool = False) -> AbstractContextManager[None]:
        """Lock what is copied, as a creation does."""
        if self._report.offline:
            raise Unpredictable(
                f"the contents of {directory} are not known in an offline dry run; run it on the node, without "
                "--offline"
            )
        return super().lock_entry(directory, shared=shared)

    def empty(self, directory: Path) -> None:
        """The directory would be new."""

    def remove(self, directory: Path) -> None:
        self._report.record_change("rm", "-r", str(directory), why="removes what is left of it")

    def write_label(self, file: Path, label: Label) -> None:
        text = msgspec.json.encode(label).decode()
        self._report.record_change("write", str(file), text, why="the label: owner, size and format state")

    def write_owner(self, file: Path, data: bytes) -> None:
        why = "the directory belongs to this instance from now on; another one is refused"
        self._report.record_change("write", str(file), why=why)

    def write_note(self, file: Path, data: bytes) -> None:
        """The running driver writes its notes for other drivers, and not for this creation."""

    def remove_note(self, file: Path) -> None:
        """As write_note()."""

    def touch(self, image: Path) -> None:
        self._report.record_change(
            "touch", str(image), why="the image: a sparse file, which takes space as it is written"
        )

    def link(self, file: Path, image: Path) -> None:
        self._report.record_change("ln", str(file), str(image), why="the file keeps its name and gets a second one")

    def truncate(self, image: Path, size: int) -> None:
        why = f"the size: {size} bytes, a multiple of 4096; all of them read as zeros"
        self._report.record_change("truncate", "-s", str(size), str(image), why=why)

    def copy(self, source: Path, image: Path, *, reflink: bool) -> None:
        option = "--reflink=always" if reflink else "--sparse=always"
        why = "the source's bytes, by sharing its blocks" if reflink else WHOLE_COPY
        self._report.record_change("cp", option, str(source), str(image), why=why)

    def can_reflink(self, directory: Path) -> bool:
        kind = "unknown" if self._report.offline else mount_of(directory).fs_type
        reflink = kind in REFLINK_FILESYSTEMS
        can = "can" if reflink else "cannot"
        self._report.record_assumption(
            f"files of the directory's filesystem ({kind}) {can} share blocks; the driver tries it out"
        )
        return reflink

    def sync(self, path: Path) -> None:
        self._report.record_change("sync", str(path), why="so that it survives a power failure")

    def rename(self, old: Path, new: Path) -> None:
        effect = "disappears" if new.name.startswith(GONE) else "appears"
        self._report.record_change("mv", "-T", str(old), str(new), why=f"the volume {effect} as a whole, in one step")


class DryRunDirectory(Directory):
    """A directory that is not created: before its first use, facts about the disk come from its nearest parent."""

    def __init__(self, config: Config, setting: Setting, client: Client, report: DryRunReport) -> None:
        super().__init__(config, setting, client)
        self._report = report

    def require_ready(self) -> None:
        if not self._report.offline:
            super().require_ready()

    def _owner_record(self) -> bytes | None:
        return None if self._report.offline else super()._owner_record()

    def free(self) -> tuple[int, int]:
        if self._report.offline:
            self._report.record_assumption("the directory has enough free space")
            return UNLIMITED_SPACE, 0
        free, reserve = super().free()
        why = f"{free} bytes are free, of which {reserve} are the reserve"
        self._report.record_read("stat", "-f", str(self.existing), why=why)
        return free, reserve

    def sharing(self) -> AbstractContextManager[list[OpenDirectory]]:
        return nullcontext([]) if self._report.offline else super().sharing()

    def sector_size(self) -> int:
        if not self._report.offline:
            return super().sector_size()
        self._report.record_assumption(f"the disk below has sectors of {USUAL_SECTOR} bytes")
        return USUAL_SECTOR

    @property
    def existing(self) -> Path:
        return next(path for path in (self.path, *self.path.parents) if path.is_dir())


def dry_run_freeze(report: DryRunReport) -> Freeze:
    """Return what records a freeze in place of Setting.frozen."""

    @contextmanager
    def frozen(device: Path, seconds: float = FREEZE_SECONDS) -> Iterator[None]:
        mounted = next(iter(loopfile.mounted(device)), None)
        if mounted is None:  # it was unmounted meanwhile
            yield
            return
        target = mounted.target
        why = f"the source is mounted: this writes all to its image, and stops writes, for {seconds:g} s at most"
        report.record_change("fsfreeze", "--freeze", target, why=why)
        yield
        report.record_change("fsfreeze", "--unfreeze", target, why="the source's users can write again")

    return frozen
