"""A correct backend in memory with loop devices, which tests break."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from csi_multi_testing import memory
from csi_multi_testing.memory import MemoryBackend, MemoryStorage, _data_key
from csi_multi_testing.storage import MIB, NODE, Storage, setting

from csi_multi.contract import (
    Blank,
    Device,
    ExpandRequest,
    Expansion,
    HealthEntry,
    InUse,
    Node,
    OpenRequest,
    Snapshot,
    SnapshotRequest,
    StorageHealthEntry,
    Strings,
    Volume,
    VolumeRequest,
)
from csi_multi.contract import backend as b
from csi_multi.host.loopfile import LoopDevices, device_of


class Looped(MemoryBackend, b.NodeHealthReporter):
    """Volumes in memory, their bytes in files that loop devices show. Correct."""

    def __init__(self, config: Any, setting: b.Setting, storage: MemoryStorage, root: Path) -> None:
        super().__init__(config, setting, storage)
        self.root = root
        self.loops = LoopDevices(setting.host)
        self.notes: dict[str, Blank] = vars(storage).setdefault("notes", {})

    def file(self, handle: str) -> Path:
        return self.root / handle

    def _put(self, request: VolumeRequest, default: int) -> Volume:
        made = super()._put(request, default)
        if request.source:
            shutil.copyfile(self.file(_data_key(request.source)), self.file(made.handle))
            self.notes[made.handle] = Blank.NEVER
        self.file(made.handle).touch()
        os.truncate(self.file(made.handle), made.size)
        return made

    def delete_volume(self, handle: str, secrets: Strings) -> None:
        self.get_volume(handle)
        if self.loops.find(self.file(handle)):
            raise InUse(f"volume {handle!r} is open")
        super().delete_volume(handle, secrets)
        self.file(handle).unlink()
        self.notes.pop(handle, None)

    def expand_volume(self, request: ExpandRequest) -> Expansion:
        done = super().expand_volume(request)
        os.truncate(self.file(request.handle), done.size)
        return done

    def create_snapshot(self, request: SnapshotRequest) -> Snapshot:
        made = super().create_snapshot(request)
        shutil.copyfile(self.file(made.source), self.file(f"@{made.handle}"))
        return made

    def delete_snapshot(self, handle: str, secrets: Strings) -> None:
        super().delete_snapshot(handle, secrets)
        self.file(f"@{handle}").unlink()

    def open_device(self, request: OpenRequest) -> Device:
        self.get_volume(request.handle)
        path = self.loops.open(self.file(request.handle), read_only=request.read_only)
        return device_of(path, self.blank(request.handle))

    def find_device(self, handle: str) -> Device | None:
        self.get_volume(handle)
        path = self.loops.find(self.file(handle))
        return device_of(path, self.blank(handle)) if path else None

    def blank(self, handle: str) -> Blank:
        return self.notes.get(handle, Blank.ZEROED)

    def close_device(self, handle: str) -> None:
        self.loops.close(self.file(handle))

    def refresh_device(self, handle: str) -> None:
        self.loops.refresh(self.file(handle))

    def formatting(self, handle: str) -> None:
        if self.blank(handle) is not Blank.NEVER:
            self.notes[handle] = Blank.INTERRUPTED

    def formatted(self, handle: str) -> None:
        self.notes[handle] = Blank.NEVER

    def has_data(self, handle: str) -> bool | None:
        return any(self.file(handle).read_bytes())

    def node_volume_health(self, handle: str) -> tuple[HealthEntry, ...]:
        return self.volume_health(handle, {})

    def node_storage_health(self, secrets: Strings) -> tuple[StorageHealthEntry, ...]:
        return ()


ROOTS: list[Path] = []


def looped(kind: type[Looped]) -> Callable[[], Storage]:
    """Return a storage over a new directory."""

    def storage() -> Storage:
        root, storage = Path(tempfile.mkdtemp(prefix="kit-devices-")), MemoryStorage()
        ROOTS.append(root)
        return Storage(
            connect=lambda host: kind(memory.MemoryConfig(), setting(host), storage, root),
            size=MIB,
            resources=lambda: [*storage.names(), *os.listdir(root)],
            nodes=(Node(name=NODE, id=NODE),),
            devices=True,
        )

    return storage


class Telling(Looped):
    """What it says about devices: the defects below are there."""

    def reported(self, device: Device) -> Device:
        return device

    def open_device(self, request: OpenRequest) -> Device:
        return self.reported(super().open_device(request))

    def find_device(self, handle: str) -> Device | None:
        found = super().find_device(handle)
        return found and self.reported(found)


class Noteless(Looped):
    """Keeps no notes: what it makes reads as zeros, so a used volume stays as blank as a new one."""

    formatting = b.Backend.formatting
    formatted = b.Backend.formatted
