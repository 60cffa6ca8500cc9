"""A correct backend over files with devices that are links, which tests break."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import msgspec
from csi_multi_testing.memory_storage import CURSOR
from csi_multi_testing.storage import Storage, setting

from csi_multi.contract import (
    NO_SECRETS,
    AlreadyExists,
    Blank,
    Device,
    ExpandRequest,
    Expansion,
    FailedPrecondition,
    InUse,
    InvalidToken,
    NotFound,
    OpenRequest,
    OutOfRange,
    Page,
    PageRequest,
    ResourceExhausted,
    Setting,
    Snapshot,
    SnapshotRequest,
    Strings,
    Unavailable,
    Volume,
    VolumeRequest,
    ids,
    leaf,
    missing,
)
from csi_multi.contract import backend as b

VOLUMES, SNAPSHOTS, OPEN, LOCK = "volumes", "snapshots", "open", "lock"


SIZE = 64 << 10


class FileBackend(b.Expand, b.Clone, b.ListVolumes, b.ListSnapshots):
    """A directory per volume, with its bytes and its record. It is made and removed under a dot, and renamed."""

    contract: ClassVar[tuple[int, int]] = (1, 1)

    def __init__(self, config: Any, setting: Setting, root: Path) -> None:
        super().__init__(config, setting)
        self.root = root

    def create_volume(self, request: VolumeRequest) -> Volume:
        return self._put(request, 0, lambda data: data.write_bytes(b""))

    def restore_volume(self, request: VolumeRequest) -> Volume:
        assert request.source
        self._clear_draft(VOLUMES, request.name)
        return self._copied(request, self.get_snapshot(request.source.handle).size, SNAPSHOTS)

    def clone_volume(self, request: VolumeRequest) -> Volume:
        assert request.source
        self._clear_draft(VOLUMES, request.name)
        return self._copied(request, self.get_volume(request.source.handle).size, VOLUMES)

    def _copied(self, request: VolumeRequest, size: int, kind: str) -> Volume:
        assert request.source
        source = self.whole(self._entry(kind, request.source.handle) / "data", size)
        return self._put(request, size, lambda data: shutil.copyfile(source, data))

    def whole(self, data: Path, size: int) -> Path:
        """Return a file with data. Raises FailedPrecondition for one that lost its end."""
        with failures():
            if (found := data.stat().st_size) < size:
                raise FailedPrecondition(f"{data} has {found} of {size} bytes; restore it from a backup")
        return data

    def _put(self, request: VolumeRequest, least: int, fill: Callable[[Path], object]) -> Volume:
        size = request.size.choose(granularity=4096, minimum=max(least, 4096), default=SIZE)
        volume = Volume(handle=leaf(request.name), size=size, stamp=request.stamp)

        def complete(data: Path) -> None:
            fill(data)
            os.truncate(data, size)
            data.with_name("id").write_text(uuid.uuid4().hex)

        self._publish(VOLUMES, volume, complete)
        return volume

    def find_volume(self, name: str) -> Volume:
        return self.get_volume(leaf(name))

    def get_volume(self, handle: str) -> Volume:
        return self._read(VOLUMES, handle, Volume)

    def delete_volume(self, handle: str, secrets: Strings) -> None:
        self._remove(VOLUMES, handle)

    def list_volumes(self, page: PageRequest) -> Page[Volume]:
        return self._page(VOLUMES, page, Volume)

    def expand_volume(self, request: ExpandRequest) -> Expansion:
        with self._locked():
            volume = self.get_volume(request.handle)
            size = request.size.choose(granularity=4096, minimum=volume.size)
            data = self.whole(self._entry(VOLUMES, volume.handle) / "data", volume.size)
            os.truncate(data, size)
            self.sync(data)
            self._write(self._entry(VOLUMES, volume.handle) / "record", replace(volume, size=size))
        return Expansion(size=size)

    def create_snapshot(self, request: SnapshotRequest) -> Snapshot:
        self._clear_draft(SNAPSHOTS, request.name)
        source = self.get_volume(request.source)
        name, now = leaf(request.name), datetime.now(UTC)
        cut = Snapshot(handle=name, source=source.handle, size=source.size, created=now, stamp=request.stamp)
        data = self.whole(self._entry(VOLUMES, source.handle) / "data", source.size)

        def complete(copy: Path) -> None:
            shutil.copyfile(data, copy)
            shutil.copyfile(data.with_name("id"), copy.with_name("source"))

        self._publish(SNAPSHOTS, cut, complete)
        return cut

    def find_snapshot(self, name: str) -> Snapshot:
        return self.get_snapshot(leaf(name))

    def get_snapshot(self, handle: str) -> Snapshot:
        return self._shown(self._read(SNAPSHOTS, handle, Snapshot))

    def _shown(self, cut: Snapshot) -> Snapshot:
        """Return a snapshot with the source that it has now: another volume may have got the handle."""
        present = self._id(self._entry(VOLUMES, cut.source) / "id")
        own = self._id(self._entry(SNAPSHOTS, cut.handle) / "source")
        return replace(cut, source=ids.earlier(cut.source, own)) if own and present not in ("", own) else cut

    def _id(self, file: Path) -> str:
        """Return the id of a volume, "" where there is none."""
        with failures(), suppress(FileNotFoundError):
            return file.read_text()
        return ""

    def delete_snapshot(self, handle: str, secrets: Strings) -> None:
        self._remove(SNAPSHOTS, handle)

    def list_snapshots(self, page: PageRequest, source: str | None = None) -> Page[Snapshot]:
        return self._page(SNAPSHOTS, page, Snapshot, lambda one: source in (None, one.source), self._shown)

    def open_device(self, request: OpenRequest) -> Device:
        with self._locked():
            self.get_volume(request.handle)
            if not (found := self.find_device(request.handle)):
                link = self.root / OPEN / request.handle
                link.symlink_to(self._entry(VOLUMES, request.handle) / "data")
                found = self._device(link)
        return found

    def find_device(self, handle: str, secrets: Strings = NO_SECRETS) -> Device | None:
        self.get_volume(handle)
        with failures():
            return self._device(self.root / OPEN / handle) if handle in os.listdir(self.root / OPEN) else None

    def _device(self, link: Path) -> Device:
        state = self._entry(VOLUMES, link.name) / "state"
        blank = Blank(state.read_text()) if state.name in os.listdir(state.parent) else Blank.ZEROED
        return Device(path=link, number="0:0", proof={}, blank=blank)

    def close_device(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        with failures():
            (self.root / OPEN / handle).unlink(missing_ok=True)

    def refresh_device(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        new = self.root / OPEN / f".{handle}"
        self.get_volume(handle)
        with self._locked():
            new.unlink(missing_ok=True)
            new.symlink_to(self._entry(VOLUMES, handle) / "data")
            new.rename(self.root / OPEN / handle)

    def formatting(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        self._note(handle, Blank.INTERRUPTED)

    def formatted(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        self._note(handle, Blank.NEVER)

    def _note(self, handle: str, blank: Blank) -> None:
        with self._locked():
            draft = self._entry(VOLUMES, handle) / ".state"
            draft.write_text(blank.value)
            self.sync(draft)
            draft.rename(draft.with_name("state"))
            self.sync(draft.parent)

    def check(self) -> None:
        with failures():
            os.listdir(self.root)

    def resume(self) -> None:
        with self._locked():
            for kind in (VOLUMES, SNAPSHOTS):
                for name in os.listdir(self.root / kind):
                    if name.startswith("."):
                        shutil.rmtree(self.root / kind / name)
            for name in os.listdir(self.root / OPEN):
                if name.startswith("."):
                    (self.root / OPEN / name).unlink()

    def _entry(self, kind: str, handle: str) -> Path:
        if not CURSOR.fullmatch(handle):
            raise missing(kind, handle)  # never made here, and no path to follow
        return self.root / kind / handle

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One at a time, across processes. The lock of the dead is free."""
        with failures(), (self.root / LOCK).open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _publish(self, kind: str, made: Volume | Snapshot, fill: Callable[[Path], object]) -> None:
        draft = self.root / kind / f".{made.handle}"
        with self._locked():
            if made.handle in os.listdir(self.root / kind):
                raise AlreadyExists(f"{made.handle!r} exists")
            self._clear(draft)
            try:
                draft.mkdir()
                fill(draft / "data")
                self._write(draft / "record", made)
                self.sync(draft / "data")
                draft.rename(self._entry(kind, made.handle))
                self.sync(draft.parent)
            except OSError:
                self._clear(draft)
                raise

    def _clear_draft(self, kind: str, name: str) -> None:
        """Remove what an earlier try left, before an error is final: nobody asks again then."""
        with self._locked():
            self._clear(self.root / kind / f".{leaf(name)}")

    def refuse_open(self, handle: str) -> None:
        if handle in os.listdir(self.root / OPEN):
            raise InUse(f"volume {handle!r} is open")

    def _remove(self, kind: str, handle: str) -> None:
        draft = self._entry(kind, handle).with_name(f".{handle}")
        with self._locked():
            if kind == VOLUMES:
                self.refuse_open(handle)
            self._clear(draft)
            if handle not in os.listdir(self.root / kind):
                raise missing(kind, handle)
            self._entry(kind, handle).rename(draft)
            self.sync(draft.parent)
            self._clear(draft)

    def _clear(self, draft: Path) -> None:
        if draft.name in os.listdir(draft.parent):
            shutil.rmtree(draft)

    def _write(self, file: Path, record: Volume | Snapshot) -> None:
        draft = file.with_name(".record")
        draft.write_bytes(msgspec.json.encode(record))
        self.sync(draft)
        draft.rename(file)
        self.sync(file.parent)

    def sync(self, path: Path) -> None:
        """Do nothing: these files are in a directory that no power cut reaches."""

    def _read(self, kind: str, handle: str, form: type[Any]) -> Any:
        try:
            with failures():
                return msgspec.json.decode((self._entry(kind, handle) / "record").read_bytes(), type=form)
        except msgspec.DecodeError as error:
            raise Unavailable(f"the record of {handle!r} cannot be read: {error}") from error
        except Unavailable as error:
            if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
                with failures():
                    os.listdir(self.root / kind)  # which is there, or the storage is away
                raise missing(kind, handle) from None
            raise

    def _page(
        self, kind: str, page: PageRequest, form: type[Any], keep: Any = bool, shown_as: Any = lambda one: one
    ) -> Page[Any]:
        if page.cursor and not CURSOR.fullmatch(page.cursor):
            raise InvalidToken(f"cursor {page.cursor!r} is not one of ours")
        with failures():
            names = sorted(name for name in os.listdir(self.root / kind) if name > page.cursor and name[0] != ".")
        found = []
        for name in names:
            with suppress(NotFound):  # it has been deleted meanwhile
                found.append(shown_as(self._read(kind, name, form)))
        items = [one for one in found if keep(one)]
        shown = items[: page.limit or None]
        return Page(items=tuple(shown), cursor=shown[-1].handle if len(shown) < len(items) else "")


