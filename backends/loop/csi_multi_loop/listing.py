"""Lists of volumes, of snapshots and of volumes with a problem, page by page."""

from __future__ import annotations

from dataclasses import dataclass

from csi_multi.contract import Page, PageRequest, Snapshot, Volume, VolumeHealth, paged

from .directory import Directory
from .errors import translated
from .group_store import GroupStore
from .health import HealthReporter
from .labels import SnapshotLabel, VolumeLabel
from .snapshots import earlier_source, source_of
from .store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    directory: Directory
    volume_store: Store[VolumeLabel]
    snapshot_store: Store[SnapshotLabel]
    group_store: GroupStore
    health_reporter: HealthReporter

    @translated("listing volumes")
    def volumes(self, page: PageRequest) -> Page[Volume]:
        def load(leaf: str) -> Volume | None:
            label = self.volume_store.read_for_listing(leaf)
            return label.to_volume(self.volume_store.handle(leaf)) if label else None

        self.directory.require_ready()
        return paged(self.volume_store.leaves(), page, load)

    @translated("listing snapshots")
    def snapshots(self, page: PageRequest, source: str | None) -> Page[Snapshot]:
        def load(leaf: str) -> Snapshot | None:
            label = self.snapshot_store.read_for_listing(leaf)
            if label is None or source not in (None, label.source, earlier_source(label)):
                return None
            group = self.group_store.handle(label.group) if label.group else ""
            found = label.to_snapshot(self.snapshot_store.handle(leaf), source_of(label, self.volume_store), group)
            return found if source in (None, found.source) else None

        self.directory.require_ready()
        return paged(self.snapshot_store.leaves(), page, load)

    @translated("listing the health of volumes")
    def volume_health(self, page: PageRequest) -> Page[VolumeHealth]:
        self.directory.require_ready()
        return paged(self.volume_store.leaves(), page, self.health_reporter.listed_volume)
