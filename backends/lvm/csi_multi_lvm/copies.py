"""Make volumes with data: by sharing blocks within a thin pool, else by copying, which a restart goes on with."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from csi_multi.contract import Busy, StorageError, Timeout, Unavailable, VolumeRequest

from . import contents, tags
from .activation import Activation
from .config import Config
from .cutting import Cutter
from .layout import Layout
from .lvm import Lvm
from .making import Maker
from .names import COPIED
from .report import LogicalVolume
from .seen import Seen
from .shelf import Shelf
from .work import Work

log = logging.getLogger(__name__)

UNSETTLED = (Busy, Unavailable, Timeout)  # the orchestrator asks again


class Copies(Work):
    def __init__(
        self,
        config: Config,
        lvm: Lvm,
        seen: Seen,
        activation: Activation,
        volumes: Shelf,
        maker: Maker,
        cutter: Cutter,
    ) -> None:
        super().__init__(config, lvm, seen, activation, volumes)
        self._maker = maker
        self._cutter = cutter

    def restore(self, leaf: str, request: VolumeRequest, source: LogicalVolume) -> LogicalVolume:
        """Make a volume from a snapshot. Raises what Maker.create raises, FailedPrecondition."""
        self._cutter.refuse_invalid(source)
        layout = self._maker.layout(request)
        earlier = self._resumable(leaf, request, self._earlier(leaf))
        with self._undone_when_final(leaf):
            if self._shares(layout, source):
                return self._shared(leaf, request, layout, source, earlier)
            return self._copied(leaf, request, layout, source, earlier)

    def clone(self, leaf: str, request: VolumeRequest, source: LogicalVolume) -> LogicalVolume:
        """Make a volume from another, as of one moment. Raises what Maker.create raises."""
        layout = self._maker.layout(request)
        found = self._earlier(leaf)
        moment = next((one for one in found if one.name == COPIED + leaf), None)
        with self._undone_when_final(leaf):
            if self._shares(layout, source):
                return self._shared(leaf, request, layout, source, self._resumable(leaf, request, found))
            if len(found) < 2 or moment is None or moment.invalid or moment.origin != source.name:
                self._discard(found)  # an unfinished copy goes on only from the moment it began with
                found, moment = [], None
            earlier = self._resumable(leaf, request, found)
            moment = moment or self._cutter.moment(COPIED + leaf, source)
            volume = self._copied(leaf, request, layout, moment, earlier)
        self._maker.discard(moment)
        return volume

    def _earlier(self, leaf: str) -> list[LogicalVolume]:
        return self._maker.earlier(leaf) if self._maker.traces(self._seen.report(), leaf) else []

    def _shares(self, layout: Layout, source: LogicalVolume) -> bool:
        return layout.thin and source.thin and source.pool == self._config.thin_pool

    def _resumable(self, leaf: str, request: VolumeRequest, found: list[LogicalVolume]) -> LogicalVolume | None:
        """Return the unfinished volume, if it is of this very request; another is removed."""
        volume = next((one for one in found if one.name == self._volumes.name(leaf)), None)
        if volume is None:
            return None
        protected = not self._maker.layout(request).integrity or tags.having(volume.tags, tags.COPIED)
        if (
            protected
            and self._volumes.stamp(volume) == request.stamp
            and request.size.holds(tags.number(volume.tags, tags.TODO))
        ):
            return volume
        self._maker.discard(volume)
        return None

    def _shared(
        self, leaf: str, request: VolumeRequest, layout: Layout, source: LogicalVolume, earlier: LogicalVolume | None
    ) -> LogicalVolume:
        """Make a thin snapshot that is a volume of its own; a larger one grows before it is anybody's."""
        name = self._volumes.name(leaf)
        with self._maker.admission() as report:
            size = self._maker.size(report, layout, request.size, source.size)
            larger = _unfinished(size) if size > source.size else []
            if earlier is None:
                self._cutter.admit_thin(report, size)
                with self._maker.changing(leaf):
                    self._lvm.snapshot(name, source.name, ("-p", "rw"), [*self._maker.tags(request, layout), *larger])
        self._seen.forget()
        if earlier is None and not larger:
            return self._volumes.made(leaf, size, self._maker.tags(request, layout))
        volume = self._lvm.look(name)[name]
        size = tags.number(volume.tags, tags.TODO)
        if volume.size < size:
            self._lvm.extend_to(name, size)
        return self._finished(volume, size, [])

    def _copied(
        self, leaf: str, request: VolumeRequest, layout: Layout, source: LogicalVolume, earlier: LogicalVolume | None
    ) -> LogicalVolume:
        """Make a volume of any type and copy every byte into it: so there is nothing old left to see."""
        name, data = self._volumes.name(leaf), _bytes(source)
        if earlier is None:
            with self._maker.admission() as report:
                size = self._maker.size(report, layout, request.size, data)
                marks = [*self._maker.tags(request, layout), *_unfinished(size)]
                self._maker.make(leaf, layout, size, report, marks)
        volume = self._lvm.look(name)[name]
        size = tags.number(volume.tags, tags.TODO)
        notes = _Notes(self._lvm, volume)
        with self._activation.reading(source) as origin, self._activation.reading(volume) as target:
            self._refuse_overflowed(source)
            confirm, done = self._confirm(volume), notes.done
            contents.copy(origin, target, min(done, data), data, notes.note, confirm, sparse=volume.thin)
            if not volume.thin:
                contents.zero(target, max(done, data), size, notes.note)
        return self._finished(volume, size, notes.tags)

    def _refuse_overflowed(self, source: LogicalVolume) -> None:
        """Now that it is active, a thick snapshot shows whether it still has its data."""
        if source.thick_snapshot:
            self._cutter.refuse_invalid(self._lvm.look(source.name).get(source.name, source))

    def _confirm(self, volume: LogicalVolume) -> Callable[[], None]:
        """Return a last look at an unfinished volume: another process may have finished it, and handed it out."""

        def confirm() -> None:
            found = self._lvm.look(volume.name).get(volume.name)
            if found is None or found.tags != volume.tags:
                raise Busy(f"logical volume {volume.name} was changed meanwhile by another process; ask again")

        return confirm

    def _finished(self, volume: LogicalVolume, size: int, notes: list[str]) -> LogicalVolume:
        """Let the volume be found from now on."""
        self._lvm.retag(volume.name, remove=[*tags.having(volume.tags, tags.TODO, tags.AT), *notes])
        self._seen.forget()
        return self._volumes.made(volume.name.removeprefix(self._volumes.prefix), size, volume.tags)

    @contextmanager
    def _undone_when_final(self, leaf: str) -> Iterator[None]:
        """After an error that nobody asks again after, leave nothing half-made."""
        try:
            yield
        except UNSETTLED:
            raise
        except StorageError:
            self._discard(self._maker.earlier(leaf))
            raise

    def _discard(self, found: list[LogicalVolume]) -> None:
        for one in found:
            self._maker.discard(one)


class _Notes:
    """How far a copy has come, on the unfinished volume."""

    def __init__(self, lvm: Lvm, volume: LogicalVolume) -> None:
        self._lvm = lvm
        self._name = volume.name
        self.tags = tags.having(volume.tags, tags.COPIED)
        self.done = tags.number(volume.tags, tags.COPIED)

    def note(self, offset: int) -> None:
        now = f"{tags.COPIED}{offset}"
        self._lvm.retag(self._name, add=[now], remove=[tag for tag in self.tags if tag != now])
        self.tags = [now]


def _unfinished(size: int) -> list[str]:
    """Return the tags of a volume that is to have so many bytes: since when is for Remover.sweep."""
    return [f"{tags.TODO}{size}", f"{tags.AT}{time.time():.6f}"]


def _bytes(source: LogicalVolume) -> int:
    """Return how much of a source counts: of a snapshot, what its volume had when it was cut."""
    return tags.number(source.tags, tags.SIZE) or source.size
