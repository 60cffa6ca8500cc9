"""Scratch volumes in memory: every volume a reserved file on tmpfs, shown to its node as a loop device."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from typing import Annotated, Any

import msgspec

from csi_multi.contract import (
    Blank,
    Capacity,
    CapacityReport,
    CapacityRequest,
    Clone,
    Device,
    Doc,
    Expand,
    ExpandRequest,
    Expansion,
    FailedPrecondition,
    InUse,
    InvalidToken,
    ListVolumes,
    NodeLocal,
    NotFound,
    OpenRequest,
    Page,
    PageRequest,
    Schema,
    Setting,
    Strings,
    Volume,
    VolumeRequest,
    WrongNode,
    ids,
)
from csi_multi.host import loopfile

from .store import PAGE, Store

DEFAULT = 64 * 2**20  # bytes of a volume when none are asked for


class Config(Schema, frozen=True, kw_only=True):
    directory: Annotated[str, Doc("absolute path of a directory on a tmpfs with a size limit", pattern="^/.*[^/]$")]


class RamdiskBackend(NodeLocal, Expand, Clone, ListVolumes, Capacity):
    contract = (1, 0)
    Config = Config

    def __init__(self, config: Any, setting: Setting) -> None:
        super().__init__(config, setting)
        self._store = Store(config.directory, setting.driver, setting.cluster)
        self._devices = loopfile.LoopDevices(setting.host)

    # Volumes

    def create_volume(self, request: VolumeRequest) -> Volume:
        leaf = ids.leaf(request.name)
        with self._store.working():
            with self._store.making(leaf, request.stamp, Blank.ZEROED) as image:  # reserved pages read as zeros
                self._store.grow(image, request.size.choose(granularity=PAGE, minimum=PAGE, default=DEFAULT))
            return self._volume(leaf)

    def clone_volume(self, request: VolumeRequest) -> Volume:
        assert request.source, "the core calls this with a volume as source"
        leaf, source = ids.leaf(request.name), self._leaf(request.source.handle)
        with self._store.working():
            with (
                self._store.making(leaf, request.stamp, Blank.NEVER) as image,
                self._store.holding(source, fcntl.LOCK_SH) as original,
            ):
                self._store.read(source)
                self._refuse_attached(source)  # nothing holds its writers still, and a torn copy is worth nothing
                size = os.fstat(original).st_size
                self._store.grow(image, request.size.choose(granularity=PAGE, minimum=size))
                while size > 0 and (done := os.copy_file_range(original, image, size)):
                    size -= done
            return self._volume(leaf)

    def find_volume(self, name: str) -> Volume:
        return self.get_volume(self._handle(ids.leaf(name)))

    def get_volume(self, handle: str) -> Volume:
        with self._store.working():
            return self._volume(self._leaf(handle))

    def delete_volume(self, handle: str, secrets: Strings) -> None:
        leaf = self._leaf(handle)
        with self._store.working(), self._store.holding(leaf):
            with suppress(NotFound):  # what an interrupted process left is removed, too
                self._store.read(leaf)
            self._refuse_attached(leaf)
            self._store.remove(leaf)

    def expand_volume(self, request: ExpandRequest) -> Expansion:
        leaf = self._leaf(request.handle)
        with self._store.working(), self._store.holding(leaf) as image:
            self._store.read(leaf)
            wanted = request.size.choose(granularity=PAGE, minimum=os.fstat(image).st_size)
            return Expansion(size=self._store.grow(image, wanted))

    def list_volumes(self, page: PageRequest) -> Page[Volume]:
        if page.cursor and not ids.LEAF_SHAPE.fullmatch(page.cursor):
            raise InvalidToken(f"cursor {page.cursor!r} was not issued by this backend; list again from the start")
        found = []
        with self._store.working():
            for leaf in self._store.leaves():
                with suppress(NotFound, FailedPrecondition, FileNotFoundError):  # removed meanwhile, or not ours
                    found += [self._volume(leaf)] if leaf > page.cursor else []
        shown = found[: page.limit or None]
        return Page(items=tuple(shown), cursor=self._leaf(shown[-1].handle) if len(shown) < len(found) else "")

    # Devices

    def open_device(self, request: OpenRequest) -> Device:
        leaf = self._leaf(request.handle)
        with self._store.working(), self._store.holding(leaf):
            blank, image = self._store.read(leaf).blank, self._store.image(leaf)
            return loopfile.device_of(self._devices.open(image, read_only=request.read_only), blank)

    def find_device(self, handle: str) -> Device | None:
        leaf = self._leaf(handle)
        with self._store.working():
            blank, device = self._store.read(leaf).blank, self._devices.find(self._store.image(leaf))
            return loopfile.device_of(device, blank) if device else None

    def close_device(self, handle: str) -> None:
        with self._store.working():
            self._devices.close(self._store.image(self._leaf(handle)))

    def refresh_device(self, handle: str) -> None:
        with self._store.working():
            self._devices.refresh(self._store.image(self._leaf(handle)))

    def formatting(self, handle: str) -> None:
        if self._note(handle, Blank.INTERRUPTED) is Blank.NEVER:
            raise FailedPrecondition(f"volume {handle!r} may hold data and must not be formatted")

    def formatted(self, handle: str) -> None:
        self._note(handle, Blank.NEVER)

    # The instance

    def node_of(self, handle: str) -> str:
        return ids.split_local("volume", handle)[0]

    def capacity(self, request: CapacityRequest) -> CapacityReport:
        with self._store.working():
            room = self._store.room()
        return CapacityReport(available=room, maximum=room, minimum=PAGE)

    def check(self) -> None:
        with self._store.working():
            pass

    def resume(self) -> None:
        with self._store.working():
            self._store.sweep()

    def _note(self, handle: str, blank: Blank) -> Blank:
        """Move the format note on, never back, and return what it was."""
        leaf = self._leaf(handle)
        with self._store.working(), self._store.holding(leaf):
            record = self._store.read(leaf)
            if record.blank is not Blank.NEVER:
                self._store.write(leaf, msgspec.structs.replace(record, blank=blank))
            return record.blank

    def _volume(self, leaf: str) -> Volume:
        stamp = self._store.read(leaf).stamp
        return Volume(handle=self._handle(leaf), size=self._store.image(leaf).stat().st_size, stamp=stamp)

    def _handle(self, leaf: str) -> str:
        return f"{self.setting.node}/{leaf}"

    def _leaf(self, handle: str) -> str:
        node, leaf = ids.split_local("volume", handle)
        if node != self.setting.node:
            raise WrongNode(f"volume {handle!r} lives on node {node!r}, this is node {self.setting.node!r}")
        return leaf

    def _refuse_attached(self, leaf: str) -> None:
        if attached := self._devices.find(self._store.image(leaf)):
            raise InUse(f"volume {leaf!r} is attached to {attached}; unpublish and unstage it first")
