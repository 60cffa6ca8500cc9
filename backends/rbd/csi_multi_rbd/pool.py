"""One pool of an instance: its images, and all that works on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import cache, partial

from csi_multi.contract import (
    FailedPrecondition,
    GroupSnapshot,
    NotFound,
    Page,
    PageRequest,
    ResourceExhausted,
    Segments,
    Setting,
    Snapshot,
    Strings,
    Timeout,
    Unpredictable,
    Volume,
    VolumeHealth,
    ids,
)

from . import labels
from .capacity import CapacityAccounting
from .changed_blocks import BlockReader
from .circuit_breaker import CircuitBreaker
from .client import Client, ClusterClient
from .command import CommandRunner
from .config import Config
from .devices import DeviceManager
from .errors import BrokenImage, ImageNotFound, ParentLost, PoolFull
from .flatten import Flattener
from .format_state import FormatState
from .group_members import member_leaf
from .groups import GroupManager, member_label
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


class Pool:
    """The parts of the backend that work on one pool. `config` is that of the instance, with this pool as its own."""

    def __init__(
        self,
        config: Config,
        setting: Setting,
        runner: CommandRunner,
        background: CommandRunner,
        capacity: CapacityAccounting | None = None,
        *,
        place: str = "",
    ) -> None:
        """`capacity` is what is known about all pools of the cluster. Handles begin with `place`."""
        self.config = config
        self.place = place
        self.data_pool = config.data_pool or config.pool  # unless a StorageClass names another
        self._resumed = False
        breaker = CircuitBreaker()  # one that is full is no reason to refuse work in another
        self.client = Client(config, runner, breaker)
        cluster = ClusterClient(config, runner, breaker)
        background_client = Client(config, background, breaker)
        background_cluster = ClusterClient(config, background, breaker)
        self.volume_images = OwnedImages(labels.VOLUME, setting, place)
        self.snapshot_images = OwnedImages(labels.SNAPSHOT, setting, place)
        self.group_images = OwnedImages(labels.GROUP, setting, place)
        kinds = (self.volume_images, self.snapshot_images)
        self.capacity = capacity or CapacityAccounting(config, cluster)
        self.health = HealthReporter(config, cluster, self.capacity)
        self.trash = TrashPurger(
            background_client,
            lambda image: any(images.leaf_of(image) for images in (*kinds, self.group_images)),
            immediate=not config.keyring,
        )
        self._flattener = Flattener(config, background_cluster, background_client, kinds)
        self._remover = ImageRemover(self.trash, kinds, background_client)
        self.temporaries = self._remover.temporaries
        copier = ImageCopier(config, self._remover, self._flattener)
        self.volumes = VolumeManager(config, *kinds, self.capacity, self._remover, copier)
        self.snapshots = SnapshotManager(config, *kinds, self._remover, copier)
        self.groups = GroupManager(config, *kinds, self.group_images, self._remover, copier)
        self.blocks = BlockReader(self.snapshot_images, self.groups.members)
        self.importer = Importer(*kinds)
        self._volume_listing = Listing(self.volume_images, self.client)
        self._snapshot_listing = Listing(self.snapshot_images, self.client)
        self.devices = DeviceManager(config, setting, self.client)
        self.format_state = FormatState(config, setting, self.volume_images, self.client, self.devices)

    def get_volume(self, handle: str) -> Volume:
        leaf = self.volume_images.leaf(handle)
        return self.to_volume(leaf, *self.volumes.get(self.client, leaf))

    def get_snapshot(self, handle: str) -> Snapshot:
        leaf = self.snapshot_images.leaf(handle)
        size, label = self.snapshots.get(self.client, leaf)
        self.groups.members.ensure_shown(self.client, leaf, label)
        return self.read_snapshot(leaf, size, label)

    def get_group(self, handle: str) -> GroupSnapshot:
        leaf = self.group_images.leaf(handle)
        return self.read_group(leaf, self.groups.get(self.client, leaf))

    def find_volume(self, name: str) -> Volume:
        return self.get_volume(self.volume_images.handle(labels.leaf_for(name)))

    def find_snapshot(self, name: str) -> Snapshot:
        return self.get_snapshot(self.snapshot_images.handle(labels.leaf_for(name)))

    def find_group(self, name: str) -> GroupSnapshot:
        return self.get_group(self.group_images.handle(labels.leaf_for(name)))

    def refuse_volume(self, name: str, secrets: Strings) -> None:
        """Raise AlreadyExists where a volume here has the name; remove what is incomplete of one."""
        self._refuse_name(self.volume_images, labels.leaf_for(name), secrets, self.to_volume)

    def refuse_snapshot(self, name: str, secrets: Strings) -> None:
        """Do as `refuse_volume` does for a snapshot."""
        self._refuse_name(self.snapshot_images, labels.leaf_for(name), secrets, self.read_snapshot)

    def refuse_group(self, name: str, secrets: Strings) -> None:
        """Do as `refuse_volume` does for a group snapshot."""
        self._refuse_name(self.group_images, labels.leaf_for(name), secrets, self.to_existing_group)

    def _refuse_name(
        self, images: OwnedImages, leaf: str, secrets: Strings, convert: Callable[[str, int, Label], object]
    ) -> None:
        with (
            self.client_for(secrets) as client,
            self.naming_existing(convert, leaf),
            suppress(PoolFull, Unpredictable),  # a full pool is no reason to create nothing in the others
        ):
            if images.name(leaf) in client.image_names():
                self._remover.free_name(client, images, leaf, again=False)

    def list_volumes(self, page: PageRequest) -> Page[Volume]:
        def listed(image: ListedImage, label: Label, _: Mapping[str, str]) -> Volume:
            return self.to_volume(self.volume_images.leaf_of(image.name), image.size, label)

        return self._volume_listing.page(page, listed)

    def list_snapshots(self, page: PageRequest, source: str | None = None) -> Page[Snapshot]:
        members = cache(partial(self.groups.members.of, self.client))

        def listed(image: ListedImage, label: Label, ids: Mapping[str, str]) -> Snapshot | None:
            if label.group and self.snapshot_images.leaf_of(image.name) not in members(label.group):
                return None
            present = ids.get(self._source_image(label), "")
            snapshot = self.to_snapshot(self.snapshot_images.leaf_of(image.name), image.size, label, present)
            return snapshot if source in (None, snapshot.source) else None

        return self._snapshot_listing.page(page, listed)

    def list_volume_health(self, page: PageRequest) -> Page[VolumeHealth]:
        entries = self.health.volume()

        def listed(image: ListedImage, *_: object) -> VolumeHealth | None:
            handle = self.volume_images.handle(self.volume_images.leaf_of(image.name))
            return VolumeHealth(handle=handle, entries=entries) if entries else None

        return self._volume_listing.page(page, listed)

    def check(self) -> None:
        if not self._resumed:  # that failed when the process started
            self.resume()
        self.trash.sweep()
        self.snapshots.retry_leftovers(self.client)
        self.groups.members.remove_abandoned(self.client)

    def resume(self) -> None:
        """Finish what an earlier process has begun."""
        listing = self.client.listing()
        self.groups.members.resume(self.client, [one.name for one in listing.images])
        self.trash.sweep(now=True, parents={one.parent for one in listing.images})
        self.snapshots.remove_leftovers(self.client, listing.snapshots)
        self._flattener.resume(listing.images)
        self._resumed = True

    def wait_until_idle(self, seconds: float) -> bool:
        """Wait until the background has removed all that it can, up to so many seconds for each step."""
        return self.temporaries.wait_until_idle(seconds) and self.trash.wait_until_idle(seconds)

    def close(self) -> None:
        self.temporaries.close()
        self.trash.close()
        self._flattener.close()

    @contextmanager
    def client_for(self, secrets: Strings) -> Iterator[Client]:
        """Yield a client that acts as the user of a request's secrets, or as the instance's."""
        with self.client.as_user(secrets) as client:
            try:
                yield client
            except (Timeout, ResourceExhausted):
                self.capacity.invalidate(self.config.pool)
                raise

    @contextmanager
    def naming_existing(self, convert: Callable[[str, int, Label], object], leaf: str) -> Iterator[None]:
        """Give the core the volume or snapshot that has the name, so that it does not look for it again."""
        try:
            yield
        except ImageExists as error:
            error.existing = convert(leaf, error.image.size, error.label)
            raise

    def image(self, handle: str) -> str:
        """Return the name of the volume's image. Raises NotFound."""
        return self.volume_images.name(self.volume_images.leaf(handle))

    def to_volume(self, leaf: str, size: int, label: Label) -> Volume:
        handle = self.volume_images.handle(leaf)
        return Volume(handle=handle, size=size, stamp=label.stamp, topology=self._topology)

    def read_snapshot(self, leaf: str, size: int, label: Label) -> Snapshot:
        present = ""
        with suppress(NotFound, ImageNotFound, BrokenImage, ParentLost):
            present = self.client.info(self.image(label.source)).id
        return self.to_snapshot(leaf, size, label, present)

    def to_snapshot(self, leaf: str, size: int, label: Label, present: str = "") -> Snapshot:
        """`present` is the id of the image that has the name of the source now, "" where it is not known."""
        if not label.source:
            raise FailedPrecondition(
                f"image-meta {labels.KEY} of image {label.image} is damaged: it does not name the snapshot's source; "
                "write it again with 'rbd image-meta set', see Recovery in docs/rbd.md"
            )
        anew = present and label.source_id not in ("", present)
        return Snapshot(
            handle=self.snapshot_images.handle(leaf),
            source=ids.earlier(label.source, label.source_id) if anew else label.source,
            size=size,
            created=datetime.fromtimestamp(label.created, UTC),
            stamp=label.stamp,
            group=self.group_images.handle(label.group) if label.group else "",
            topology=self._topology,
        )

    def read_group(self, leaf: str, label: Label) -> GroupSnapshot:
        """Return a group whose volumes may have been deleted meanwhile."""
        return self._group(leaf, label, self.read_snapshot)

    def to_group(self, leaf: str, label: Label) -> GroupSnapshot:
        """Return a group that was just created."""
        return self._group(leaf, label, self.to_snapshot)

    def to_existing_group(self, leaf: str, _size: int, label: Label) -> GroupSnapshot:
        return self.read_group(leaf, label)

    def _group(self, leaf: str, label: Label, convert: Callable[[str, int, Label], Snapshot]) -> GroupSnapshot:
        members = (
            convert(member_leaf(leaf, number), member.size, member_label(label, leaf, number))
            for number, member in enumerate(label.members)
        )
        return GroupSnapshot(
            handle=self.group_images.handle(leaf),
            snapshots=tuple(members),
            created=datetime.fromtimestamp(label.created, UTC),
            stamp=label.stamp,
        )

    def _source_image(self, label: Label) -> str:
        with suppress(NotFound):
            return self.image(label.source)
        return ""

    @property
    def _topology(self) -> tuple[Segments, ...]:
        return (self.config.topology,) if self.config.topology else ()
