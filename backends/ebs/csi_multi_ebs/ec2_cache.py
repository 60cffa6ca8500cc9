"""Merged lookups and cached answers of EC2, which all calls of an instance share.

EC2 identifies instances by their own ids, the orchestrator by node ids. The first attachment writes the node id into a
tag of the instance, so that a new process can name the node in a listing, and can detach from a node whose instance was
replaced.
"""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Callable, Collection, Iterable
from typing import NoReturn, TypeVar

from csi_multi.contract import FailedPrecondition, NotFound, Segments, Setting, Stamp, missing

from . import labels
from .batching import Batcher
from .caches import RecentKeys, SingleUseCache, TtlCache
from .client import MAX_FILTER_VALUES, Client
from .config import Config
from .pending_detaches import PendingDetaches
from .resources import INSTANCE_ID, SNAPSHOT_ID, VOLUME_ID, Ec2Instance, Ec2Snapshot, Ec2Volume, Ec2Zone
from .session import set_rpc_deadline
from .state_poller import StatePoller

DELETED_STATES = ("deleting", "deleted")
REMOTE_ZONE_TYPES = ("local-zone", "wavelength-zone")  # zones outside of the region's own data centers
INSTANCE_TTL = 20.0  # seconds for which an instance's zone, state and devices are cached
ZONES_TTL = 300.0  # seconds for which the list of zones is cached
KNOWN_TTL = 60.0  # seconds for which a volume is attached or detached by its last row, without another lookup
MAX_KNOWN = 5000  # volumes whose last row is remembered
OWN_TTL = 600.0  # seconds for which a volume or snapshot that was seen with our stamp needs no lookup of its labels
MAX_OWN = 10_000  # volumes and snapshots of which that is remembered
MAX_DELETED = 1000  # volumes and snapshots that are remembered as deleted
MAX_HIDDEN = 1000  # ids of which it is remembered since when EC2 does not show them
LONGEST_PAUSE = 2.0  # seconds between two lookups of an id that EC2 does not show
MAX_LOOKUP = MAX_FILTER_VALUES  # ids or filter values per call
MAX_VOLUME_IDS = 500  # volume ids per call

Resource = TypeVar("Resource", Ec2Volume, Ec2Snapshot)