@contextmanager
def failures() -> Iterator[None]:
    """What the operating system says, in the words of the contract."""
    try:
        yield
    except OSError as error:
        kind = {errno.EFBIG: OutOfRange, errno.EINVAL: OutOfRange, errno.ENOSPC: ResourceExhausted}
        raise kind.get(error.errno or 0, Unavailable)(f"{error.filename}: {error.strerror}") from error


ROOTS: list[tempfile.TemporaryDirectory[str]] = []  # removed when the process ends


def storage(kind: type[FileBackend] = FileBackend, **given: Any) -> Storage:
    """Return a storage over a new directory."""
    ROOTS.append(tempfile.TemporaryDirectory(prefix="kit-"))
    return storage_on(kind, Path(ROOTS[-1].name), **given)


def storage_on(kind: type[FileBackend], root: Path, **given: Any) -> Storage:
    for name in (VOLUMES, SNAPSHOTS, OPEN):
        (root / name).mkdir()

    def read(handle: str, offset: int, length: int) -> bytes:
        return (root / VOLUMES / handle / "data").read_bytes()[offset : offset + length]

    def write(handle: str, offset: int, data: bytes) -> None:
        with (root / LOCK).open("w") as lock, (root / VOLUMES / handle / "data").open("r+b") as file:
            fcntl.flock(lock, fcntl.LOCK_EX)  # as a server that lets nothing be written while it copies
            file.seek(offset)
            file.write(data)

    known: dict[str, Any] = {
        "connect": lambda host: kind(None, setting(host), root),
        "size": SIZE,
        "resources": lambda: [
            f"{kind}/{name}" for kind in (VOLUMES, SNAPSHOTS, OPEN) for name in os.listdir(root / kind)
        ],
        "files": (root,),
        "read": read,
        "write": write,
        "devices": True,
    }
    return Storage(**known | given)


