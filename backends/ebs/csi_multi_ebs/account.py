"""What all work of an instance stands on: EC2 in one account and region, and lookups that many callers share."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Collection
from typing import TypeVar

from csi_multi.contract import FailedPrecondition, NotFound, Setting, Stamp, missing

from . import patience, tags
from .batching import Batcher
from .config import Config
from .ec2 import VALUES, Ec2
from .kept import Kept, Once
from .rows import INSTANCE, SNAPSHOT, VOLUME, InstanceRow, SnapshotRow, VolumeRow
from .watch import Watch

GIB = 2**30
GOING = ("deleting", "deleted")  # states of what is as good as gone
Row = TypeVar("Row", VolumeRow, SnapshotRow)
INSTANCES_LAST = 20.0  # seconds for which an instance's zone, state and devices are believed
FAR = ("local-zone", "wavelength-zone")  # types of zones that are no part of the region itself
ZONES_LAST = 300.0  # seconds for which the list of zones is believed
FREE_LAST = 60.0  # seconds for which a volume that was seen free is attached without another look
FREE_MOST = 5000  # volumes that are remembered as free
MANY = VALUES  # asked for in one call by a filter, or by id
MANY_VOLUMES = 500  # the same of volumes by id


class Account:
    """Lookups by id are merged with those of other callers into few calls, and waiting is shared as well."""

    def __init__(self, config: Config, setting: Setting, ec2: Ec2 | None = None) -> None:
        self.config = config
        self.setting = setting
        self.owner = tags.owner(setting.driver, setting.cluster, setting.instance)
        self.ec2 = ec2 = ec2 or Ec2(config, f"{setting.driver}-{setting.instance}", setting.observe)
        self.volumes = Batcher(ec2.volumes, most=MANY_VOLUMES)
        self.snapshots = Batcher(ec2.snapshots, most=MANY)
        self.instances = Batcher(ec2.instances, most=MANY)
        self.names = Batcher(self._volumes_named, most=MANY)
        self.snapshot_names = Batcher(self._snapshots_named, most=MANY)
        self.made = Watch(self._volumes_named, most=MANY, first=config.poll_seconds)  # by name, when something was made
        self.free: Once[VolumeRow] = Once(FREE_LAST, FREE_MOST)  # by id: of ours, seen with no attachment
        self.watch = Watch(ec2.volumes, most=MANY_VOLUMES, first=config.poll_seconds)
        regions = Batcher(lambda _: {config.region: ec2.zones()}, most=2)  # one key: those who ask at once ask together
        self._zones = Kept(lambda: regions.get(config.region, self.ends(None)) or {}, ZONES_LAST)
        self._seen: dict[str, tuple[float, InstanceRow]] = {}  # by instance: when, time.monotonic()

    def zones(self) -> tuple[str, ...]:
        """Return where volumes may be made: the region's zones, or of them what the instance is limited to."""
        allowed = self.config.zones
        return tuple(zone for zone in self.region() if not allowed or zone in allowed)

    def usual_zones(self) -> tuple[str, ...]:
        """Return where volumes may be made that nobody wants anywhere: no Local or Wavelength Zone unless named."""
        if self.config.zones:
            return self.zones()
        return tuple(zone for zone, kind in self._zones.get().items() if kind not in FAR)

    def region(self) -> tuple[str, ...]:
        """Return all zones of the region that can be used."""
        return tuple(self._zones.get())

    def ends(self, deadline: float | None) -> float:
        """Return until when to wait for a state: a moment before the caller stops listening, time.monotonic()."""
        ends = time.monotonic() + self.config.wait_seconds
        if deadline is None:
            return ends
        patience.listening(deadline)
        return min(ends, deadline - 1)

    def volume(self, handle: str) -> VolumeRow:
        """Return a volume of ours. Raises NotFound, also for one that is being deleted, and what `stamp` raises."""
        return self._ours(VOLUME, "volume", handle, self.volumes)

    def saw(self, row: VolumeRow) -> None:
        """Remember a volume of ours that can be attached as it is; EC2 refuses if that is not so any more.

        Not one that can be attached twice, where EC2 would refuse nothing, nor one that can be given back by
        another process.
        """
        stamp = tags.stamp(row.tags)
        if row.state == "available" and not row.attachments and not row.multi_attach and stamp and not stamp.imported:
            self.free.put(row.id, row)

    def snapshot(self, handle: str) -> SnapshotRow:
        """Return a snapshot of ours. Raises NotFound, and what `stamp` raises."""
        return self._ours(SNAPSHOT, "snapshot", handle, self.snapshots)

    def instance(self, fact: str, node: str, *, anew: bool = False) -> InstanceRow:
        """Return the instance that a node is, as it was up to INSTANCES_LAST ago. Raises NotFound when it is gone."""
        when, row = self._seen.get(fact, (-math.inf, None))
        if anew or time.monotonic() - when > INSTANCES_LAST:
            row = self._look(fact)
        if row is None or row.state == "terminated":
            raise NotFound(f"node {node!r} does not exist: there is no instance {fact or 'in its node id'!r}")
        return row

    def _look(self, fact: str) -> InstanceRow | None:
        """Ask for an instance, remember what was seen of it, and forget what was seen long ago."""
        row = self.instances.get(fact, self.ends(None)) if INSTANCE.fullmatch(fact) else None
        now = time.monotonic()
        seen = {one: seen for one, seen in list(self._seen.items()) if one != fact and now - seen[0] <= INSTANCES_LAST}
        self._seen = seen | ({fact: (now, row)} if row else {})
        return row

    def _volumes_named(self, names: Collection[str]) -> dict[str, list[VolumeRow]]:
        return _by_name(self.ec2.volumes_tagged(tags.NAME, names, self.owner))

    def _snapshots_named(self, names: Collection[str]) -> dict[str, list[SnapshotRow]]:
        return _by_name(self.ec2.snapshots_tagged(tags.NAME, names, self.owner))

    def _ours(self, shape: re.Pattern[str], kind: str, handle: str, rows: Batcher[Row]) -> Row:
        row = rows.get(handle, self.ends(None)) if shape.fullmatch(handle) else None
        if row is None or row.state in GOING:
            raise missing(kind, handle)
        self.stamp(kind, row)
        return row

    def stamp(self, kind: str, row: VolumeRow | SnapshotRow) -> Stamp:
        """Return the stamp. Raises FailedPrecondition for what does not carry ours: it is somebody else's."""
        stamp = tags.stamp(row.tags)
        if stamp is None or row.tags.get(tags.OWNER) != self.owner:
            raise FailedPrecondition(
                f"{kind} {row.id!r} is not this driver's: its tag {tags.OWNER!r} is "
                f"{row.tags.get(tags.OWNER, '')!r}, not {self.owner!r}; nothing was changed"
            )
        return stamp


def _by_name(rows: list[Row]) -> dict[str, list[Row]]:
    """Return what is there under each name, the oldest first: there may be two after a race that EC2 lost."""
    found: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: (row.created, row.id)):
        found.setdefault(row.tags[tags.NAME], []).append(row)
    return found