class Ec2Cache:
    """Lookups by id are merged with those of other callers into few calls, and polling is shared as well."""

    def __init__(self, config: Config, setting: Setting, client: Client | None = None) -> None:
        self.config = config
        self.setting = setting
        self.owner = labels.owner_tag(setting.driver, setting.cluster, setting.instance)
        self.client = client = client or Client(config, f"{setting.driver}-{setting.instance}", setting.observe)
        fetch_volumes = self._noting_owner(self.fetch_volumes)
        self.pending_detaches = PendingDetaches()
        self.volumes = Batcher(fetch_volumes, most=MAX_VOLUME_IDS)
        self.snapshots = Batcher(self._noting_owner(client.snapshots), most=MAX_LOOKUP)
        self.instances = Batcher(client.instances, most=MAX_LOOKUP)
        self.volumes_by_name = Batcher(self._fetch_volumes, most=MAX_LOOKUP)
        self.snapshots_by_name = Batcher(self._fetching_snapshots(labels.NAME), most=MAX_LOOKUP)
        self.groups_by_name = Batcher(self._fetching_snapshots(labels.GROUP_NAME), most=MAX_LOOKUP)
        self.groups = Batcher(self._fetching_snapshots(labels.GROUP), most=MAX_LOOKUP)  # their members, by handle
        self.volume_poller = StatePoller(fetch_volumes, most=MAX_VOLUME_IDS, first=config.poll_seconds)
        self.name_poller = StatePoller(self._fetch_volumes, most=MAX_LOOKUP, first=config.poll_seconds)
        self.known: SingleUseCache[Ec2Volume] = SingleUseCache(KNOWN_TTL, MAX_KNOWN)  # own volumes, by id
        self._own = RecentKeys(OWN_TTL, MAX_OWN)  # ids of own volumes and snapshots, imported ones left out
        zones = Batcher(self._fetch_zones, most=2)  # one key, so that callers share one call
        self._zones = TtlCache(lambda: zones.get(config.region, self.wait_deadline(None), fresh=False) or {}, ZONES_TTL)
        self._zone_ids: dict[str, str] = {}  # by name, as last looked up
        self._instances: dict[str, tuple[float, Ec2Instance]] = {}  # by id: when it was looked up, time.monotonic()
        self._lock = threading.Lock()
        self._deleted: dict[str, None] = {}  # ids that this process deleted, the oldest first
        self._hidden: dict[str, float] = {}  # by id: since when no lookup shows it, time.monotonic()

    def fetch_volumes(self, ids: Collection[str]) -> dict[str, Ec2Volume]:
        """Return what EC2 shows of these volumes, noting which are being detached."""
        found = self.client.volumes(ids)
        self.pending_detaches.note(found.values())
        return found

    def fetch_page(self, token: str) -> tuple[list[Ec2Volume], str]:
        """Return one of EC2's pages of the volumes of this instance and the token of the next one, as above."""
        found, following = self.client.volume_page(self.owner, 0, token)
        self.pending_detaches.note(found)
        return found, following

    def zones(self) -> tuple[str, ...]:
        """Return the zones in which volumes may be created: the region's, limited to the configured ones."""
        allowed = self.config.zones
        return tuple(zone for zone in self.region_zones() if not allowed or zone in allowed)

    def default_zones(self) -> tuple[str, ...]:
        """Return the zones for a volume without a requested zone: Local and Wavelength Zones only if configured."""
        if self.config.zones:
            return self.zones()
        return tuple(name for name, zone in self._zones.get().items() if zone.kind not in REMOTE_ZONE_TYPES)

    def region_zones(self) -> tuple[str, ...]:
        """Return all zones of the region that are available."""
        return tuple(self._zones.get())

    def zone_named(self, segments: Segments) -> str:
        """Return the name of the zone that these segments name, by its name, its id or both; "" when none is it."""
        id, name = segments.get("zone-id", ""), segments.get("zone", "")
        if not id:
            return name
        return next((one for one, zone in self._zones.get().items() if zone.id == id and name in ("", one)), "")

    def zone_aliases(self, name: str) -> tuple[Segments, ...]:
        """Return how else a request may name a zone: by its id, where this process knows it from its last lookup."""
        id = self._zone_ids.get(name, "")
        return ({"zone-id": id},) if id else ()

    def _fetch_zones(self, _: Collection[str]) -> dict[str, dict[str, Ec2Zone]]:
        zones = self.client.zones()
        self._zone_ids = {name: zone.id for name, zone in zones.items()}
        return {self.config.region: zones}

    def wait_deadline(self, deadline: float | None) -> float:
        """Return until when (time.monotonic()) to wait for a state: a second before the RPC's deadline at most."""
        end = time.monotonic() + self.config.wait_seconds
        if deadline is None:
            return end
        set_rpc_deadline(deadline)
        return min(end, deadline - 1)

    def volume(self, handle: str) -> Ec2Volume:
        """Return a volume of this instance. Raises NotFound, also for a deleted one, and what `stamp` raises."""
        return self.shown_volume(handle) or _raise_missing("volume", handle)

    def shown_volume(self, handle: str) -> Ec2Volume | None:
        """Return a volume of this instance, None for one that may exist although EC2 does not show it.

        Raises as `volume` does.
        """
        return self._owned(VOLUME_ID, "volume", handle, self.volumes)

    def snapshot(self, handle: str) -> Ec2Snapshot:
        """Return a snapshot of this instance. Raises as `volume` does."""
        return self.shown_snapshot(handle) or _raise_missing("snapshot", handle)

    def shown_snapshot(self, handle: str) -> Ec2Snapshot | None:
        """Return a snapshot as `shown_volume` does."""
        return self._owned(SNAPSHOT_ID, "snapshot", handle, self.snapshots)

    def stamp(self, kind: str, resource: Ec2Volume | Ec2Snapshot) -> Stamp:
        """Return the stamp. Raises FailedPrecondition for a resource that does not belong to this instance."""
        stamp = labels.read_stamp(resource.tags)
        if stamp is None or resource.tags.get(labels.OWNER) != self.owner:
            raise FailedPrecondition(
                f"{kind} {resource.id!r} does not belong to this driver: its tag {labels.OWNER!r} is "
                f"{resource.tags.get(labels.OWNER, '')!r}, not {self.owner!r}; nothing was changed"
            )
        return stamp

    def remember(self, volume: Ec2Volume) -> None:
        """Remember a volume that can be attached and detached without another lookup; EC2 refuses what is outdated.

        Not a volume that can be attached twice, where EC2 would refuse nothing, nor an imported one, which another
        process can release.
        """
        states = [one.state for one in volume.attachments]
        if states in ([], ["attached"]) and not volume.multi_attach and self.is_own(volume.id):
            self.known.put(volume.id, volume)

    def take_known(self, id: str, instance: str) -> Ec2Volume | None:
        """Return a volume as it was last, once, if it was attached to nothing, or to this instance."""
        volume = self.known.take(id)
        return volume if volume and all(one.instance == instance for one in volume.attachments) else None

    def is_own(self, id: str) -> bool:
        """Return whether a volume or snapshot certainly belongs to this instance, although it is not looked up now.

        EC2 never reuses an id, and nothing but a person takes its labels from what the driver has created: only
        what was imported can be released, and counts as not certain. Such a person has OWN_TTL seconds to wait.
        """
        return id in self._own

    def note_owner(self, found: Iterable[Ec2Volume | Ec2Snapshot]) -> None:
        """Note which of these belong to this instance, and which do not, or no longer.

        A member of a group is not noted: before it is deleted it has to be looked up, because it is refused alone.
        """
        for one in found:
            if one.tags.get(labels.OWNER) != self.owner or labels.GROUP in one.tags or self.was_deleted(one.id):
                self._own.discard(one.id)
            elif one.id in self._own or ((stamp := labels.read_stamp(one.tags)) and not stamp.imported):
                self._own.add(one.id)

    def instance(self, id: str, node: str, *, refresh: bool = False) -> Ec2Instance:
        """Return a node's instance, at most INSTANCE_TTL seconds old. Raises NotFound when it is terminated."""
        when, instance = self._instances.get(id, (-math.inf, None))
        if refresh or time.monotonic() - when > INSTANCE_TTL:
            instance = self._fetch_instance(id, fresh=refresh)
        if instance is None or instance.state == "terminated":
            raise NotFound(f"node {node!r} does not exist: there is no instance {id or 'in its node id'!r}")
        return instance

    def _fetch_instance(self, id: str, *, fresh: bool) -> Ec2Instance | None:
        """Look up an instance, cache it, and drop the entries that have expired."""
        deadline = self.wait_deadline(None)
        instance = self.instances.get(id, deadline, fresh=fresh) if INSTANCE_ID.fullmatch(id) else None
        now = time.monotonic()
        valid = {
            one: entry for one, entry in list(self._instances.items()) if one != id and now - entry[0] <= INSTANCE_TTL
        }
        self._instances = valid | ({id: (now, instance)} if instance else {})
        return instance

    def _noting_owner(
        self, fetch: Callable[[Collection[str]], dict[str, Resource]]
    ) -> Callable[[Collection[str]], dict[str, Resource]]:
        def fetch_and_note(ids: Collection[str]) -> dict[str, Resource]:
            found = fetch(ids)
            self.note_owner(found.values())
            return found

        return fetch_and_note

    def _fetch_volumes(self, names: Collection[str]) -> dict[str, list[Ec2Volume]]:
        found = self.client.volumes_tagged(labels.NAME, names, self.owner)
        self.note_owner(found)
        return _by_tag(labels.NAME, found)

    def _fetching_snapshots(self, key: str) -> Callable[[Collection[str]], dict[str, list[Ec2Snapshot]]]:
        def fetch(values: Collection[str]) -> dict[str, list[Ec2Snapshot]]:
            found = self.client.snapshots_tagged(key, values, self.owner)
            self.note_owner(found)
            return _by_tag(key, found)

        return fetch

    def remember_deleted(self, id: str) -> None:
        """Remember that EC2 has accepted the deletion, which lookups may not show yet."""
        self._own.discard(id)
        with self._lock:
            self._deleted[id] = None
            while len(self._deleted) > MAX_DELETED:
                del self._deleted[next(iter(self._deleted))]

    def was_deleted(self, id: str) -> bool:
        return id in self._deleted

    def _owned(self, shape: re.Pattern[str], kind: str, handle: str, lookup: Batcher[Resource]) -> Resource | None:
        if not shape.fullmatch(handle) or self.was_deleted(handle):
            raise missing(kind, handle)
        resource = self._look(handle, lookup)
        if resource and resource.state in DELETED_STATES:
            raise missing(kind, handle)
        if resource:
            self.stamp(kind, resource)
        return resource

    def _look(self, handle: str, lookup: Batcher[Resource]) -> Resource | None:
        """Look until EC2 shows it, for `consistency_seconds` since it was looked for first: lookups may be late."""
        pause = self.config.poll_seconds
        while (resource := lookup.get(handle, self.wait_deadline(None))) is None:
            now = time.monotonic()
            with self._lock:
                since = self._hidden.setdefault(handle, now)
                while len(self._hidden) > MAX_HIDDEN:
                    del self._hidden[next(iter(self._hidden))]
            if now - since >= self.config.consistency_seconds:
                return None
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        with self._lock:
            self._hidden.pop(handle, None)
        return resource


def _raise_missing(kind: str, handle: str) -> NoReturn:
    raise missing(kind, handle)


def _by_tag(key: str, found: list[Resource]) -> dict[str, list[Resource]]:
    """Return the resources by a tag, the oldest first: after a race of two processes a name may have two."""
    by_value: dict[str, list[Resource]] = {}
    for one in sorted(found, key=lambda one: (one.created, one.id)):
        by_value.setdefault(one.tags[key], []).append(one)
    return by_value
