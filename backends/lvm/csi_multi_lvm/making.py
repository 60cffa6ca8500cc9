"""Make empty volumes: one lvcreate with all its tags, admitted by what the group has left."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from csi_multi.contract import AlreadyExists, Busy, OutOfRange, SizeRange, VolumeRequest

from . import layout as layouts
from . import tags, wiping
from .activation import Activation
from .config import Config, Parameters
from .layout import Layout
from .lvm import Lvm, Refused
from .names import COPIED
from .report import LogicalVolume, Report
from .seen import Seen
from .shelf import Shelf, unfinished
from .work import Work

PATIENCE = 60.0  # seconds for creations before this one


class Maker(Work):
    def __init__(self, config: Config, lvm: Lvm, seen: Seen, activation: Activation, volumes: Shelf) -> None:
        super().__init__(config, lvm, seen, activation, volumes)
        self._admission = threading.Lock()

    def create(self, leaf: str, request: VolumeRequest) -> LogicalVolume:
        """Make an empty volume. Raises AlreadyExists, OutOfRange, ResourceExhausted."""
        layout = self.layout(request)
        with self.admission() as report:
            if self.traces(report, leaf):
                self.refuse_taken(leaf)
                report = self._seen.report()
            size = self.size(report, layout, request.size)
            marks = wiping.at_creation(layout.wipe, thin=layout.thin)
            return self.make(leaf, layout, size, report, [*self.tags(request, layout), *marks])

    def make(self, leaf: str, layout: Layout, size: int, report: Report, tagged: Sequence[str]) -> LogicalVolume:
        """Make a logical volume, inside of `admission`. Raises AlreadyExists, OutOfRange, ResourceExhausted."""
        self._admit(report, layout, size)
        extents = size // report.group.extent_size
        words: Iterable[str] = ("-l", str(extents), "-Zn", "-Wn", *layout.words())
        if layout.thin:
            words = ("-V", f"{size}b", "--thinpool", self._config.thin_pool, *layout.words())
        volume = LogicalVolume(
            name=self._volumes.name(leaf),
            uuid="",
            size=size,
            tags=frozenset(tagged),
            layout=frozenset({"thin", "sparse"} if layout.thin else {layout.type}),
            pool=self._config.thin_pool if layout.thin else "",
        )
        with self.changing(leaf):
            if layout.integrity:
                self._make_protected(volume, list(words), size)
            else:
                self._lvm.create(volume.name, list(words), tagged)
        self._seen.add(volume, 0 if layout.thin else layout.physical(extents, report.group.extent_size))
        return volume

    def _make_protected(self, volume: LogicalVolume, words: Sequence[str], size: int) -> None:
        """Make RAID, then add integrity. In between it is unfinished, so that nobody gets less than was asked for."""
        todo = f"{tags.TODO}{size}"
        self._lvm.create(volume.name, words, {*volume.tags, todo})
        self._lvm.protect(volume.name)
        self._lvm.deactivate(volume.name)
        if todo in volume.tags:  # a copy stays unfinished, and goes on only in what has its integrity
            self._lvm.retag(volume.name, add=[f"{tags.COPIED}0"])
        else:
            self._lvm.retag(volume.name, remove=[todo])

    @contextmanager
    def changing(self, leaf: str) -> Iterator[None]:
        """Find out why lvm refused to make a volume. Whatever happens, the next look is a fresh one."""
        try:
            yield
        except Refused as error:
            self._seen.forget()
            self.refuse_taken(leaf)
            raise error.narrowed() from None
        except BaseException:
            self._seen.forget()
            raise

    @contextmanager
    def admission(self) -> Iterator[Report]:
        """Let what is admitted be made before the next is looked at. Raises Busy."""
        if not self._admission.acquire(timeout=PATIENCE):
            raise Busy(f"other volumes have been in the making in {self._config.volume_group} for {PATIENCE:g} s")
        try:
            yield self._seen.report()
        finally:
            self._admission.release()

    def refuse_taken(self, leaf: str) -> None:
        """Raise AlreadyExists if the volume is there. What is unfinished is removed."""
        for one in self.earlier(leaf):
            self.discard(one)

    def traces(self, report: Report, leaf: str) -> bool:
        """Whether a volume of this name, finished or not, was seen lately."""
        return self._volumes.name(leaf) in report.volumes or COPIED + leaf in report.volumes

    def earlier(self, leaf: str) -> list[LogicalVolume]:
        """Return what an earlier try left: an unfinished volume, and the moment it is copied from.

        Raises AlreadyExists for a finished volume, or another's.
        """
        name, moment = self._volumes.name(leaf), COPIED + leaf
        found = self._lvm.look(name, moment)
        if (volume := found.get(name)) and not (self._volumes.is_ours(volume) and unfinished(volume)):
            if moment in found and self._volumes.owner in found[moment].tags:
                self.discard(found[moment])
            raise AlreadyExists(f"logical volume {name} exists already")
        return [found[one] for one in (name, moment) if one in found]

    def discard(self, one: LogicalVolume) -> None:
        """Remove something unfinished of ours. Raises Busy while another process works on it."""
        if self._volumes.owner not in one.tags:
            raise self._volumes.foreign(one)
        condition = f'lv_tags={{"{self._volumes.owner}"}} && lv_role!={{"thickorigin"}}'
        try:
            if not one.thick_snapshot:
                self._activation.deactivate(one.name)
            self._lvm.remove(one.name, condition, active=one.thick_snapshot)
        except (Refused, OSError) as error:
            raise Busy(f"{one.name}, of an earlier try, cannot be removed yet: {error}") from None
        finally:
            self._seen.forget()

    def layout(self, request: VolumeRequest) -> Layout:
        """Return how the volume is to lie on the disks. Raises InvalidArgument."""
        parameters = request.parameters if isinstance(request.parameters, Parameters) else Parameters()
        return layouts.of(parameters, self._config)

    def tags(self, request: VolumeRequest, layout: Layout) -> list[str]:
        """Return the tags of a volume: whose it is, its stamp, and something for people and their tools."""
        people = [tags.for_people(key, text) for key, text in told(request)]
        lies = [] if layout.thin else [tags.LAYOUT + layouts.text(layout)]
        return [*tags.of_stamp(request.stamp), *people, *lies, *self._config.tags]

    def size(self, report: Report, layout: Layout, wanted: SizeRange, source: int = 0) -> int:
        """Choose a size. Raises OutOfRange, also when the source does not fit in what is asked."""
        size = wanted.choose(
            granularity=report.group.extent_size * layout.data,
            minimum=self._config.min_size,
            maximum=self._config.max_size,
            default=source or self._config.default_size,
        )
        if size < source:
            raise OutOfRange(f"{size} bytes are fewer than the source's {source}; ask for at least those")
        return size


def told(request: VolumeRequest) -> Iterator[tuple[str, str]]:
    for key, text in request.metadata.items():
        word = "".join(letter if letter.isalnum() else "-" for letter in key)  # pvc/name, pv/name
        if word.isascii() and text:
            yield f"meta.{word}"[:60], text
