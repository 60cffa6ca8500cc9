"""Volumes: create, clone, find, get, expand, delete, and their format state.

An image without a label is an incomplete creation or removal: the retry starts over, or remove_leftovers() removes it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

import msgspec
from csi_multi.contract import (
    AlreadyExists,
    Blank,
    Busy,
    ExpandRequest,
    Expansion,
    FailedPrecondition,
    NotFound,
    Stamp,
    Volume,
    VolumeRequest,
    ids,
)

from .client import IMAGE, PAGE, Client
from .devices import DeviceManager
from .labels import Handles, Label, Labels

DEFAULT_SIZE = 64 * 2**20  # bytes of a volume when the request names no size


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeManager:
    client: Client
    labels: Labels
    handles: Handles
    devices: DeviceManager

    def create(self, request: VolumeRequest) -> Volume:
        leaf = ids.leaf(request.name)
        with (
            self.client.connected("creating a volume"),
            self._building(leaf, request.stamp, Blank.ZEROED) as image,  # reserved pages read as zeros
        ):
            size = request.size.choose(granularity=PAGE, minimum=PAGE, default=DEFAULT_SIZE)
            self.client.grow(image, size)
        return self._created(leaf, size, request)

    def clone(self, request: VolumeRequest) -> Volume:
        assert request.source, "the core calls this with a volume as source"
        leaf, source = ids.leaf(request.name), self.handles.leaf(request.source.handle)
        with (
            self.client.connected("cloning a volume"),
            self._building(leaf, request.stamp, Blank.NEVER) as image,
            self.client.locked(source, fcntl.LOCK_SH) as original,
        ):
            self.labels.read(source)
            self.devices.refuse_attached(source)  # its users write meanwhile: the copy would be inconsistent
            size = request.size.choose(granularity=PAGE, minimum=os.fstat(original).st_size)
            self.client.grow(image, size)
            self.client.copy(original, image)
        return self._created(leaf, size, request)

    def find(self, name: str) -> Volume:
        return self.get(self.handles.handle(ids.leaf(name)))

    def get(self, handle: str) -> Volume:
        with self.client.connected("reading a volume"):
            return self.to_volume(self.handles.leaf(handle))

    def delete(self, handle: str) -> None:
        leaf = self.handles.leaf(handle)
        with self.client.connected("deleting a volume"), self.client.locked(leaf):
            with suppress(NotFound):  # without a label: what an interrupted process left is removed, too
                self.labels.read(leaf)
            self.devices.refuse_attached(leaf)
            self.client.remove(leaf)

    def expand(self, request: ExpandRequest) -> Expansion:
        leaf = self.handles.leaf(request.handle)
        with self.client.connected("expanding a volume"), self.client.locked(leaf) as image:
            self.labels.read(leaf)
            size = request.size.choose(granularity=PAGE, minimum=os.fstat(image).st_size)
            return Expansion(size=self.client.grow(image, size))

    def formatting(self, handle: str) -> None:
        if self._advance_format(handle, Blank.INTERRUPTED) is Blank.NEVER:
            raise FailedPrecondition(
                f"volume {handle!r} may hold data and must not be formatted; "
                "use it with its filesystem, or create a new volume"
            )

    def formatted(self, handle: str) -> None:
        self._advance_format(handle, Blank.NEVER)

    def remove_leftovers(self) -> None:
        """Remove the images that have no label and that no process has locked."""
        with self.client.connected("cleaning up after an interrupted process"):
            for leaf in self.client.leaves(IMAGE):
                with suppress(NotFound, Busy, FailedPrecondition), self.client.locked(leaf):
                    if self.labels.find(leaf) is None:
                        self.client.remove(leaf)

    def to_volume(self, leaf: str) -> Volume:
        """Return a volume as the contract describes it. Raises NotFound, FailedPrecondition, ImageLost."""
        stamp = self.labels.read(leaf).stamp
        return Volume(handle=self.handles.handle(leaf), size=self.client.size(leaf), stamp=stamp)

    def _created(self, leaf: str, size: int, request: VolumeRequest) -> Volume:
        """Return the new volume without a look at it: since its lock ended, another request may have deleted it."""
        return Volume(handle=self.handles.handle(leaf), size=size, stamp=request.stamp)

    @contextmanager
    def _building(self, leaf: str, stamp: Stamp, blank: Blank) -> Iterator[int]:
        """Yield an empty image to fill; at the end of the block it becomes a volume. If that fails, nothing stays."""
        self._refuse_existing(leaf)  # before an image is made: beside a label it would hide that the data is lost
        with self.client.locked(leaf, create=True) as image:
            self._refuse_existing(leaf)
            with ExitStack() as undo:
                undo.callback(self.client.remove, leaf)
                os.ftruncate(image, 0)  # what a process that died left
                yield image
                self.labels.write(leaf, Label(stamp=stamp, blank=blank))
                undo.pop_all()

    def _refuse_existing(self, leaf: str) -> None:
        if self.labels.find(leaf):
            raise AlreadyExists(f"volume {leaf!r} already exists")

    def _advance_format(self, handle: str, blank: Blank) -> Blank:
        """Move the format state forward, never back, and return what it was."""
        leaf = self.handles.leaf(handle)
        with self.client.connected("recording a volume's format state"), self.client.locked(leaf):
            label = self.labels.read(leaf)
            if label.blank is not Blank.NEVER:
                self.labels.write(leaf, msgspec.structs.replace(label, blank=blank))
            return label.blank
