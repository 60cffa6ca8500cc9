"""The RBD backend: every volume and every snapshot is an image in a pool of a Ceph cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from csi_multi.contract import (
    NO_SECRETS,
    AccessMode,
    BlockMap,
    Capability,
    Capacity,
    CapacityReport,
    CapacityRequest,
    ChangedBlocks,
    Clone,
    Device,
    DryRunReport,
    Expand,
    ExpandRequest,
    Expansion,
    FailedPrecondition,
    GroupSnapshot,
    GroupSnapshotRequest,
    GroupSnapshots,
    HealthEntry,
    Import,
    InvalidArgument,
    ListSnapshots,
    ListVolumes,
    NodeHealthReporter,
    NotFound,
    OpenRequest,
    Page,
    PageRequest,
    ResourceExhausted,
    Segments,
    Setting,
    Snapshot,
    SnapshotRequest,
    Source,
    SourceKind,
    Stamp,
    StorageError,
    StorageHealthEntry,
    Strings,
    Timeout,
    Topology,
    TopologyRequirement,
    Unavailable,
    Volume,
    VolumeHealth,
    VolumeHealthLister,
    VolumeRequest,
)

from . import config, labels, placement
from .capacity import CapacityAccounting
from .changed_blocks import unrelated
from .command import BackgroundRunner, CommandRunner
from .connection import keyring_available
from .devices import MapSettings
from .errors import PoolFull
from .explain import DryRunBackgroundRunner, DryRunRequests, DryRunRunner
from .listing import page_across
from .pool import Pool

MANY_WRITERS = (AccessMode.MULTI_NODE_SINGLE_WRITER, AccessMode.MULTI_NODE_MULTI_WRITER)
Prepare = Callable[[VolumeRequest, CapacityAccounting, config.Config], VolumeRequest]


class RbdBackend(
    Topology,
    Expand,
    Clone,
    ListVolumes,
    ListSnapshots,  # includes Snapshots
    GroupSnapshots,
    ChangedBlocks,
    Capacity,
    VolumeHealthLister,  # includes VolumeHealthReporter
    NodeHealthReporter,
    Import,  # includes Explain
):
    contract = (1, 1)
    Config = config.Config
    Parameters = config.Parameters
    SnapshotParameters = config.SnapshotParameters
    GroupSnapshotParameters = config.GroupSnapshotParameters
    access_modes = frozenset(AccessMode)
    opens_exclusively = True  # other nodes are seen as watchers of the image

    config: config.Config

    def __init__(
        self,
        config: Any,
        setting: Setting,
        runner: CommandRunner | None = None,
        background: CommandRunner | None = None,
        prepare: Prepare | None = None,
    ) -> None:
        """`runner` and `background` run commands, by default on this machine. `prepare` changes requests for volumes
        before they are served, for a dry run.
        """
        super().__init__(config, setting)
        configs = self.config.pool_configs()
        self.everywhere = not any(one.topology for one in configs)
        self._prepare = prepare or _unchanged
        runner, background = runner or CommandRunner(setting.observe), background or BackgroundRunner(setting.observe)
        self.main = Pool(configs[0], setting, runner, background)
        self.pools = {"": self.main}  # by the beginning of their handles
        for one in configs[1:]:
            place = labels.place_of(one.pool)
            self.pools[place] = Pool(one, setting, runner, background, self.main.capacity, place=place)

    # Volumes

    def create_volume(self, request: VolumeRequest) -> Volume:
        *preferred, last = self._pools_for(request.parameters, request.topology)
        for pool in preferred:
            try:
                return self._create_volume(pool, request)
            except PoolFull:
                raise  # what is half-made cannot be removed now; the next attempt is refused before it makes anything
            except ResourceExhausted:
                continue  # the next pool may have space
        return self._create_volume(last, request)

    def _create_volume(self, pool: Pool, request: VolumeRequest) -> Volume:
        request = self._prepare(request, pool.capacity, pool.config)
        self._refuse_volume_elsewhere(pool, request)
        leaf = labels.leaf_for(request.name)
        with pool.client_for(request.secrets) as client, pool.naming_existing(pool.to_volume, leaf):
            return pool.to_volume(leaf, *pool.volumes.create(client, leaf, request))

    def restore_volume(self, request: VolumeRequest) -> Volume:
        handle = labels.source_handle(request)
        pool = self._pool_of_source(handle, request)
        request = self._prepare(request, pool.capacity, pool.config)
        leaf, source = labels.leaf_for(request.name), pool.snapshot_images.leaf(handle)
        with pool.client_for(request.secrets) as client, pool.naming_existing(pool.to_volume, leaf):
            return pool.to_volume(leaf, *pool.volumes.restore(client, leaf, request, source))

    def clone_volume(self, request: VolumeRequest) -> Volume:
        handle = labels.source_handle(request)
        pool = self._pool_of_source(handle, request)
        request = self._prepare(request, pool.capacity, pool.config)
        leaf, source = labels.leaf_for(request.name), pool.volume_images.leaf(handle)
        with pool.client_for(request.secrets) as client, pool.naming_existing(pool.to_volume, leaf):
            return pool.to_volume(leaf, *pool.volumes.clone(client, leaf, request, source))

    def find_volume(self, name: str) -> Volume:
        for pool in self._others(self.main):
            with suppress(NotFound):
                return pool.find_volume(name)
        return self.main.find_volume(name)

    def get_volume(self, handle: str) -> Volume:
        return self.pool_of(handle).get_volume(handle)

    def delete_volume(self, handle: str, secrets: Strings) -> None:
        pool = self.pool_of(handle)
        with pool.client_for(secrets) as client:
            pool.volumes.delete(client, pool.volume_images.leaf(handle))

    def expand_volume(self, request: ExpandRequest) -> Expansion:
        pool = self.pool_of(request.handle)
        leaf = pool.volume_images.leaf(request.handle)
        with pool.client_for(request.secrets) as client:
            return pool.volumes.expand(client, leaf, request.size)

    def import_volume(self, name: str, stamp: Stamp) -> Volume:
        pool = next((one for one in self.pools.values() if name.startswith(one.client.spec(""))), self.main)
        for other in self._others(pool):
            other.refuse_volume(stamp.name, {})
        with pool.client_for({}) as client:
            return pool.to_volume(*pool.importer.import_volume(client, name, stamp))

    def release_volume(self, handle: str) -> str:
        pool = self.pool_of(handle)
        with pool.client_for({}) as client:
            return pool.importer.release(client, pool.volume_images.leaf(handle))

    def list_volumes(self, page: PageRequest) -> Page[Volume]:
        return page_across({place: pool.list_volumes for place, pool in self.pools.items()}, page)

    # Snapshots

    def create_snapshot(self, request: SnapshotRequest) -> Snapshot:
        pool = self.pool_of(request.source)
        for other in self._others(pool):
            other.refuse_snapshot(request.name, request.secrets)
        leaf = labels.leaf_for(request.name)
        with pool.client_for(request.secrets) as client, pool.naming_existing(pool.read_snapshot, leaf):
            return pool.to_snapshot(leaf, *pool.snapshots.create(client, leaf, request))

    def find_snapshot(self, name: str) -> Snapshot:
        for pool in self._others(self.main):
            with suppress(NotFound):
                return pool.find_snapshot(name)
        return self.main.find_snapshot(name)

    def get_snapshot(self, handle: str) -> Snapshot:
        return self.pool_of(handle).get_snapshot(handle)

    def delete_snapshot(self, handle: str, secrets: Strings) -> None:
        pool = self.pool_of(handle)
        leaf = pool.snapshot_images.leaf(handle)
        with pool.client_for(secrets) as client:
            pool.groups.members.refuse(client, leaf)
            pool.snapshots.delete(client, leaf)

    def list_snapshots(self, page: PageRequest, source: str | None = None) -> Page[Snapshot]:
        if source is not None:
            pool = self.pool_of(source)
            return pool.list_snapshots(page, source)
        return page_across({place: pool.list_snapshots for place, pool in self.pools.items()}, page)

    def source_stamp(self, source: Source) -> Stamp:
        """Read the label alone: which volume a snapshot is of takes one more look."""
        pool = self.pool_of(source.handle)
        images = pool.volume_images if source.kind is SourceKind.VOLUME else pool.snapshot_images
        return images.get_before_copy(pool.client, images.leaf(source.handle)).stamp

    # Groups of snapshots, and blocks

    def create_group_snapshot(self, request: GroupSnapshotRequest) -> GroupSnapshot:
        pool = self._pool_of_group(request.sources)
        for other in self._others(pool):
            other.refuse_group(request.stamp.name, request.secrets)
        leaf = labels.leaf_for(request.stamp.name)
        with pool.client_for(request.secrets) as client, pool.naming_existing(pool.to_existing_group, leaf):
            return pool.to_group(leaf, pool.groups.create(client, leaf, request))

    def find_group_snapshot(self, name: str) -> GroupSnapshot:
        for pool in self._others(self.main):
            with suppress(NotFound):
                return pool.find_group(name)
        return self.main.find_group(name)

    def get_group_snapshot(self, handle: str) -> GroupSnapshot:
        return self.pool_of(handle).get_group(handle)

    def delete_group_snapshot(self, handle: str, secrets: Strings) -> None:
        pool = self.pool_of(handle)
        with pool.client_for(secrets) as client:
            pool.groups.delete(client, pool.group_images.leaf(handle))

    def allocated_blocks(self, handle: str, offset: int, secrets: Strings) -> BlockMap:
        pool = self.pool_of(handle)
        with pool.client_for(secrets) as client:
            return pool.blocks.allocated(client, pool.snapshot_images.leaf(handle), offset)

    def changed_blocks(self, base: str, target: str, offset: int, secrets: Strings) -> BlockMap:
        pool = self.pool_of(target)
        with pool.client_for(secrets) as client:
            leaf = pool.snapshot_images.leaf(target)
            if self.pool_of(base) is not pool:
                self.get_snapshot(base)
                raise unrelated(base, target)
            return pool.blocks.changed(client, pool.snapshot_images.leaf(base), leaf, offset)

    # Topology, capacity, health

    def node_segments(self) -> Segments:
        return placement.node_segments((one.config for one in self.pools.values()), self.setting.node)

    def capacity(self, request: CapacityRequest) -> CapacityReport:
        parameters, segments = request.parameters, request.segments or {}
        pools = self._allowed(parameters)
        if segments:
            pools = [one for one in pools if placement.is_reached(one.config, segments)]
        named = parameters and parameters.data_pool
        data_pools = dict.fromkeys(named or one.data_pool for one in pools)
        return self.main.capacity.report_all(data_pools)

    def volume_health(self, handle: str, secrets: Strings) -> tuple[HealthEntry, ...]:
        pool = self.pool_of(handle)
        entries = pool.health.volume()
        try:
            pool.get_volume(handle)
        except (ResourceExhausted, Unavailable, Timeout):
            if not entries:
                raise  # with entries the cause is known, even if the volume cannot be looked up
        return entries

    def list_volume_health(self, page: PageRequest, secrets: Strings) -> Page[VolumeHealth]:
        return page_across({place: pool.list_volume_health for place, pool in self.pools.items()}, page)

    def node_volume_health(self, handle: str) -> tuple[HealthEntry, ...]:
        pool = self.pool_of(handle)
        image = pool.image(handle)
        if self._has_key() and pool.devices.find(image) is None:
            pool.get_volume(handle)  # raises NotFound; a volume that is mapped here exists
        return pool.devices.health(image)

    def node_storage_health(self, secrets: Strings) -> tuple[StorageHealthEntry, ...]:
        return self.main.health.storage() if self._has_key() else ()

    # Devices

    def unsupported(self, capability: Capability, parameters: Any = None) -> str:
        if capability.mode in MANY_WRITERS and not capability.block:
            return (
                f"access mode {capability.mode.name} is for raw block volumes only: a filesystem has one writer; "
                "use volumeMode Block"
            )
        return super().unsupported(capability, parameters)

    def open_device(self, request: OpenRequest) -> Device:
        pool = self.pool_of(request.handle)
        leaf = pool.volume_images.leaf(request.handle)
        with pool.client_for(request.secrets) as client:
            image, label, metadata = pool.volume_images.get_metadata(client, leaf)
            blank = labels.blank_state(label, metadata)
            pool.format_state.remember_key(request, blank)
            settings = MapSettings.of(label, pool.config, request.capability)
            holder = metadata.get(labels.HOLDER, "")
            return pool.devices.open(client, image, settings, request, blank, holder=holder)

    def find_device(self, handle: str, secrets: Strings = NO_SECRETS) -> Device | None:
        pool = self.pool_of(handle)
        return pool.devices.find(pool.image(handle))

    def close_device(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        pool = self.pool_of(handle)
        pool.format_state.forget_key(handle)
        pool.devices.close(pool.image(handle))

    def refresh_device(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        pool = self.pool_of(handle)
        pool.devices.refresh(pool.image(handle))

    def formatting(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        self.pool_of(handle).format_state.formatting(handle)

    def formatted(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        self.pool_of(handle).format_state.formatted(handle)

    def has_data(self, handle: str, secrets: Strings = NO_SECRETS) -> bool | None:
        return self.pool_of(handle).format_state.has_data(handle)

    # Start, regular checks and end

    def check(self) -> None:
        if not (self.setting.controller and self.config.keyring):
            return  # a thousand nodes must not load the monitors with regular checks
        self.main.health.check()
        _each(pool.check for pool in self.pools.values())

    def resume(self) -> None:
        for pool in self.pools.values():
            pool.devices.restart_dead()
        if self.setting.controller and self.config.keyring:
            _each(pool.resume for pool in self.pools.values())

    def dry_run(self, report: DryRunReport) -> RbdBackend:
        runner = DryRunRunner(report, keyless=not self.config.keyring)
        return type(self)(self.config, self.setting, runner, DryRunBackgroundRunner(), DryRunRequests(report))

    def pool_of(self, handle: str) -> Pool:
        """Return the pool that a handle names. The own pool knows no handle of another form."""
        name, slash, _ = handle.rpartition("/")
        return self.pools.get(name + slash, self.main)

    def wait_until_idle(self, seconds: float) -> bool:
        """Wait until the background has removed all that it can, up to so many seconds for each step."""
        return all(pool.wait_until_idle(seconds) for pool in self.pools.values())

    def close(self) -> None:
        for pool in self.pools.values():
            pool.close()

    def _has_key(self) -> bool:
        return keyring_available(self.config, self.setting)

    def _others(self, pool: Pool) -> list[Pool]:
        return [one for one in self.pools.values() if one is not pool]

    def _allowed(self, parameters: Any) -> list[Pool]:
        found = placement.allowed((one.config for one in self.pools.values()), parameters)
        return [one for one in self.pools.values() if one.config in found]

    def _pools_for(self, parameters: Any, wanted: TopologyRequirement | None) -> list[Pool]:
        """Return the pools that a new volume may be in, the best first. Raises InvalidArgument, ResourceExhausted."""
        pools = {one.config.pool: one for one in self._allowed(parameters)}
        return [pools[one.pool] for one in placement.by_topology([one.config for one in pools.values()], wanted)]

    def _pool_of_source(self, source: str, request: VolumeRequest) -> Pool:
        """Return the pool of a copy. Raises InvalidArgument, ResourceExhausted for one that it must not be in, and
        AlreadyExists where another pool has a volume of its name.
        """
        pool = self.pool_of(source)
        if pool not in self._allowed(request.parameters):
            raise InvalidArgument(
                f"the source is in pool {pool.config.pool!r}, which the class does not allow, and copies stay in the "
                "pool of their source; use a class for that pool"
            )
        placement.by_topology([pool.config], request.topology)
        self._refuse_volume_elsewhere(pool, request)
        return pool

    def _pool_of_group(self, sources: Sequence[str]) -> Pool:
        """Return the pool of all volumes of a group. Raises FailedPrecondition where they are in several."""
        pools = dict.fromkeys(self.pool_of(one) for one in sources)
        if len(pools) > 1:
            names = ", ".join(repr(one.config.pool) for one in pools)
            raise FailedPrecondition(
                f"the volumes are in {len(pools)} pools ({names}), and a group snapshot is of one pool; create one "
                "for each pool"
            )
        return next(iter(pools))

    def _refuse_volume_elsewhere(self, pool: Pool, request: VolumeRequest) -> None:
        """A request that is repeated for another topology must not create a second volume."""
        for other in self._others(pool):
            other.refuse_volume(request.name, request.secrets)


def _each(actions: Iterable[Callable[[], None]]) -> None:
    """Do all, also when one fails; raise the first error."""
    errors: list[StorageError] = []
    for act in actions:
        try:
            act()
        except StorageError as error:
            errors.append(error)
    if errors:
        raise errors[0]


def _unchanged(request: VolumeRequest, _capacity: CapacityAccounting, _config: config.Config) -> VolumeRequest:
    return request
