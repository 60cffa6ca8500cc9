"""Cut snapshots: thin ones stand alone, thick ones keep what changes in their volume and live and die with it."""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime

from csi_multi.contract import AlreadyExists, Busy, FailedPrecondition, InUse, NotFound, Snapshot, SnapshotRequest

from . import layout as layouts
from . import tags
from .activation import Activation
from .config import Config, Parameters, SnapshotParameters
from .lvm import Lvm, Refused
from .report import LogicalVolume, Report
from .seen import Seen
from .shelf import Shelf, unfinished
from .work import Work

log = logging.getLogger(__name__)

NEVER_FULL = ("-l", "100%ORIGIN")


class Cutter(Work):
    def __init__(
        self, config: Config, lvm: Lvm, seen: Seen, activation: Activation, volumes: Shelf, snapshots: Shelf
    ) -> None:
        super().__init__(config, lvm, seen, activation, volumes)
        self._snapshots = snapshots

    def cut(self, leaf: str, request: SnapshotRequest, source: str) -> Snapshot:
        """Cut a snapshot of a volume. Raises AlreadyExists, NotFound for the source, ResourceExhausted."""
        report = self._seen.report()
        origin = self._volumes.known(report, source)
        name = self._snapshots.name(leaf)
        size = self._size(origin)
        words, policy = self._room(report, origin, size, request)
        at = time.time()
        facts = [f"{tags.SOURCE}{tags.escaped(request.source)}", f"{tags.SIZE}{size}", f"{tags.AT}{at:.6f}"]
        tagged = [*tags.of_stamp(request.stamp), *facts, *policy, *self._config.tags]
        try:
            self._lvm.snapshot(name, origin.name, words, tagged)
        except Refused as error:
            self._seen.forget()
            self._refuse_taken(name)
            self._volumes.get(source)  # it may have been deleted since it was seen
            raise error.narrowed() from None
        except BaseException:
            self._seen.forget()
            raise
        made = LogicalVolume(
            name=name,
            uuid="",
            size=size,
            tags=frozenset(tagged),
            layout=origin.layout if origin.thin else frozenset({"linear"}),
            role=frozenset() if origin.thin else frozenset({"thicksnapshot"}),
            origin=origin.name,
            pool=origin.pool,
        )
        if origin.thin:
            self._seen.add(made, 0)
        else:
            self._seen.forget()  # lvm decides how much it takes
        return self.shown(made)

    def shown(self, found: LogicalVolume) -> Snapshot:
        """Return the snapshot that a logical volume is."""
        created = datetime.fromtimestamp(float(tags.value(found.tags, tags.AT) or 0), UTC)
        return Snapshot(
            handle=self._snapshots.handle(found),
            source=tags.plain(tags.value(found.tags, tags.SOURCE)),
            size=tags.number(found.tags, tags.SIZE) or found.size,
            created=created,
            stamp=self._snapshots.stamp(found),
            ready=not overflowed(found),
        )

    def _refuse_taken(self, name: str) -> None:
        """Raise AlreadyExists for a snapshot that is there, Busy after removing what is left of one."""
        found = self._lvm.look(name).get(name)
        if found and self._snapshots.is_ours(found) and unfinished(found):
            self._lvm.remove(name, self._condition(), active=True)
            raise Busy(f"{name}, left by a command that was killed, is removed; ask again")
        if found:
            raise AlreadyExists(f"logical volume {name} exists already")

    def _condition(self) -> str:
        """Return what must hold at the moment of removal: it is ours, and nothing goes with it."""
        return f'lv_tags={{"{self._snapshots.owner}"}} && lv_role!={{"thickorigin"}}'

    def remove(self, leaf: str) -> None:
        """Remove a snapshot. Raises NotFound, InUse while it is copied from, FailedPrecondition."""
        name = self._snapshots.name(leaf)
        try:
            removed = self._lvm.remove(name, self._condition(), active=True)  # one that is open stays
        except Refused as error:
            self._seen.forget()
            if name in self._lvm.look(name):
                raise error.narrowed() from None
            removed = False
        except BaseException:
            self._seen.forget()
            raise
        self._seen.drop(name)
        if not removed:
            self._seen.forget()
            self._snapshots.get(leaf)
            raise InUse(f"snapshot {name} is in use; wait for the copies that are made of it")

    def moment(self, name: str, source: LogicalVolume) -> LogicalVolume:
        """Cut what a copy of a volume is made from, so that it is of one moment."""
        self._seen.forget()
        size = self._size(source)
        words = ("-p", "r") if source.thin else NEVER_FULL
        thick = [] if source.thin else [tags.THICK]
        marks = [self._volumes.owner, f"{tags.SIZE}{size}", f"{tags.AT}{time.time():.6f}", *thick]
        try:
            self._lvm.snapshot(name, source.name, words, marks)
        except Refused as error:
            if source.name not in self._lvm.look(source.name):
                raise NotFound(f"logical volume {source.name} does not exist") from None
            raise error.narrowed() from None
        return self._lvm.look(name)[name]

    def refuse_invalid(self, snapshot: LogicalVolume) -> None:
        """Raise FailedPrecondition for a snapshot that has lost its data."""
        if overflowed(snapshot):
            raise FailedPrecondition(
                f"snapshot {snapshot.name} is invalid: more changed in its volume than it had space for, and its data "
                "is gone; delete it, and give new ones a larger snapshotSize"
            )

    def admit_thin(self, report: Report, size: int) -> None:
        """Raise ResourceExhausted when the pool cannot promise so many bytes more."""
        self._admit(report, layouts.of(Parameters(type="thin"), self._config), size)

    def tend(self, report: Report) -> None:
        """Extend thick snapshots that fill up, and note those that have overflowed: inactive, they do not show it."""
        for found in self._snapshots.all(report):
            if found.invalid and tags.INVALID not in found.tags:
                log.error("snapshot %s has overflowed: its data is gone", found.name)
                self._lvm.retag(found.name, add=[tags.INVALID])
            threshold, _, percent = tags.value(found.tags, tags.EXTEND).partition(":")
            if percent and not overflowed(found) and (found.data_percent or 0) >= int(threshold):
                self._extend(report, found, int(percent))

    def _extend(self, report: Report, found: LogicalVolume, percent: int) -> None:
        origin = report.volumes[found.origin]
        size = min(found.size * (100 + percent) // 100, origin.size * 102 // 100 + 8 * report.group.extent_size)
        extents = -(-size // report.group.extent_size)
        if extents * report.group.extent_size <= found.size:
            return
        log.info("snapshot %s is %.0f %% full; it is extended to %d extents", found.name, found.data_percent, extents)
        try:
            self._lvm.extend(found.name, extents)
        except Refused as error:
            log.warning("snapshot %s cannot be extended and may overflow: %s", found.name, error)

    def _room(
        self, report: Report, origin: LogicalVolume, size: int, request: SnapshotRequest
    ) -> tuple[tuple[str, ...], list[str]]:
        """Return the words for the snapshot's space, and the tag of its policy."""
        if origin.thin:
            self.admit_thin(report, size)
            return ("-p", "r"), []
        wanted = request.parameters if isinstance(request.parameters, SnapshotParameters) else SnapshotParameters()
        policy = [f"{tags.EXTEND}{wanted.auto_extend_threshold}:{wanted.auto_extend_percent}"]
        text = wanted.snapshot_size
        if text.endswith("%") and int(text[:-1]) >= 100:
            return NEVER_FULL, [tags.THICK]
        words = ("-l", f"{text}ORIGIN") if text.endswith("%") else ("-L", f"{text}b")
        return words, [tags.THICK, *(policy if wanted.auto_extend_threshold < 100 else [])]

    def _size(self, origin: LogicalVolume) -> int:
        """Return a volume's size now: from the kernel where it is active, for it may have grown since it was seen."""
        shown = self._activation.shown(origin.name)
        return shown.size if shown else origin.size


def overflowed(found: LogicalVolume) -> bool:
    return found.invalid or tags.INVALID in found.tags
