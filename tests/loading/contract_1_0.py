"""A backend that was written for contract 1.0, as it was then: do not change what it uses of it. Files on loop devices.

It names only what contract 1.0 had, and its methods have the parameters of contract 1.0.
"""

from __future__ import annotations

import fcntl
import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import msgspec

from csi_multi.contract import (
    LEAF_SHAPE,
    AlreadyExists,
    Backend,
    Blank,
    Device,
    Doc,
    Expand,
    ExpandRequest,
    Expansion,
    FailedPrecondition,
    InUse,
    ListVolumes,
    NotFound,
    OpenRequest,
    Page,
    PageRequest,
    Schema,
    Setting,
    Stamp,
    Strings,
    Unavailable,
    Volume,
    VolumeRequest,
    leaf,
    missing,
    paged,
)
from csi_multi.host.loopfile import LoopDevices, device_of

GRANULE = 4096
LARGEST = 1 << 40


class Config(Schema, frozen=True, kw_only=True):
    directory: Annotated[str, Doc("where the volumes are")]


class Label(msgspec.Struct, frozen=True, kw_only=True):
    stamp: Stamp
    size: int
    blank: Blank = Blank.ZEROED


def translated(method: Any) -> Any:
    """Let the method raise Unavailable for what the operating system raises."""

    @functools.wraps(method)
    def call(self: Any, *args: Any) -> Any:
        try:
            return method(self, *args)
        except OSError as error:
            raise Unavailable(f"{error.filename}: {error.strerror}") from error

    return call


class OldBackend(Expand, ListVolumes, Backend):
    """A volume exists as long as its label exists."""

    contract = (1, 0)
    Config = Config

    def __init__(self, config: Config, setting: Setting) -> None:
        super().__init__(config, setting)
        self.directory = Path(config.directory)
        self.loops = LoopDevices(setting.host)

    @translated
    def create_volume(self, request: VolumeRequest) -> Volume:
        name = leaf(request.name)
        size = request.size.choose(granularity=GRANULE, maximum=LARGEST, default=1 << 20)
        with self.locked():
            if self.label_file(name).exists():
                raise AlreadyExists(f"volume {request.name!r} exists")
            self.image(name).unlink(missing_ok=True)
            with self.image(name).open("wb") as file:
                file.truncate(size)
            self.store(name, Label(stamp=request.stamp, size=size))
        return self.get_volume(name)

    def find_volume(self, name: str) -> Volume:
        return self.get_volume(leaf(name))

    @translated
    def get_volume(self, handle: str) -> Volume:
        label = self.label(handle)
        return Volume(handle=handle, size=label.size, stamp=label.stamp)

    @translated
    def delete_volume(self, handle: str, secrets: Strings) -> None:
        with self.locked():
            if self.is_ours(handle) and self.loops.find(self.image(handle)):
                raise InUse(f"volume {handle!r} is open on this node")
            known = self.is_ours(handle) and self.label_file(handle).exists()
            if self.is_ours(handle):
                self.label_file(handle).unlink(missing_ok=True)
                self.image(handle).unlink(missing_ok=True)
                self.draft(handle).unlink(missing_ok=True)
            if not known:
                raise missing("volume", handle)

    @translated
    def list_volumes(self, page: PageRequest) -> Page[Volume]:
        names = sorted(name.removesuffix(".json") for name in os.listdir(self.directory) if name.endswith(".json"))
        return paged(names, page, self.listed)

    def listed(self, handle: str) -> Volume | None:
        try:
            return self.get_volume(handle)
        except NotFound:  # deleted meanwhile
            return None

    @translated
    def expand_volume(self, request: ExpandRequest) -> Expansion:
        with self.locked():
            label = self.label(request.handle)
            size = request.size.choose(granularity=GRANULE, minimum=label.size, maximum=LARGEST)
            if (found := self.image(request.handle).stat().st_size) < label.size:
                raise FailedPrecondition(f"volume {request.handle!r} has {found} of {label.size} bytes; restore it")
            os.truncate(self.image(request.handle), size)
            self.store(request.handle, msgspec.structs.replace(label, size=size))
        return Expansion(size=size)

    @translated
    def refresh_device(self, handle: str) -> None:
        self.loops.refresh(self.image(handle))

    @translated
    def open_device(self, request: OpenRequest) -> Device:
        with self.locked():
            label = self.label(request.handle)
            return device_of(self.loops.open(self.image(request.handle), read_only=request.read_only), label.blank)

    @translated
    def find_device(self, handle: str) -> Device | None:
        label, path = self.label(handle), self.loops.find(self.image(handle))
        return device_of(path, label.blank) if path else None

    @translated
    def close_device(self, handle: str) -> None:
        if self.is_ours(handle):
            self.loops.close(self.image(handle))

    def formatting(self, handle: str) -> None:
        self.note(handle, Blank.INTERRUPTED)

    def formatted(self, handle: str) -> None:
        self.note(handle, Blank.NEVER)

    def has_data(self, handle: str) -> bool | None:
        return None

    @translated
    def note(self, handle: str, blank: Blank) -> None:
        with self.locked():
            label = self.label(handle)
            if label.blank is Blank.NEVER and blank is not Blank.NEVER:
                raise InUse(f"volume {handle!r} may hold data")
            self.store(handle, msgspec.structs.replace(label, blank=blank))

    def is_ours(self, handle: str) -> bool:
        return bool(LEAF_SHAPE.fullmatch(handle))

    def image(self, handle: str) -> Path:
        return self.directory / handle

    def label_file(self, handle: str) -> Path:
        return self.directory / f"{handle}.json"

    def draft(self, handle: str) -> Path:
        return self.directory / f".{handle}"

    def label(self, handle: str) -> Label:
        if not self.is_ours(handle):
            raise missing("volume", handle)
        try:
            return msgspec.json.decode(self.label_file(handle).read_bytes(), type=Label)
        except FileNotFoundError:
            raise missing("volume", handle) from None

    def store(self, handle: str, label: Label) -> None:
        self.draft(handle).write_bytes(msgspec.json.encode(label))
        self.draft(handle).rename(self.label_file(handle))

    @contextmanager
    def locked(self) -> Iterator[Any]:
        with (self.directory / ".lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
