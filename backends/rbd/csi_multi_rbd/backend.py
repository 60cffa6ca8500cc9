"""The RBD backend: every volume and every snapshot is an image in one pool of a Ceph cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Any

from csi_multi.contract import (
    NO_SECRETS,
    AccessMode,
    Capability,
    Capacity,
    CapacityReport,
    CapacityRequest,
    Clone,
    Device,
    DryRunReport,
    Expand,
    ExpandRequest,
    Expansion,
    FailedPrecondition,
    HealthEntry,
    Import,
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
    Stamp,
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
    ids,
)

from . import config, labels
from .capacity import CapacityAccounting
from .circuit_breaker import CircuitBreaker
from .client import Client, ClusterClient
from .command import BackgroundRunner, CommandRunner
from .connection import keyring_available
from .devices import DeviceManager, MapSettings
from .errors import BrokenImage, ImageNotFound, ParentLost
from .explain import DryRunBackgroundRunner, DryRunRequests, DryRunRunner
from .flatten import Flattener
from .format_state import FormatState
from .health import HealthReporter
from .images import ImageExists, OwnedImages
from .importing import Importer
from .labels import Label
from .listing import Listing
from .removal import ImageRemover
from .resources import ListedImage
from .snapshots import ImageCopier, SnapshotManager
from .trash import TrashPurger
from .volumes import VolumeManager

MANY_WRITERS = (AccessMode.MULTI_NODE_SINGLE_WRITER, AccessMode.MULTI_NODE_MULTI_WRITER)
Prepare = Callable[[VolumeRequest, CapacityAccounting], VolumeRequest]


class RbdBackend(
    Topology,
    Expand,
    Clone,
    ListVolumes,
    ListSnapshots,  # includes Snapshots
    Capacity,
    VolumeHealthLister,  # includes VolumeHealthReporter
    NodeHealthReporter,
    Import,  # includes Explain
):
    contract = (1, 1)
    Config = config.Config
    Parameters = config.Parameters
    SnapshotParameters = config.SnapshotParameters
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
        self.everywhere = not self.config.topology
        self._prepare = prepare or _unchanged
        self._resumed = False
        self._data_pool = self.config.data_pool or self.config.pool  # unless a StorageClass names another
        runner, breaker = runner or CommandRunner(setting.observe), CircuitBreaker()
        background = background or BackgroundRunner(setting.observe)
        self._client = Client(self.config, runner, breaker)
        cluster = ClusterClient(self.config, runner, breaker)
        background_client = Client(self.config, background, breaker)
        background_cluster = ClusterClient(self.config, background, breaker)
        self._volume_images = OwnedImages(labels.VOLUME, setting)
        self._snapshot_images = OwnedImages(labels.SNAPSHOT, setting)
        kinds = (self._volume_images, self._snapshot_images)
        self._capacity = CapacityAccounting(self.config, cluster)
        self._health = HealthReporter(self.config, cluster, self._capacity)
        self.trash = TrashPurger(
            background_client,
            lambda image: any(images.leaf_of(image) for images in kinds),
            immediate=not self.config.keyring,
        )
        self._flattener = Flattener(self.config, background_cluster, background_client, kinds)
        remover = ImageRemover(self.trash, kinds, background_client)
        self._temporaries = remover.temporaries
        copier = ImageCopier(self.config, remover, self._flattener)
        self._volumes = VolumeManager(self.config, *kinds, self._capacity, remover, copier)
        self._snapshots = SnapshotManager(self.config, *kinds, remover, copier)
        self._importer = Importer(*kinds)
        self._volume_listing = Listing(self._volume_images, self._client)
        self._snapshot_listing = Listing(self._snapshot_images, self._client)
        self._devices = DeviceManager(self.config, setting, self._client)
        self._format_state = FormatState(self.config, setting, self._volume_images, self._client, self._devices)

    # Volumes

    def create_volume(self, request: VolumeRequest) -> Volume:
        request = self._prepare(request, self._capacity)
        self._refuse_unreachable(request.topology)
        leaf = labels.leaf_for(request.name)
        with self._client_for(request.secrets) as client, self._naming_existing(self._to_volume, leaf):
            return self._to_volume(leaf, *self._volumes.create(client, leaf, request))

    def restore_volume(self, request: VolumeRequest) -> Volume:
        request = self._prepare(request, self._capacity)
        self._refuse_unreachable(request.topology)
        leaf, source = labels.leaf_for(request.name), self._snapshot_images.leaf(labels.source_handle(request))
        with self._client_for(request.secrets) as client, self._naming_existing(self._to_volume, leaf):
            return self._to_volume(leaf, *self._volumes.restore(client, leaf, request, source))

    def clone_volume(self, request: VolumeRequest) -> Volume:
        request = self._prepare(request, self._capacity)
        self._refuse_unreachable(request.topology)
        leaf, source = labels.leaf_for(request.name), self._volume_images.leaf(labels.source_handle(request))
        with self._client_for(request.secrets) as client, self._naming_existing(self._to_volume, leaf):
            return self._to_volume(leaf, *self._volumes.clone(client, leaf, request, source))

    def find_volume(self, name: str) -> Volume:
        return self.get_volume(labels.leaf_for(name))

    def get_volume(self, handle: str) -> Volume:
        return self._to_volume(handle, *self._volumes.get(self._client, self._volume_images.leaf(handle)))

    def delete_volume(self, handle: str, secrets: Strings) -> None:
        with self._client_for(secrets) as client:
            self._volumes.delete(client, self._volume_images.leaf(handle))

    def expand_volume(self, request: ExpandRequest) -> Expansion:
        leaf = self._volume_images.leaf(request.handle)
        with self._client_for(request.secrets) as client:
            return self._volumes.expand(client, leaf, request.size)

    def import_volume(self, name: str, stamp: Stamp) -> Volume:
        with self._client_for({}) as client:
            return self._to_volume(*self._importer.import_volume(client, name, stamp))

    def release_volume(self, handle: str) -> str:
        with self._client_for({}) as client:
            return self._importer.release(client, self._volume_images.leaf(handle))

    def list_volumes(self, page: PageRequest) -> Page[Volume]:
        return self._volume_listing.page(page, self._listed_volume)

    # Snapshots

    def create_snapshot(self, request: SnapshotRequest) -> Snapshot:
        leaf = labels.leaf_for(request.name)
        with self._client_for(request.secrets) as client, self._naming_existing(self._read_snapshot, leaf):
            return self._to_snapshot(leaf, *self._snapshots.create(client, leaf, request))

    def find_snapshot(self, name: str) -> Snapshot:
        return self.get_snapshot(labels.leaf_for(name))

    def get_snapshot(self, handle: str) -> Snapshot:
        return self._read_snapshot(handle, *self._snapshots.get(self._client, self._snapshot_images.leaf(handle)))

    def delete_snapshot(self, handle: str, secrets: Strings) -> None:
        with self._client_for(secrets) as client:
            self._snapshots.delete(client, self._snapshot_images.leaf(handle))

    def list_snapshots(self, page: PageRequest, source: str | None = None) -> Page[Snapshot]:
        def listed(image: ListedImage, label: Label, ids: Mapping[str, str]) -> Snapshot | None:
            present = ids.get(self._volume_images.name(label.source), "")
            snapshot = self._to_snapshot(self._snapshot_images.leaf_of(image.name), image.size, label, present)
            return snapshot if source in (None, snapshot.source) else None

        return self._snapshot_listing.page(page, listed)

    # Topology, capacity, health

    def node_segments(self) -> Segments:
        if not any(fnmatchcase(self.setting.node, pattern) for pattern in self.config.nodes):
            raise FailedPrecondition(
                f"node {self.setting.node!r} does not reach this cluster: its name matches none of `nodes`, "
                f"{', '.join(self.config.nodes)}; add it there if it does"
            )
        return self.config.topology

    def capacity(self, request: CapacityRequest) -> CapacityReport:
        if request.segments and not self._reachable(request.segments):
            return CapacityReport(available=0)
        parameters = request.parameters
        return self._capacity.report((parameters and parameters.data_pool) or self._data_pool)

    def volume_health(self, handle: str, secrets: Strings) -> tuple[HealthEntry, ...]:
        entries = self._health.volume()
        try:
            self.get_volume(handle)
        except (ResourceExhausted, Unavailable, Timeout):
            if not entries:
                raise  # with entries the cause is known, even if the volume cannot be looked up
        return entries

    def list_volume_health(self, page: PageRequest, secrets: Strings) -> Page[VolumeHealth]:
        entries = self._health.volume()

        def listed(image: ListedImage, *_: object) -> VolumeHealth | None:
            handle = self._volume_images.leaf_of(image.name)
            return VolumeHealth(handle=handle, entries=entries) if entries else None

        return self._volume_listing.page(page, listed)

    def node_volume_health(self, handle: str) -> tuple[HealthEntry, ...]:
        image = self._image(handle)
        if self._has_key() and self._devices.find(image) is None:
            self.get_volume(handle)  # raises NotFound; a volume that is mapped here exists
        return self._devices.health(image)

    def node_storage_health(self, secrets: Strings) -> tuple[StorageHealthEntry, ...]:
        return self._health.storage() if self._has_key() else ()

    # Devices

    def unsupported(self, capability: Capability, parameters: Any = None) -> str:
        if capability.mode in MANY_WRITERS and not capability.block:
            return (
                f"access mode {capability.mode.name} is for raw block volumes only: a filesystem has one writer; "
                "use volumeMode Block"
            )
        return super().unsupported(capability, parameters)

    def open_device(self, request: OpenRequest) -> Device:
        leaf = self._volume_images.leaf(request.handle)
        with self._client_for(request.secrets) as client:
            image, label, metadata = self._volume_images.get_metadata(client, leaf)
            blank = labels.blank_state(label, metadata)
            self._format_state.remember_key(request, blank)
            settings = MapSettings.of(label, self.config, request.capability)
            return self._devices.open(client, image, settings, request, blank)

    def find_device(self, handle: str, secrets: Strings = NO_SECRETS) -> Device | None:
        return self._devices.find(self._image(handle))

    def close_device(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        self._format_state.forget_key(handle)
        self._devices.close(self._image(handle))

    def refresh_device(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        self._devices.refresh(self._image(handle))

    def formatting(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        self._format_state.formatting(handle)

    def formatted(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        self._format_state.formatted(handle)

    def has_data(self, handle: str, secrets: Strings = NO_SECRETS) -> bool | None:
        return self._format_state.has_data(handle)

    # Start, regular checks and end

    def check(self) -> None:
        if not (self.setting.controller and self.config.keyring):
            return  # a thousand nodes must not load the monitors with regular checks
        self._health.check()
        if not self._resumed:  # that failed when the process started
            self._resume_images()
        self.trash.sweep()
        self._snapshots.retry_leftovers(self._client)

    def resume(self) -> None:
        self._devices.restart_dead()
        if self.setting.controller and self.config.keyring:
            self._resume_images()

    def _resume_images(self) -> None:
        listing = self._client.listing()
        self.trash.sweep(now=True, parents={one.parent for one in listing.images})
        self._snapshots.remove_leftovers(self._client, listing.snapshots)
        self._flattener.resume(listing.images)
        self._resumed = True

    def dry_run(self, report: DryRunReport) -> RbdBackend:
        runner = DryRunRunner(report, keyless=not self.config.keyring)
        return type(self)(
            self.config, self.setting, runner, DryRunBackgroundRunner(), DryRunRequests(self.config, report)
        )

    def wait_until_idle(self, seconds: float) -> bool:
        """Wait until the background has removed all that it can, up to so many seconds for each step."""
        return self._temporaries.wait_until_idle(seconds) and self.trash.wait_until_idle(seconds)

    def close(self) -> None:
        self._temporaries.close()
        self.trash.close()
        self._flattener.close()

    @contextmanager
    def _client_for(self, secrets: Strings) -> Iterator[Client]:
        """Yield a client that acts as the user of a request's secrets, or as the instance's."""
        with self._client.as_user(secrets) as client:
            try:
                yield client
            except (Timeout, ResourceExhausted):
                self._capacity.invalidate()
                raise

    @contextmanager
    def _naming_existing(self, convert: Callable[[str, int, Label], object], leaf: str) -> Iterator[None]:
        """Give the core the volume or snapshot that has the name, so that it does not look for it again."""
        try:
            yield
        except ImageExists as error:
            error.existing = convert(leaf, error.image.size, error.label)
            raise

    def _has_key(self) -> bool:
        return keyring_available(self.config, self.setting)

    def _image(self, handle: str) -> str:
        """Return the name of the volume's image. Raises NotFound."""
        return self._volume_images.name(self._volume_images.leaf(handle))

    def _image_id(self, handle: str) -> str:
        """Return the id of the volume's image; "" where there is none, or none that can be opened."""
        with suppress(NotFound, ImageNotFound, BrokenImage, ParentLost):
            return self._client.info(self._image(handle)).id
        return ""

    def _refuse_unreachable(self, wanted: TopologyRequirement | None) -> None:
        if wanted and wanted.requisite and not any(map(self._reachable, wanted.requisite)):
            raise ResourceExhausted(
                f"this cluster is reached from {dict(self.config.topology)}, and no requisite topology matches that; "
                "set allowedTopologies of the StorageClass accordingly"
            )

    def _reachable(self, segments: Segments) -> bool:
        return all(segments.get(key) == value for key, value in self.config.topology.items())

    def _to_volume(self, handle: str, size: int, label: Label) -> Volume:
        topology = (self.config.topology,) if self.config.topology else ()
        return Volume(handle=handle, size=size, stamp=label.stamp, topology=topology)

    def _listed_volume(self, image: ListedImage, label: Label, _: Mapping[str, str]) -> Volume:
        return self._to_volume(self._volume_images.leaf_of(image.name), image.size, label)

    def _read_snapshot(self, handle: str, size: int, label: Label) -> Snapshot:
        return self._to_snapshot(handle, size, label, self._image_id(label.source))

    def _to_snapshot(self, handle: str, size: int, label: Label, present: str = "") -> Snapshot:
        """`present` is the id of the image that has the name of the source now, "" where it is not known."""
        if not label.source:
            raise FailedPrecondition(
                f"image-meta {labels.KEY} of image {label.image} is damaged: it does not name the snapshot's source; "
                "write it again with 'rbd image-meta set', see Recovery in docs/rbd.md"
            )
        anew = present and label.source_id not in ("", present)
        return Snapshot(
            handle=handle,
            source=ids.earlier(label.source, label.source_id) if anew else label.source,
            size=size,
            created=datetime.fromtimestamp(label.created, UTC),
            stamp=label.stamp,
            topology=(self.config.topology,) if self.config.topology else (),
        )


def _unchanged(request: VolumeRequest, _capacity: CapacityAccounting) -> VolumeRequest:
    return request
