"""A correct backend over files that also has groups, limits and imports; tests break it and put it behind a server."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from csi_multi_testing.storage import Storage

from csi_multi.contract import (
    AlreadyExists,
    Backend,
    DryRunReport,
    GroupSnapshot,
    GroupSnapshotRequest,
    NotFound,
    Snapshot,
    SnapshotRequest,
    Stamp,
    StorageError,
    Strings,
    Volume,
    VolumeRequest,
    leaf,
    missing,
    not_imported,
    not_ours_to_delete,
)
from csi_multi.contract import backend as b

from . import file_backend
from .attached_files import ATTACHED, NODES, Attached
from .file_backend import OPEN, SIZE, SNAPSHOTS, VOLUMES, failures
from .limited_files import Limited

GROUPS, HAND = "groups", "hand"
KINDS = (VOLUMES, SNAPSHOTS, OPEN, ATTACHED, GROUPS, HAND)


class WholeFiles(Limited, Attached, b.GroupSnapshots, b.Import):
    """A group is a file that names its members; what was made by hand lies in a directory of its own."""

    def create_group_snapshot(self, request: GroupSnapshotRequest) -> GroupSnapshot:
        handle = leaf(request.stamp.name)
        with suppress(NotFound):
            self.get_group_snapshot(handle)
            raise AlreadyExists(f"group {handle!r} exists")
        cuts: list[Snapshot] = []
        try:
            for number, source in enumerate(request.sources):
                cuts.append(self._member(request, number, source))
            group = GroupSnapshot(handle=handle, created=cuts[0].created, snapshots=tuple(cuts), stamp=request.stamp)
            with failures():
                self._write(self.root / GROUPS / handle, group)
        except StorageError:
            (self.root / GROUPS / ".record").unlink(missing_ok=True)
            self.drop(cuts)
            raise
        return group

    def drop(self, members: Iterable[Snapshot]) -> None:
        for member in members:
            with suppress(NotFound):
                self._remove(SNAPSHOTS, member.handle)

    def _member(self, request: GroupSnapshotRequest, number: int, source: str) -> Snapshot:
        stamp = replace(request.stamp, name=f"{request.stamp.name}-{number}")
        with suppress(NotFound):
            self._remove(SNAPSHOTS, leaf(stamp.name))  # what an interrupted try left
        return self.create_snapshot(SnapshotRequest(stamp=stamp, source=source))

    def find_group_snapshot(self, name: str) -> GroupSnapshot:
        return self.get_group_snapshot(leaf(name))

    def get_group_snapshot(self, handle: str) -> GroupSnapshot:
        with failures():
            if not (self.root / GROUPS / handle).exists():
                raise missing("group", handle)
            return msgspec.json.decode((self.root / GROUPS / handle).read_bytes(), type=GroupSnapshot)

    def delete_group_snapshot(self, handle: str, secrets: Strings) -> None:
        self.drop(self.get_group_snapshot(handle).snapshots)
        (self.root / GROUPS / handle).unlink()

    def dry_run(self, report: DryRunReport) -> Backend:
        raise NotImplementedError

    def import_volume(self, name: str, stamp: Stamp) -> Volume:
        handle, source = leaf(stamp.name), self.root / HAND / name
        with suppress(NotFound):
            found = self.get_volume(handle)
            if found.stamp == stamp:
                return found
            raise AlreadyExists(f"{handle!r} exists")
        with self._locked():
            if not source.exists():
                raise missing("directory", name)
            made = Volume(handle=handle, size=(source / "data").stat().st_size, stamp=stamp)
            (source / "native").write_text(name)
            (source / "id").write_text(uuid.uuid4().hex)
            self._write(source / "record", made)
            source.rename(self._entry(VOLUMES, handle))
        return made

    def release_volume(self, handle: str) -> str:
        if not self.get_volume(handle).stamp.imported:
            raise not_imported(handle)
        entry = self._entry(VOLUMES, handle)
        native = (entry / "native").read_text()
        with self._locked():
            entry.rename(self.root / HAND / native)
        return f"directory {native}"

    def delete_volume(self, handle: str, secrets: Strings) -> None:
        if self.get_volume(handle).stamp.imported:
            raise not_ours_to_delete(handle)
        super().delete_volume(handle, secrets)


class Surrounded(WholeFiles):
    """Does something of its own around each creation."""

    def around(self) -> AbstractContextManager[None]:
        return nullcontext()

    def create_volume(self, request: VolumeRequest) -> Volume:
        with self.around():
            return super().create_volume(request)

    def restore_volume(self, request: VolumeRequest) -> Volume:
        with self.around():
            return super().restore_volume(request)

    def clone_volume(self, request: VolumeRequest) -> Volume:
        with self.around():
            return super().clone_volume(request)

    def create_snapshot(self, request: SnapshotRequest) -> Snapshot:
        with self.around():
            return super().create_snapshot(request)

    def create_group_snapshot(self, request: GroupSnapshotRequest) -> GroupSnapshot:
        with self.around():
            return super().create_group_snapshot(request)


def by_hand(root: Path, data: bytes) -> str:
    name = f"data-{uuid.uuid4().hex[:8]}"
    (root / HAND / name).mkdir()
    (root / HAND / name / "data").write_bytes(data.ljust(SIZE, b"\0"))
    return name


def storage(kind: type[WholeFiles] = WholeFiles, **given: Any) -> Storage:
    """Return a storage over a new directory, with everything that the checks can use."""
    made = file_backend.storage(kind)
    [root] = made.files
    for name in KINDS:
        (root / name).mkdir(exist_ok=True)
    known: dict[str, Any] = {
        "connect": made.connect,
        "size": SIZE,
        "resources": lambda: [f"{kind}/{one.name}" for kind in KINDS for one in (root / kind).iterdir()],
        "read": made.read,
        "write": made.write,
        "devices": True,
        "nodes": NODES,
        "other_mutable": {"iops": "200"},
        "effect": lambda handle: first_line(root / VOLUMES / handle / "iops"),
        "importable": lambda data: by_hand(root, data),
        "records": (root,),
    }
    return Storage(**known | given)


def first_line(file: Path) -> str:
    """Return "" for a file that does not exist."""
    return file.read_text() if file.exists() else ""


def over_whole_files(kind: type[WholeFiles]) -> Callable[[], Storage]:
    return lambda: storage(kind)
