"""Make empty volumes, and settle what has a name already.

Who dies while it makes an image leaves one without a label, or smaller than any volume (export.py): half-made.
Whoever asks again under that name puts it away, and begins anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from csi_multi.contract import (
    AlreadyExists,
    Busy,
    FailedPrecondition,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    StorageError,
    Strings,
    Timeout,
    Unavailable,
    VolumeRequest,
)

from . import stamps
from .config import Config
from .layout import layout
from .purging import Purger
from .rbd import Rbd
from .rows import Layout
from .shelf import Found, Shelf
from .space import Space, sized
from .stamps import Label
from .statuses import Exists, Missing, Torn


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """An image as somebody wants it."""

    name: str
    size: int
    layout: Layout


PEOPLE = 256  # characters of a text that only people read
PEOPLE_KEYS = 8
TRIES = 3  # to make an image where there was another one


class Maker:
    def __init__(self, config: Config, volumes: Shelf, space: Space, purger: Purger) -> None:
        self._config = config
        self._volumes = volumes
        self._space = space
        self._purger = purger

    def create(self, rbd: Rbd, leaf: str, request: VolumeRequest) -> tuple[int, Label]:
        """Make an empty volume; return its size and label.

        Raises AlreadyExists, OutOfRange, ResourceExhausted, InvalidArgument, Busy.
        """
        size = sized(request.size, self._config)
        wanted = Wanted(name=self._volumes.name(leaf), size=size, layout=layout(self._config, request.parameters))
        label = volume_label(wanted.name, request)
        with self.whole(rbd, self._volumes, leaf):
            self._space.admit(size, wanted.layout.data_pool or self._config.pool)
            self._made(rbd, leaf, wanted, label)
        return size, label

    def _made(self, rbd: Rbd, leaf: str, wanted: Wanted, label: Label) -> None:
        for again in range(TRIES):
            try:
                rbd.create(wanted.name, wanted.size, wanted.layout, {stamps.KEY: stamps.text(label)})
                return
            except Exists:
                self.settle(rbd, self._volumes, leaf, again=again > 0)
        raise taken(rbd, wanted.name)

    def settle(self, rbd: Rbd, shelf: Shelf, leaf: str, *, again: bool) -> None:
        """Make room where the name is taken: put away what is half-made. It is never finished: who made it may have
        been killed before a clone's parent knew of it, so that the parent's deletion would take its data away.

        Raises AlreadyExists when the image is finished, Busy, FailedPrecondition.
        """
        try:
            found = shelf.look(rbd, leaf)
        except Torn:
            found = None
        if found is None:
            if again:  # it is not there, and still it is: nobody has just removed it, or is making it
                self.prune(rbd, shelf.name(leaf))
        elif found.label:
            raise AlreadyExists(f"image {rbd.spec(found.image.name)} exists")
        else:
            self.put_away(rbd, shelf, leaf, found)

    def prune(self, rbd: Rbd, name: str) -> None:
        """Take away a name without an image: a command that was to make or trash it was killed. Raises Watched."""
        try:
            rbd.discard(name)
            self._purger.sweep(now=True)
        except Missing:  # not even listed
            with suppress(Missing):  # it says so, and has done it
                rbd.remove(name)

    @contextmanager
    def whole(self, rbd: Rbd, shelf: Shelf, leaf: str) -> Iterator[None]:
        """A source that is gone, no room, or no rights are final: what is half-made under the name goes with them."""
        try:
            yield
        except (NotFound, ResourceExhausted, PermissionDenied):
            found = shelf.look(rbd, leaf)
            if found and not found.label:
                self.put_away(rbd, shelf, leaf, found)
            raise

    def put_away(self, rbd: Rbd, shelf: Shelf, leaf: str, found: Found) -> None:
        """Remove a half-made image. Raises FailedPrecondition when it is not empty, Busy while it is being made."""
        name = found.image.name
        if watchers := rbd.watchers(name):
            raise Busy(f"image {rbd.spec(name)} is not finished, and {', '.join(watchers)} has it open; try again")
        if rbd.used(name):
            raise FailedPrecondition(
                f"image {rbd.spec(name)} has data and no image-meta {stamps.KEY}, so it is not ours to remove; rename "
                "it away, or write its label again as the recovery recipes say"
            )
        again = shelf.look(rbd, leaf)
        if again is None:
            return
        if again.label or again.image.id != found.image.id:
            raise Busy(f"image {rbd.spec(name)} has just been made by somebody else; try again")
        self._purger.discard(rbd, again.image)


@contextmanager
def unfinished(rbd: Rbd, name: str) -> Iterator[None]:
    """What fails now leaves something half-made behind, so no error is final: whoever asked has to come back."""
    try:
        yield
    except (Busy, Unavailable, Timeout):
        raise
    except StorageError as error:
        raise Unavailable(f"{error}; image {rbd.spec(name)} is not finished yet") from error


def taken(rbd: Rbd, name: str) -> Busy:
    return Busy(f"somebody else makes and removes image {rbd.spec(name)} just now; try again")


def volume_label(name: str, request: VolumeRequest, *, depth: int = 0) -> Label:
    """Return what is written on a volume. How it is mapped is on it only where its StorageClass says so."""
    parameters = request.parameters
    return Label(
        image=name,
        stamp=request.stamp,
        depth=depth,
        mounter=parameters.mounter or "",
        map_options=parameters.map_options,
        unmap_options=parameters.unmap_options,
        people=for_people(request.metadata),
    )


def for_people(metadata: Strings) -> dict[str, str]:
    """Return what is for people to read, as much of it as has room."""
    return {key: text[:PEOPLE] for key, text in sorted(metadata.items())[:PEOPLE_KEYS]}
