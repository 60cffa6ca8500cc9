"""Group snapshots: create, find, get, delete. All members are of one moment, and all or none exist."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial

from msgspec.structs import replace

from csi_multi.contract import (
    AlreadyExists,
    Busy,
    FailedPrecondition,
    GroupSnapshotRequest,
    NotFound,
    StorageError,
    Timeout,
    Unavailable,
    missing,
)

from . import labels
from .client import Client
from .config import Config, GroupSnapshotParameters
from .errors import ImageNotFound, NameTaken
from .group_cut import GroupCut, HeldGroup, Part
from .group_members import MemberSnapshots, member_leaf
from .images import ImageExists, ImageSpec, OwnedImages, refuse_other_cluster
from .labels import Label, Member
from .removal import ImageRemover
from .resources import ImageLayout
from .snapshots import SNAPSHOT_FEATURES, ImageCopier
from .watchers import refuse_open

GROUP_LAYOUT = ImageLayout(features=("layering",))  # of an image without data


class GroupManager:
    """Every method acts through the client it is given, which may be a request's own user."""

    def __init__(
        self,
        config: Config,
        volumes: OwnedImages,
        snapshots: OwnedImages,
        groups: OwnedImages,
        remover: ImageRemover,
        copier: ImageCopier,
    ) -> None:
        self._config = config
        self._volumes = volumes
        self._snapshots = snapshots
        self._groups = groups
        self._remover = remover
        self._copier = copier
        self._cut = GroupCut(groups, copier, remover)
        self.members = MemberSnapshots(groups, snapshots, remover)

    def create(self, client: Client, leaf: str, request: GroupSnapshotRequest) -> Label:
        """Create a group and return its label.

        Raises AlreadyExists, NotFound, ResourceExhausted, FailedPrecondition for volumes that cannot be cut together.
        """
        refuse_other_cluster(self._config, request.parameters or GroupSnapshotParameters())
        sources = [self._volumes.leaf(one) for one in request.sources]
        with self._cut.held(client, leaf) as group:
            names = client.image_names()
            if group.name in names:
                self._free_name(client, leaf)
            self._remove_left(client, leaf, names)
            with self._removing_on_failure(client, leaf, sources, group), ExitStack() as claims:
                parts = self._parts(client, leaf, sources)
                for part in parts:
                    claims.enter_context(self._remover.temporaries.claimed(part.source.image.name, part.snapshot))
                return self._make(client, leaf, group, parts, request)

    def get(self, client: Client, leaf: str) -> Label:
        """Raises NotFound."""
        return self._groups.get(client, leaf)[1]

    def delete(self, client: Client, leaf: str) -> None:
        """Delete a group with its members. Raises NotFound, InUse while one is being copied."""
        shown = self.members.of(client, leaf)
        for member in shown:
            with suppress(ImageNotFound):
                refuse_open(client, self._snapshots.name(member))
        with suppress(NotFound):
            self._remover.delete(client, self._groups, leaf)
        if not self.members.remove(client, leaf, client.image_names()) and not shown:
            raise missing(labels.GROUP, self._groups.handle(leaf))

    def _parts(self, client: Client, leaf: str, sources: Sequence[str]) -> list[Part]:
        found = [self._copier.source(client, self._volumes, one, seen=False) for one in sources]
        for one in found:
            if len(found) > 1 and "exclusive-lock" not in one.image.features:
                raise FailedPrecondition(
                    f"image {client.spec(one.image.name)} lacks the feature 'exclusive-lock', without which several "
                    "images cannot be cut at one moment; enable it with 'rbd feature enable', or create a snapshot of "
                    "each volume"
                )
        return [
            Part(
                leaf=member_leaf(leaf, number),
                source=one,
                spec=ImageSpec(
                    name=self._snapshots.name(member_leaf(leaf, number)),
                    size=one.image.size,
                    layout=ImageLayout(features=SNAPSHOT_FEATURES, data_pool=one.image.data_pool),
                ),
            )
            for number, one in enumerate(found)
        ]

    def _make(
        self, client: Client, leaf: str, group: HeldGroup, parts: Sequence[Part], request: GroupSnapshotRequest
    ) -> Label:
        """Make the members, and the group as the last thing."""
        label = Label(
            image=group.name,
            stamp=request.stamp,
            created=time.time(),
            members=tuple(
                Member(source=source, source_id=part.source.image.id, size=part.spec.size)
                for source, part in zip(request.sources, parts, strict=True)
            ),
        )

        def label_member(number: int, part: Part) -> None:
            made = replace(member_label(label, leaf, number), image=part.spec.name, depth=part.source.ancestors + 1)
            self._copier.complete(client, part.source, part.spec, made)

        self._cut.cut(client, group, parts, label_member)
        if self._remover.temporaries.immediate:
            for part in parts:
                client.remove_snapshot(part.source.image.name, part.snapshot)
        self._cut.ensure_held(client, group)
        self._create_group(client, leaf, label)
        self._remove_snapshots_later(label, leaf)
        return label

    def _free_name(self, client: Client, leaf: str) -> None:
        """Remove an incomplete group. Raises AlreadyExists for one that is complete, after which its creator may have
        been killed.
        """
        try:
            self._remover.free_name(client, self._groups, leaf, again=False)
        except ImageExists as error:
            self._remove_snapshots_later(error.label, leaf)
            raise

    def _remove_snapshots_later(self, label: Label, leaf: str) -> None:
        """Have the snapshots removed from which the members were cloned."""
        for number, member in enumerate(label.members):
            with suppress(NotFound):
                image = self._volumes.name(self._volumes.leaf(member.source))
                snapshot = labels.temporary_snapshot(labels.SNAPSHOT, member_leaf(leaf, number))
                self._remover.temporaries.remove_later(image, snapshot, copied=True)

    def _create_group(self, client: Client, leaf: str, label: Label) -> None:
        create = partial(client.create, label.image, labels.SMALLEST, GROUP_LAYOUT, {labels.KEY: labels.encode(label)})
        try:
            create()
        except NameTaken:
            self._free_name(client, leaf)
            create()
        self._groups.cache.note_created(label.image)

    def _remove_left(self, client: Client, leaf: str, names: Sequence[str]) -> None:
        """Remove what an interrupted creation or deletion left of the members. Raises no final error."""
        try:
            self.members.remove(client, leaf, names)
        except (Busy, Unavailable, Timeout):
            raise
        except StorageError as error:
            raise Unavailable(f"what is left of an earlier group snapshot cannot be removed yet: {error}") from error

    @contextmanager
    def _removing_on_failure(
        self, client: Client, leaf: str, sources: Sequence[str], group: HeldGroup
    ) -> Iterator[None]:
        """Remove what was made when the block fails. Raises Unavailable instead of a final error while that fails."""
        try:
            yield
        except AlreadyExists:
            raise
        except StorageError as error:
            try:
                self._cut.ensure_held(client, group)
                self._remove(client, leaf, sources)
            except StorageError as left:
                if isinstance(error, (Busy, Unavailable, Timeout)):
                    raise error from None
                raise Unavailable(f"{error}; what was made of the group cannot be removed yet: {left}") from error
            raise

    def _remove(self, client: Client, leaf: str, sources: Sequence[str]) -> None:
        """Remove the members, and then what they are clones of, as far as it exists."""
        self.members.remove(client, leaf, client.image_names())
        for number, source in enumerate(sources):
            snapshot = labels.temporary_snapshot(labels.SNAPSHOT, member_leaf(leaf, number))
            self._remover.temporaries.remove(client, self._volumes.name(source), snapshot)


def member_label(group: Label, leaf: str, number: int) -> Label:
    """Return what a member's label says of it, as its group's label tells it."""
    member = group.members[number]
    return Label(
        image="",
        stamp=dataclasses.replace(group.stamp, name=f"{group.stamp.name}-{number}"),
        source=member.source,
        source_id=member.source_id,
        created=group.created,
        group=leaf,
    )
