"""A correct backend in memory with dry runs and imports, which tests break."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from csi_multi_testing import memory
from csi_multi_testing.memory import GRANULE, MemoryBackend, MemoryStorage, T
from csi_multi_testing.storage import MIB, Storage

from csi_multi.contract import (
    AlreadyExists,
    DryRunReport,
    InUse,
    InvalidArgument,
    Stamp,
    Strings,
    Unpredictable,
    Volume,
    VolumeRequest,
    leaf,
    missing,
    not_imported,
    not_ours_to_delete,
)
from csi_multi.contract import backend as b

BY_HAND = "by-hand-"  # how the names of data begin that no volume or snapshot has
SIZE = 16 * MIB


class Recording(MemoryStorage):
    """The storage as a dry run sees it: changes are recorded, and made in a copy."""

    report: DryRunReport

    def put(self, rows: dict[str, T], key: str, row: T) -> None:
        source = row.stamp.source if isinstance(row, Volume) else None
        more = [source.handle] if source else [row] if isinstance(row, str) else []
        self.report.record_change("put", key, *more, why="writes a row")
        super().put(rows, key, row)

    def drop(self, rows: dict[str, T], key: str) -> None:
        self.report.record_change("drop", key, why="removes a row")
        super().drop(rows, key)


class Explaining(MemoryBackend, b.Import):
    """Volumes in memory, some of which are data that was made by hand. Correct."""

    @property
    def imported(self) -> dict[str, str]:
        """The name of the data that each imported volume was."""
        found: dict[str, str] = vars(self.storage).setdefault("imported", {})
        return found

    def dry_run(self, report: DryRunReport) -> Explaining:
        known = {one.name: getattr(self.storage, one.name) for one in fields(self.storage)}
        rows = {name: dict(value) for name, value in known.items() if isinstance(value, dict)}
        recording = Recording(**({} if report.offline else rows))
        recording.report = report
        vars(recording)["imported"] = dict(self.imported)
        return type(self)(self.config, self.setting, recording)

    def restore_volume(self, request: VolumeRequest) -> Volume:
        self.refuse_offline()
        return super().restore_volume(request)

    def clone_volume(self, request: VolumeRequest) -> Volume:
        self.refuse_offline()
        return super().clone_volume(request)

    def refuse_offline(self) -> None:
        if isinstance(self.storage, Recording) and self.storage.report.offline:
            raise Unpredictable("the source is not read in an offline dry run")

    def import_volume(self, name: str, stamp: Stamp) -> Volume:
        handle = leaf(stamp.name)
        if not name.startswith(BY_HAND):
            raise InvalidArgument(f"{name!r} was not made by hand")
        with self.storage.lock:
            if name not in self.storage.data:
                raise missing("data", name)
            if handle in self.storage.volumes:
                found = self.get_volume(handle)
                if found.stamp == stamp and self.imported.get(handle) == name:
                    return found
                raise AlreadyExists(f"volume {handle!r} exists")
            if any(name == other and key in self.storage.volumes for key, other in self.imported.items()):
                raise AlreadyExists(f"{name!r} is a volume already")
            self.storage.put(self.imported, handle, name)
            self.storage.put(self.storage.data, handle, self.storage.data[name])
            self.storage.put(self.storage.volumes, handle, Volume(handle=handle, size=SIZE, stamp=stamp))
            return self.get_volume(handle)

    def release_volume(self, handle: str) -> str:
        with self.storage.lock:
            if not self.get_volume(handle).stamp.imported:
                raise not_imported(handle)
            if handle in self.storage.attached:
                raise InUse(f"volume {handle!r} is attached")
            name = self.imported[handle]
            self.storage.drop(self.storage.data, handle)
            self.storage.drop(self.storage.volumes, handle)
            return name

    def delete_volume(self, handle: str, secrets: Strings) -> None:
        if self.get_volume(handle).stamp.imported:
            raise not_ours_to_delete(handle)
        super().delete_volume(handle, secrets)


def explaining(kind: type[Explaining], **given: Any) -> Callable[[], Storage]:
    """Return what makes a storage on which data can be made by hand."""

    def storage() -> Storage:
        numbers = itertools.count(1)

        def importable(data: bytes) -> str:
            name = f"{BY_HAND}{next(numbers)}"
            rows.data[name] = {at: data[at : at + GRANULE] for at in range(0, len(data), GRANULE)}
            return name

        made = memory.storage(kind, importable=importable, **given)
        backend: Any = made.backend()
        rows: MemoryStorage = backend.storage
        return made

    storage.__name__ = kind.__name__
    return storage
