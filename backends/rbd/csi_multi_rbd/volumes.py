"""Volumes: create empty ones, restore and clone them from snapshots and volumes, expand and delete them."""

from __future__ import annotations

from dataclasses import replace

from csi_multi.contract import Expansion, SizeRange, VolumeRequest

from . import labels
from .capacity import CapacityAccounting, choose_size
from .client import Client
from .config import Config
from .errors import NameTaken
from .images import (
    ATTEMPTS,
    FoundImage,
    ImageSpec,
    OwnedImages,
    image_layout,
    layout_of_copy,
    name_contended,
)
from .labels import Label
from .removal import ImageRemover
from .snapshots import ImageCopier, label_annotations


class VolumeManager:
    """Every method acts through the client it is given, which may be a request's own user."""

    def __init__(
        self,
        config: Config,
        volumes: OwnedImages,
        snapshots: OwnedImages,
        capacity: CapacityAccounting,
        remover: ImageRemover,
        copier: ImageCopier,
    ) -> None:
        self._config = config
        self._volumes = volumes
        self._snapshots = snapshots
        self._capacity = capacity
        self._remover = remover
        self._copier = copier

    def create(self, client: Client, leaf: str, request: VolumeRequest) -> tuple[int, Label]:
        """Create an empty volume; return its size and label.

        Raises AlreadyExists, OutOfRange, ResourceExhausted, InvalidArgument, Busy.
        """
        spec = self._spec(leaf, request)
        label = volume_label(spec.name, request)
        with self._remover.removing_incomplete(client, self._volumes, leaf):
            self._remover.refuse_seen(client, self._volumes, leaf)
            self._admit(spec)
            self._create(client, leaf, spec, label)
        self._volumes.cache.note_created(spec.name)
        return spec.size, label

    def restore(self, client: Client, leaf: str, request: VolumeRequest, source: str) -> tuple[int, Label]:
        """Create a volume from a snapshot. Raises as `clone` does."""
        with self._remover.removing_incomplete(client, self._volumes, leaf):
            self._remover.refuse_seen(client, self._volumes, leaf)
            found = self._copier.source(client, self._snapshots, source, seen=_source_seen(request))
            return self._copy(client, leaf, request, found, base=labels.BASE_SNAPSHOT)

    def clone(self, client: Client, leaf: str, request: VolumeRequest, source: str) -> tuple[int, Label]:
        """Create a volume from another. Raises AlreadyExists, NotFound, OutOfRange, ResourceExhausted."""
        with self._remover.removing_incomplete(client, self._volumes, leaf):
            self._remover.refuse_seen(client, self._volumes, leaf)
            found = self._copier.source(client, self._volumes, source, seen=_source_seen(request))
            return self._copy(client, leaf, request, found)

    def get(self, client: Client, leaf: str) -> tuple[int, Label]:
        """Raises NotFound."""
        found, label = self._volumes.get(client, leaf)
        return found.image.size, label

    def expand(self, client: Client, leaf: str, wanted: SizeRange) -> Expansion:
        """Enlarge a volume, in use or not: the kernel or rbd-nbd of a node notices the new size.

        Raises NotFound, OutOfRange, ResourceExhausted.
        """
        found = self._volumes.get_source(client, leaf)
        size = found.image.size
        if not wanted.holds(size):  # a volume that is large enough already is fine, whatever the instance allows now
            size = choose_size(wanted, self._config, least=found.image.size)
            self._capacity.admit(size - found.image.size, found.image.data_pool or self._config.pool)
            client.resize(found.image.name, size)
        return Expansion(size=size, node_required=True)

    def delete(self, client: Client, leaf: str) -> None:
        """Raises NotFound, InUse, FailedPrecondition."""
        self._remover.delete(client, self._volumes, leaf)

    def _spec(self, leaf: str, request: VolumeRequest, *, least: int = 0) -> ImageSpec:
        return ImageSpec(
            name=self._volumes.name(leaf),
            size=choose_size(request.size, self._config, least=least),
            layout=image_layout(self._config, request.parameters),
        )

    def _admit(self, spec: ImageSpec) -> None:
        self._capacity.admit(spec.size, spec.layout.data_pool or self._config.pool)

    def _create(self, client: Client, leaf: str, spec: ImageSpec, label: Label) -> None:
        for attempt in range(ATTEMPTS):
            try:
                client.create(spec.name, spec.size, spec.layout, {labels.KEY: labels.encode(label)})
                return
            except NameTaken:
                self._remover.free_name(client, self._volumes, leaf, again=attempt > 0)
        raise name_contended(client, spec.name)

    def _copy(
        self, client: Client, leaf: str, request: VolumeRequest, source: FoundImage, *, base: str = ""
    ) -> tuple[int, Label]:
        spec = self._spec(leaf, request, least=source.image.size)
        spec = replace(spec, layout=layout_of_copy(source.image, spec.layout))
        self._admit(spec)
        label = volume_label(spec.name, request, depth=source.ancestors + 1)
        self._copier.copy(client, self._volumes, leaf, source, spec, lambda _: label, base=base)
        self._volumes.cache.note_created(spec.name)
        return spec.size, label


def _source_seen(request: VolumeRequest) -> bool:
    """Return whether the core has read the stamp of the source: it compares filesystems, and a raw volume has none."""
    return any(one.mount for one in request.capabilities)


def volume_label(name: str, request: VolumeRequest, *, depth: int = 0) -> Label:
    """Return the label of a volume. It says how to map the volume only where the StorageClass does."""
    parameters = request.parameters
    return Label(
        image=name,
        stamp=request.stamp,
        depth=depth,
        mounter=parameters.mounter or "",
        map_options=parameters.map_options,
        unmap_options=parameters.unmap_options,
        annotations=label_annotations(request.metadata),
    )
