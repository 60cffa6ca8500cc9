"""A correct backend in memory with loop devices, which tests break."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

from csi_multi_testing import memory
from csi_multi_testing.memory import MemoryBackend, MemoryStorage
from csi_multi_testing.memory_storage import data_key
from csi_multi_testing.storage import MIB, NODE, Storage, setting

from csi_multi.contract import (
    NO_SECRETS,
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
from csi_multi.host import loopdev
from csi_multi.host.loopfile import LoopDevices, device_of
from tests.host.qemu_export import exported


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
            shutil.copyfile(self.file(data_key(request.source)), self.file(made.handle))
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

    def find_device(self, handle: str, secrets: Strings = NO_SECRETS) -> Device | None:
        self.get_volume(handle)
        path = self.loops.find(self.file(handle))
        return device_of(path, self.blank(handle)) if path else None

    def blank(self, handle: str) -> Blank:
        return self.notes.get(handle, Blank.ZEROED)

    def close_device(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        self.loops.close(self.file(handle))

    def refresh_device(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        self.loops.refresh(self.file(handle))

    def formatting(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        if self.blank(handle) is not Blank.NEVER:
            self.notes[handle] = Blank.INTERRUPTED

    def formatted(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        self.notes[handle] = Blank.NEVER

    def has_data(self, handle: str, secrets: Strings = NO_SECRETS) -> bool | None:
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
            connect=lambda host: kind(memory.MemoryConfig(nodes=(NODE,)), setting(host), storage, root),
            size=MIB,
            resources=lambda: [*storage.names(), *os.listdir(root)],
            nodes=(Node(name=NODE, id=NODE),),
            devices=True,
            damage=lambda handle: storage.health.update({handle: (memory.DAMAGED,)}),
            undamage=storage.health.pop,
            away=storage.away,
        )

    return storage


def remove_devices() -> None:
    """Remove what these storages leave."""
    while ROOTS:
        root = ROOTS.pop()
        for device, file in loopdev.bound_devices().items():
            if file.startswith(f"{root}/"):
                os.system(f"losetup --detach {device}")
        shutil.rmtree(root)


class Telling(Looped):
    """What it says about devices: the defects below are there."""

    def reported(self, device: Device) -> Device:
        return device

    def open_device(self, request: OpenRequest) -> Device:
        return self.reported(super().open_device(request))

    def find_device(self, handle: str, secrets: Strings = NO_SECRETS) -> Device | None:
        found = super().find_device(handle)
        return found and self.reported(found)


class Noteless(Looped):
    """Keeps no notes: what it makes reads as zeros, so a used volume stays as blank as a new one."""

    formatting = b.Backend.formatting
    formatted = b.Backend.formatted


class Discarding(Looped):
    """Throws the bytes away with the device."""

    def close_device(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        super().close_device(handle)
        if handle in self.storage.volumes:
            os.truncate(self.file(handle), 0)
            os.truncate(self.file(handle), self.get_volume(handle).size)


class Mixing(Looped):
    """Insists on direct I/O where the server of the file mixes up what is written at the same time."""

    exports: ClassVar[dict[str, ExitStack]] = {}

    def open_device(self, request: OpenRequest) -> Device:
        file, shown = self.file(request.handle), self.root / f"{request.handle}.shown"
        loops = LoopDevices(self.setting.host, direct_io=True)
        export = self.exports.setdefault(request.handle, ExitStack())
        export.callback(shown.unlink)
        export.enter_context(exported(file, shown))
        export.callback(loops.close, shown)
        return device_of(loops.open(shown), Blank.NEVER)

    def close_device(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        self.exports.pop(handle, ExitStack()).close()
