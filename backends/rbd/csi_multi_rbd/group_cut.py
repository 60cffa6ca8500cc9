"""Snapshots of several images as of one moment.

`rbd group snap create` takes the exclusive locks of all images, and while it has them no client writes: its snapshots
are of one moment, and writers wait for a moment. But no command of Ceph 16 clones such a snapshot. So each image also
gets a snapshot of its own just before, of which the member is a clone; then what was written between the two, little,
is copied into the member (group_program.py), and the group of rbd is removed with its snapshots. A single image needs
its own snapshot only.

The group of rbd has the group's name, so of several processes only one has it at a time. The snapshot's name is new
each time: a process whose snapshot has disappeared has lost the group to another one, and stops.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from csi_multi.contract import Busy, FailedPrecondition, StorageError

from . import labels
from .client import Client
from .errors import ImageNotFound, NameTaken, ObjectNotFound
from .group_commands import Copied, GroupCommands
from .images import FoundImage, ImageSpec, OwnedImages
from .removal import ImageRemover
from .snapshots import ImageCopier


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """An image, and the member that is made of it."""

    leaf: str  # of the member
    source: FoundImage
    spec: ImageSpec

    @property
    def snapshot(self) -> str:
        """The name of the image's own snapshot."""
        return labels.temporary_snapshot(labels.SNAPSHOT, self.leaf)


@dataclass(slots=True)
class HeldGroup:
    """A group of rbd that this process has made."""

    name: str
    snapshot: str = field(default_factory=lambda: f"cut-{secrets.token_hex(8)}")
    is_cut: bool = False  # whether the snapshot was created


class GroupCut:
    """Makes groups of rbd. `groups` are the group snapshots, whose images have the names of those."""

    def __init__(self, groups: OwnedImages, copier: ImageCopier, remover: ImageRemover) -> None:
        self._groups = groups
        self._remover = remover
        self._copier = copier
        self._lock = threading.Lock()
        self._held: set[str] = set()  # names of groups that this process has

    @contextmanager
    def held(self, client: Client, leaf: str) -> Iterator[HeldGroup]:
        """Yield a new group of rbd, which no other process has, and remove it afterwards.

        One that exists is of a process that has died, or loses it.
        """
        group, commands = HeldGroup(self._groups.name(leaf)), GroupCommands(client)
        with self._lock:
            self._held.add(group.name)
        try:
            try:
                commands.create(group.name)
            except NameTaken:
                commands.remove(group.name)
                self._remover.purge_again()  # an image in a group is not deleted
                commands.create(group.name)
            try:
                yield group
            except Exception:
                with suppress(StorageError):  # the next attempt, or the next start, removes it
                    self.ensure_held(client, group)
                    commands.remove(group.name)
                raise
            commands.remove(group.name)
        finally:
            with self._lock:
                self._held.discard(group.name)

    def cut(self, client: Client, group: HeldGroup, parts: Sequence[Part], label: Callable[[int, Part], None]) -> None:
        """Create the members' images.

        `label` writes the label of a member, before there is data in it. Raises ImageNotFound, Busy,
        FailedPrecondition; ImageLocked while a client keeps the lock of an image.
        """
        commands = GroupCommands(client)
        several = len(parts) > 1
        if several:
            for part in parts:
                self._add(client, group.name, part.source.image.name)
        for part in parts:
            self._copier.create_snapshot(client, part.source.image.name, part.snapshot, lasting=False)
        commands.create_snapshot(group.name, group.snapshot)
        group.is_cut = True
        for number, part in enumerate(parts):
            self._clone(client, part)
            label(number, part)
        if several:
            copied = [Copied(one.source.image.name, one.snapshot, one.spec.name) for one in parts]
            commands.copy_differences(group.name, group.snapshot, copied)

    def ensure_held(self, client: Client, group: HeldGroup) -> None:
        """Raise Busy when another process has taken the group over, after it was cut: what has its names may be that
        one's.
        """
        if group.is_cut and group.snapshot not in GroupCommands(client).snapshots(group.name):
            raise Busy(f"another process makes group {client.spec(group.name)} at the same time; try again")

    def _clone(self, client: Client, part: Part) -> None:
        try:
            client.clone(part.source.image.name, part.snapshot, part.spec.name, part.spec.layout)
        except NameTaken:
            raise Busy(f"another process has just created image {client.spec(part.spec.name)}; try again") from None

    def _add(self, client: Client, group: str, image: str) -> None:
        """Add an image, which is in no other group, or in one that a process which died has left."""
        for attempt in range(2):
            try:
                GroupCommands(client).add(group, image)
                return
            except NameTaken:
                if not self._remove_left(client, image) and attempt:
                    raise FailedPrecondition(
                        f"image {client.spec(image)} is in a group that this driver did not create, and an image can "
                        "be in one group only; remove it from that group with 'rbd group image rm', or create a "
                        "snapshot of the volume alone"
                    ) from None
            except ObjectNotFound:
                if image in client.image_names():
                    raise
                raise ImageNotFound(f"image {client.spec(image)} does not exist") from None
        raise Busy(f"image {client.spec(image)} is in another group; try again")

    def _remove_left(self, client: Client, image: str) -> bool:
        """Remove the group that has an image, if another process has left it; return whether it was one of ours.

        Raises Busy when this process has it.
        """
        commands = GroupCommands(client)
        for name in commands.names():
            if self._groups.leaf_of(name) and image in commands.images(name):
                with self._lock:
                    held = name in self._held
                if held:
                    raise Busy(f"another group snapshot of image {client.spec(image)} is being created; try again")
                commands.remove(name)
                self._remover.purge_again()
                return True
        return False