def over_files(kind: type[FileBackend]) -> Callable[[], Storage]:
    return lambda: storage(kind)


class OpensAndRegisters(FileBackend):
    """Makes a device of a new name and registers it in a second call; closes in the wrong order."""

    def open_device(self, request: OpenRequest) -> Device:
        if found := self.find_device(request.handle):
            return found
        link = self.root / OPEN / f"{request.handle}.{uuid.uuid4()}"
        link.symlink_to(self._entry(VOLUMES, request.handle) / "data")
        (self.root / OPEN / request.handle).symlink_to(link)
        return self._device(self.root / OPEN / request.handle)

    def close_device(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        registered = self.root / OPEN / handle
        if handle in os.listdir(self.root / OPEN):
            link = registered.readlink()
            registered.unlink()
            link.unlink()


class RefreshesByRemoving(FileBackend):
    """Takes the device away for a moment."""

    def refresh_device(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        with failures():
            (self.root / OPEN / handle).unlink()
            (self.root / OPEN / handle).symlink_to(self._entry(VOLUMES, handle) / "data")


class LetsFilesThrough(FileBackend):
    """Raises what the operating system raises, and does not notice when a look fails."""

    def formatting(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        (self._entry(VOLUMES, handle) / "state").write_text(Blank.INTERRUPTED.value)

    def formatted(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        (self._entry(VOLUMES, handle) / "state").write_text(Blank.NEVER.value)

    def find_device(self, handle: str, secrets: Strings = NO_SECRETS) -> Device | None:
        try:
            return super().find_device(handle)
        except Unavailable:
            return None

    def check(self) -> None:
        with suppress(Unavailable):
            super().check()
