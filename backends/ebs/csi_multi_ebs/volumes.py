"""Volumes: create, restore, clone, find, get, delete and list.

EC2 recognizes a repeated creation by its client token, so nothing is looked up before: a creation is one CreateVolume,
and polling that all creations share. The tokens of a name form a fixed series that every process computes alike. A
token is used up when its volume failed or was deleted; then the next one is tried.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime

from csi_multi.contract import (
    AlreadyExists,
    Busy,
    FailedPrecondition,
    NotFound,
    Page,
    PageRequest,
    PermissionDenied,
    ResourceExhausted,
    StorageError,
    Timeout,
    Unauthenticated,
    Unavailable,
    Volume,
    VolumeRequest,
    leaf,
    missing,
    not_ours_to_delete,
)

from . import create_options, labels, outposts
from .ec2_cache import DELETED_STATES, Ec2Cache
from .errors import IncorrectState, QuotaExceeded, TokenMismatch, ZoneFull
from .listing import Listing
from .node_names import NodeNames
from .pending_creates import ATTEMPTS, PendingCreates, client_tokens
from .resources import GIB, Ec2Snapshot, Ec2Volume
from .volume_types import NewVolume

log = logging.getLogger(__name__)


class VolumeManager:
    def __init__(self, cache: Ec2Cache, node_names: NodeNames) -> None:
        self._cache = cache
        self._node_names = node_names
        self._listing = Listing(cache.fetch_page, cache.fetch_volumes)
        self._pending = PendingCreates(cache.config.consistency_seconds)

    def create(self, request: VolumeRequest, snapshot: Ec2Snapshot | None = None) -> Ec2Volume:
        """Create a volume in the first zone that has capacity. Raises what Backend.create_volume says."""
        volume = create_options.new_volume(self._cache, request, snapshot)
        zones = create_options.zones(self._cache, request)
        if (pending := self._pending.zone(request.name)) in zones:
            # A zone before it may have capacity again, and there would be two volumes.
            zones = zones[zones.index(pending) :]
        full: list[str] = []
        refused_tokens: set[str] = set()
        for zone in zones:
            try:
                return self._create_in(zone, request, volume, refused_tokens)
            except ZoneFull as error:
                full.append(str(error))
        config = self._cache.config
        raise ResourceExhausted(
            "; ".join(full)
            or f"no requested zone is among the zones of this instance in region {config.region!r}; change "
            "allowedTopologies, or the instance's 'zones'"
        )

    def restore(self, request: VolumeRequest) -> Ec2Volume:
        """Create a volume with the data of a snapshot."""
        assert request.source
        snapshot = self._cache.snapshot(request.source.handle)
        if snapshot.state == "error":
            raise FailedPrecondition(
                f"snapshot {snapshot.id!r} has failed ({snapshot.message or 'no reason given'}); create another one"
            )
        if snapshot.state != "completed":
            raise Busy(f"snapshot {snapshot.id!r} is {snapshot.state}: EC2 restores only completed ones; try again")
        return self.create(request, snapshot)

    def clone(self, request: VolumeRequest) -> Ec2Volume:
        """Create a copy of a volume in its zone."""
        assert request.source
        source = self._cache.volume(request.source.handle)
        volume = create_options.copied_volume(self._cache, request, source)
        if source.zone not in create_options.zones(self._cache, request):
            raise ResourceExhausted(
                f"EC2 copies a volume only within its zone: {source.id!r} is in {source.zone!r}, which is not "
                "requested; restore a snapshot of it instead"
            )
        return self._create_in(source.zone, request, volume, set())

    def _create_in(self, zone: str, request: VolumeRequest, volume: NewVolume, refused_tokens: set[str]) -> Ec2Volume:
        """Return the volume once it can be attached. Raises AlreadyExists when the name exists with other parameters.

        `refused_tokens` were used in zones without capacity. EC2 may have kept them, so a mismatch with one of them
        does not prove that a volume exists.
        """
        deadline = self._cache.wait_deadline(request.deadline)
        for number, token in enumerate(client_tokens(self._cache.owner, request.name)):
            if number == ATTEMPTS:
                self._refuse_existing(request.name)  # the token of an hour does not find the volume of another hour
            try:
                created = self._cache.client.create_volume(volume, zone, token)
            except TokenMismatch:
                self._refuse_existing(request.name, proves_nothing=token in refused_tokens)
                continue  # the name has no volume: the one of this token was deleted
            except ZoneFull:
                refused_tokens.add(token)
                raise
            except QuotaExceeded:  # EC2 also answers so when the repeated creation was done before
                self._refuse_existing(request.name)
                raise
            except (Unavailable, Timeout):
                self._pending.add(request.name, zone)
                raise
            self._pending.add(request.name, zone)
            try:
                usable = self._wait_usable(request.name, created, deadline)
            except (AlreadyExists, Busy, Timeout, Unavailable):
                raise
            except StorageError as error:  # a final error, but the volume exists
                raise Unavailable(
                    f"volume {created.id!r} was created, but EC2 refused the next call: {error}; try again"
                ) from error
            self._pending.remove(request.name)
            if usable:
                self._cache.remember(usable)
                return usable
        raise Unavailable(
            f"volume {request.name!r} could not be created in {ATTEMPTS} attempts this hour; try again later"
        )

    def _refuse_existing(self, name: str, *, proves_nothing: bool = False) -> None:
        """Raise AlreadyExists when a volume has this name, Unavailable while EC2 may not show it yet.

        `proves_nothing`: EC2's error does not prove that a volume exists.
        """
        if self.named(name):
            self._pending.remove(name)
            raise AlreadyExists(f"volume {name!r} already exists")
        if name not in self._pending and not proves_nothing:
            self._pending.add(name)
        self._refuse_pending(name)

    def _refuse_pending(self, name: str) -> None:
        if self._pending.is_pending(name):
            raise Unavailable(
                f"volume {name!r} may have been created a moment ago, and EC2 does not show it yet; try again"
            )
        self._pending.remove(name)

    def find(self, name: str) -> Ec2Volume:
        """Return the volume of this requested name. Raises NotFound when it certainly does not exist.

        Raises Busy while it is being created: it may still fail.
        """
        try:
            volume = self.named(name)
        except (PermissionDenied, Unauthenticated) as error:
            raise Unavailable(
                f"it is not known whether volume {name!r} was created before: {error}; check the credentials"
            ) from error
        if volume is None:
            self._refuse_pending(name)
            raise missing("volume", name)
        if volume.state == "creating":
            raise Busy(f"volume {name!r} is being created as {volume.id!r}; try again")
        return volume

    def get(self, handle: str) -> Ec2Volume:
        """Raises NotFound, and FailedPrecondition for a volume of another owner."""
        return self._cache.volume(handle)

    def named(self, name: str) -> Ec2Volume | None:
        """Return the volume of this requested name, the oldest one if there are several."""
        found = self._cache.volumes_by_name.get(leaf(name), self._cache.wait_deadline(None)) or []
        return next(iter(self._existing(found)), None)

    def _existing(self, found: list[Ec2Volume]) -> list[Ec2Volume]:
        """Leave out volumes that are deleted or failed, also those that EC2 still shows as they were."""
        present = [one for one in found if one.state not in (*DELETED_STATES, "error")]
        return [one for one in present if not self._cache.was_deleted(one.id)]

    def _wait_usable(self, name: str, created: Ec2Volume, deadline: float) -> Ec2Volume | None:
        """Wait until the volume can be attached; None when it was deleted, so that its token is used up."""
        if self._cache.was_deleted(created.id):
            return None
        volume = self._wait_shown(name, created, deadline)
        if volume is None or volume.state == "creating" or not self._has_tags(volume):
            volume = self._wait_created(created, deadline)
        if volume is None or volume.state in DELETED_STATES:
            return None
        if volume.state == "error":
            with suppress(NotFound):
                self._delete(volume.id)
            raise Unavailable(
                f"EC2 could not create volume {volume.id!r} (state error; often a KMS key that may not be used); "
                "the volume was deleted; try again"
            )
        return volume

    def _wait_shown(self, name: str, created: Ec2Volume, deadline: float) -> Ec2Volume | None:
        """Return the volume as EC2 shows it under its name, once created; None when EC2 does not show it.

        Raises AlreadyExists for a second volume of the name, which tokens do not exclude: one process may copy a
        volume while another creates an empty one. The process that created the later one deletes it, unless it
        was created long ago and may be in use.
        """

        def done(found: list[Ec2Volume] | None) -> bool:
            return [(one.id, one.state) for one in found or ()] != [(created.id, "creating")]

        try:
            found = self._cache.name_poller.wait(leaf(name), done, deadline) or []
        except Timeout as error:
            raise Unavailable(f"volume {created.id!r} is being created: {error}") from error
        existing = self._existing(found)
        first = existing[0] if existing else created
        if first.id != created.id and (first.created, first.id) < (created.created, created.id):
            if created.state == "creating":
                with suppress(NotFound):
                    self._delete(created.id)
            raise AlreadyExists(f"volume {name!r} already exists as {first.id!r}")
        return next((one for one in found if one.id == created.id), None)

    def _wait_created(self, created: Ec2Volume, deadline: float) -> Ec2Volume | None:
        """Return the volume once it is no longer being created; None when EC2 does not show it with its tags."""
        age = (datetime.now(UTC) - created.created).total_seconds()
        visible = time.monotonic() + self._cache.config.consistency_seconds - age  # from then on EC2 shows it

        def done(volume: Ec2Volume | None) -> bool:
            if volume is None or not self._has_tags(volume):
                return time.monotonic() > visible
            return volume.state != "creating"

        try:
            return self._cache.volume_poller.wait(created.id, done, deadline)
        except Timeout as error:
            raise Unavailable(f"volume {created.id!r} is still being created: {error}") from error

    def _has_tags(self, volume: Ec2Volume) -> bool:
        return labels.read_stamp(volume.tags) is not None and labels.is_ours(volume.tags, self._cache.setting)

    def delete(self, handle: str) -> None:
        """Raises NotFound, InUse, and FailedPrecondition for a volume that the driver did not create.

        Its labels are looked up, unless they were seen lately (Ec2Cache.is_own). That no lookup shows a volume does not
        prove that it is gone: only DeleteVolume itself says so. Then the IAM policy's condition on the tag stands in.
        """
        own = self._cache.is_own(handle)
        volume = None if own else self._cache.shown_volume(handle)
        if volume and self._cache.stamp("volume", volume).imported:
            raise not_ours_to_delete(handle)
        self._delete(handle)
        if not (own or volume):
            log.warning(labels.NOT_CHECKED, "volume", handle)

    def _delete(self, id: str) -> None:
        self._cache.known.take(id)
        try:
            self._cache.client.delete_volume(id)
        except IncorrectState as error:
            raise Unavailable(f"volume {id!r} cannot be deleted in its present state: {error}; try again") from error
        self._cache.remember_deleted(id)

    def list_page(self, page: PageRequest) -> Page[Volume]:
        """Return one page of this instance's volumes. Raises InvalidToken."""
        return self._listing.page(page, self._converter)

    def _converter(self, found: dict[str, Ec2Volume]) -> Callable[[str], Volume | None]:
        """Return what converts a volume of these by its id; the names of all nodes are looked up in one call."""
        self._node_names.names({one.instance for volume in found.values() for one in volume.attachments})

        def convert(handle: str) -> Volume | None:
            volume = found.get(handle)
            if volume is None or volume.state in (*DELETED_STATES, "error") or not labels.read_stamp(volume.tags):
                return None
            return self.to_volume(volume)

        return convert

    def to_volume(self, volume: Ec2Volume) -> Volume:
        """Return a volume of this instance as the contract has it."""
        return Volume(
            handle=volume.id,
            size=volume.size * GIB,
            stamp=self._cache.stamp("volume", volume),
            topology=({"zone": volume.zone, **outposts.segment(volume.outpost)},),
            topology_aliases=self._cache.zone_aliases(volume.zone),
            published_nodes=self._node_names.of_volume(volume),
        )
