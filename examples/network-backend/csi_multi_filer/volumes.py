"""Volumes: create, clone, find, get, expand, delete, and their format state.

An image with a draft and no label is an incomplete creation or removal: the retry starts over, or remove_leftovers()
removes it.
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
    Volume,
    VolumeRequest,
    ids,
)

from .client import BLOCK, IMAGE, Client
from .devices import DeviceManager
from .labels import Label, Labels, leaf_of

DEFAULT_SIZE = 64 * 2**20  # bytes of a volume when the request names no size


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeManager:
    client: Client
    labels: Labels
    devices: DeviceManager

    def create(self, request: VolumeRequest) -> Volume:
        leaf = ids.leaf(request.name)
        with self.client.connected("creating a volume"), self._building(leaf) as image:
            size = request.size.choose(granularity=BLOCK, minimum=BLOCK, default=DEFAULT_SIZE)
            unwritten = Label(stamp=request.stamp, blank=Blank.ZEROED)  # such blocks read as zeros
            self._allocate(leaf, unwritten, image, size)
        return _created(leaf, size, request)

    def clone(self, request: VolumeRequest) -> Volume:
        assert request.source, "the core calls this with a volume as source"
        leaf, source = ids.leaf(request.name), leaf_of(request.source.handle)
        with (
            self.client.connected("cloning a volume"),
            self._building(leaf) as image,
            self.client.locked(source, fcntl.LOCK_SH) as original,
        ):
            self.labels.read(source)
            self.devices.refuse_open(source)  # its users write meanwhile: the copy would be inconsistent
            size = request.size.choose(granularity=BLOCK, minimum=os.fstat(original).st_size)
            self._allocate(leaf, Label(stamp=request.stamp, blank=Blank.NEVER), image, size)
            self.client.copy(original, image)
        return _created(leaf, size, request)

    def find(self, name: str) -> Volume:
        return self.get(ids.leaf(name))

    def get(self, handle: str) -> Volume:
        with self.client.connected("reading a volume"):
            return self.to_volume(leaf_of(handle))

    def delete(self, handle: str) -> None:
        leaf = leaf_of(handle)
        with self.client.connected("deleting a volume"), self.client.locked(leaf) as image:
            try:
                self.labels.read(leaf)
            except NotFound:  # what an interrupted process left is removed, too
                self.labels.refuse_unknown(leaf, image)
            self.devices.refuse_open(leaf)
            self.client.remove(leaf, image)

    def expand(self, request: ExpandRequest) -> Expansion:
        leaf = leaf_of(request.handle)
        with self.client.connected("expanding a volume"), self.client.locked(leaf) as image:
            self.labels.read(leaf)
            present = os.fstat(image).st_size
            size = request.size.choose(granularity=BLOCK, minimum=present)
            self.client.refuse_full(size - present)
            self.client.grow(image, size)
            return Expansion(size=size)

    def formatting(self, handle: str) -> None:
        if self._advance_format(handle, Blank.INTERRUPTED) is Blank.NEVER:
            raise FailedPrecondition(
                f"volume {handle!r} may hold data and must not be formatted; "
                "use it with its filesystem, or create a new volume"
            )

    def formatted(self, handle: str) -> None:
        self._advance_format(handle, Blank.NEVER)

    def remove_leftovers(self) -> None:
        """Remove what interrupted operations left, and what no process has locked."""
        with self.client.connected("cleaning up after an interrupted process"):
            for leaf in self.client.leaves(IMAGE):
                with suppress(NotFound, Busy, FailedPrecondition), self.client.locked(leaf) as image:
                    if self.labels.find(leaf) is None:
                        self.labels.refuse_unknown(leaf, image)
                        self.client.remove(leaf, image)

    def to_volume(self, leaf: str) -> Volume:
        """Return a volume as the contract describes it. Raises NotFound, FailedPrecondition, ImageLost."""
        stamp = self.labels.read(leaf).stamp
        return Volume(handle=leaf, size=self.client.size(leaf), stamp=stamp)

    @contextmanager
    def _building(self, leaf: str) -> Iterator[int]:
        """Yield an empty image to allocate and fill; it becomes a volume at the end. If that fails, nothing stays."""
        self._refuse_existing(leaf)  # before an image is made: beside a label it would hide that the data is lost
        with self.client.locked(leaf, create=True) as image:
            self._refuse_existing(leaf)
            try:
                self.labels.refuse_unknown(leaf, image)
            except FailedPrecondition as error:
                raise AlreadyExists(str(error)) from None
            with ExitStack() as undo:
                undo.callback(self.client.remove, leaf, image)
                os.ftruncate(image, 0)  # what a process that died left
                self.client.start_holder(leaf)
                yield image
                self.client.commit(leaf)
                undo.pop_all()

    def _refuse_existing(self, leaf: str) -> None:
        if self.labels.find(leaf):
            raise AlreadyExists(f"volume {leaf!r} already exists")

    def _allocate(self, leaf: str, label: Label, image: int, size: int) -> None:
        """Write the draft, which says that the image is ours and incomplete, and then give the image its space."""
        self.client.refuse_full(size)
        self.labels.draft(leaf, label)
        self.client.grow(image, size)

    def _advance_format(self, handle: str, blank: Blank) -> Blank:
        """Move the format state forward, never back, and return what it was."""
        leaf = leaf_of(handle)
        with self.client.connected("recording a volume's format state"), self.client.locked(leaf):
            label = self.labels.read(leaf)
            if label.blank is not Blank.NEVER:
                self.labels.write(leaf, msgspec.structs.replace(label, blank=blank))
            return label.blank


def _created(leaf: str, size: int, request: VolumeRequest) -> Volume:
    """Return the new volume without a look at it: since its lock ended, another request may have deleted it."""
    return Volume(handle=leaf, size=size, stamp=request.stamp)
