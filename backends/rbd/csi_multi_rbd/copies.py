"""Snapshots and copies: each is an image of its own, a clone of what it was made of, and outlives that.

What is copied is cut, cloned under the new name, and the cut is removed: Ceph keeps it out of sight for as long as
the clone needs it (clone v2). Only then comes the label, so what has one is complete. Who dies before leaves a
clone without a label of its own, which the next try puts away: nobody knows how complete it is.
"""

from __future__ import annotations

import time

from csi_multi.contract import (
    Busy,
    FailedPrecondition,
    ResourceExhausted,
    SnapshotRequest,
    StorageError,
    Unavailable,
    VolumeRequest,
    missing,
)

from . import names, stamps
from .config import Config, SnapshotParameters
from .flattening import Flattener
from .layout import layout, refuse_elsewhere
from .making import TRIES, Maker, Wanted, for_people, taken, unfinished, volume_label
from .rbd import Rbd
from .rows import Layout
from .shelf import Found, Shelf
from .space import Space, sized
from .stamps import Label
from .statuses import Exists, Missing

PLAIN = ("layering", "exclusive-lock", "object-map", "fast-diff", "deep-flatten")  # of snapshots, which no node maps


class Copier:
    def __init__(
        self, config: Config, volumes: Shelf, snapshots: Shelf, maker: Maker, space: Space, flattener: Flattener
    ) -> None:
        self._config = config
        self._volumes = volumes
        self._snapshots = snapshots
        self._maker = maker
        self._space = space
        self._flattener = flattener

    def snapshot(self, rbd: Rbd, leaf: str, request: SnapshotRequest) -> tuple[int, Label]:
        """Cut a snapshot of a volume; return its size and label. Raises AlreadyExists, NotFound, ResourceExhausted."""
        refuse_elsewhere(self._config, request.parameters or SnapshotParameters())
        with self._maker.whole(rbd, self._snapshots, leaf):
            origin = self._origin(rbd, self._volumes, self._volumes.leaf(request.source))
            size = origin.image.size
            wanted = Wanted(
                name=self._snapshots.name(leaf),
                size=size,
                layout=Layout(features=PLAIN, data_pool=origin.image.data_pool),
            )
            cut = self._copy(rbd, self._snapshots, leaf, origin, wanted)
        label = Label(
            image=wanted.name,
            stamp=request.stamp,
            source=request.source,
            cut=cut,
            depth=origin.parents + 1,
            people=for_people(request.metadata),
        )
        self._finish(rbd, label)
        return size, label

    def clone(self, rbd: Rbd, leaf: str, request: VolumeRequest, source: str) -> tuple[int, Label]:
        """Make a volume from another. Raises AlreadyExists, NotFound, OutOfRange, ResourceExhausted."""
        with self._maker.whole(rbd, self._volumes, leaf):
            return self._volume(rbd, leaf, request, self._origin(rbd, self._volumes, source))

    def restore(self, rbd: Rbd, leaf: str, request: VolumeRequest, source: str) -> tuple[int, Label]:
        """Make a volume from a snapshot. Raises as clone does."""
        with self._maker.whole(rbd, self._volumes, leaf):
            return self._volume(rbd, leaf, request, self._origin(rbd, self._snapshots, source), base=names.BASE)

    def resume(self, rbd: Rbd) -> None:
        """Remove the cuts of copies that an earlier process began, and that nobody may ask for again."""
        for image, cut in rbd.cuts():
            if names.is_temporary(cut) and self._volumes.leaf_of(image):
                rbd.uncut(image, cut)

    def _volume(
        self, rbd: Rbd, leaf: str, request: VolumeRequest, origin: Found, *, base: str = ""
    ) -> tuple[int, Label]:
        size = sized(request.size, self._config, least=origin.image.size)
        wanted = Wanted(
            name=self._volumes.name(leaf),
            size=size,
            layout=layout(self._config, request.parameters),
        )
        self._space.admit(size, wanted.layout.data_pool or self._config.pool)
        self._copy(rbd, self._volumes, leaf, origin, wanted, base=base)
        if origin.image.size < size:
            with unfinished(rbd, wanted.name):
                rbd.resize(wanted.name, size)
        label = volume_label(wanted.name, request, depth=origin.parents + 1)
        self._finish(rbd, label)
        return size, label

    def _origin(self, rbd: Rbd, shelf: Shelf, leaf: str) -> Found:
        """Return what is to be copied. Raises NotFound, FailedPrecondition, Busy, ResourceExhausted."""
        found, _ = shelf.get(rbd, leaf)
        spec = rbd.spec(found.image.name)
        if "layering" not in found.image.features:
            raise FailedPrecondition(f"image {spec} lacks the feature 'layering', so nothing can be cloned of it")
        if found.parents >= self._config.max_depth:
            self._flattener.soon(found.image.name)
            raise Busy(f"image {spec} hangs on {found.parents} others, and is being flattened; try again")
        if found.image.snapshots >= self._config.flatten_snapshots:
            self._flattener.relieve(rbd, found.image.name)
        if found.image.snapshots >= self._config.max_snapshots:
            raise ResourceExhausted(
                f"image {spec} has {found.image.snapshots} snapshots, no kernel maps many more; clones of it are being "
                "flattened, or delete some of its snapshots"
            )
        return found

    def _copy(self, rbd: Rbd, shelf: Shelf, leaf: str, origin: Found, wanted: Wanted, *, base: str = "") -> float:
        """Clone the origin, from a lasting cut of it or a temporary one; return when it was cut.

        Raises AlreadyExists when a finished one has the name, NotFound for the origin, Busy.
        """
        source, cut = origin.image.name, base or names.temporary(shelf.kind, leaf)
        at = time.time()
        ours = not base
        if not (base and origin.image.snapshots):
            ours = self._cut(rbd, source, cut, lasting=bool(base)) or ours
        try:
            self._cloned(rbd, shelf, leaf, source, wanted, cut)
        except StorageError as error:
            if ours:
                _uncut(rbd, source, cut, error)
            raise
        if not base:
            with unfinished(rbd, wanted.name):
                rbd.uncut(source, cut)
        return at

    def _cut(self, rbd: Rbd, source: str, cut: str, *, lasting: bool) -> bool:
        """Cut an image; say whether that is new. A temporary cut that is there is an earlier try's, and of then."""
        try:
            try:
                rbd.cut(source, cut)
            except Exists:
                if lasting:
                    return False
                rbd.uncut(source, cut)
                rbd.cut(source, cut)
        except Missing:
            raise missing("source", source) from None
        return True

    def _cloned(self, rbd: Rbd, shelf: Shelf, leaf: str, source: str, wanted: Wanted, cut: str) -> None:
        for again in range(TRIES):
            try:
                rbd.clone(source, cut, wanted.name, wanted.layout)
                return
            except Exists:
                self._maker.settle(rbd, shelf, leaf, again=again > 0)
            except Missing:
                if cut != names.BASE:
                    raise
                self._cut(rbd, source, cut, lasting=True)  # the snapshots it has are others'
        raise taken(rbd, wanted.name)

    def _finish(self, rbd: Rbd, label: Label) -> None:
        with unfinished(rbd, label.image):
            rbd.note(label.image, stamps.KEY, stamps.text(label))
        if label.depth >= self._config.flatten_depth:
            self._flattener.soon(label.image)


def _uncut(rbd: Rbd, source: str, cut: str, why: StorageError) -> None:
    """Remove a temporary cut after something went wrong. While it stays, nothing is final."""
    try:
        rbd.uncut(source, cut)
    except StorageError as error:
        raise Unavailable(f"{why}; and snapshot {rbd.spec(source, cut)} stays: {error}") from why
