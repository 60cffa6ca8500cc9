"""The members of groups: snapshots under names that no requested name becomes, which exist while their group does.

A group is an image with a label that lists its members; it is made last and deleted first. So a group and all of its
members are shown, or none is. A member without its group is what an interrupted operation left.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Collection, Iterable
from contextlib import suppress

from csi_multi.contract import InvalidArgument, NotFound, StorageError, ids, missing

from . import labels
from .client import Client
from .errors import BrokenImage, ImageNotFound, ParentLost
from .group_commands import GroupCommands
from .images import OwnedImages
from .labels import Label
from .removal import ImageRemover

log = logging.getLogger(__name__)

ABANDONED_SECONDS = 3600.0  # no request takes so long: what has no group then, gets none any more
_MEMBER = re.compile(r"x-[a-z2-7]{26}-[0-9]+")


def member_prefix(group: str) -> str:
    """Return what the names of a group's members begin with. `ids.leaf` returns no name with a hyphen after a hash."""
    return ids.leaf(f"x-{group}") + "-"


def member_leaf(group: str, number: int) -> str:
    return f"{member_prefix(group)}{number}"


def is_member(leaf: str) -> bool:
    """Return whether a snapshot of this name is, or was, a member of a group."""
    return bool(_MEMBER.fullmatch(leaf))


class MemberSnapshots:
    """Which snapshots are members, and their removal."""

    def __init__(self, groups: OwnedImages, snapshots: OwnedImages, remover: ImageRemover) -> None:
        self._groups = groups
        self._snapshots = snapshots
        self._remover = remover
        self._abandoned: set[str] = set()  # leaves of members that had no group when the process started

    def ensure_shown(self, client: Client, leaf: str, label: Label) -> None:
        """Raise NotFound for a member whose group is not complete, or not there any more."""
        if label.group and leaf not in self.of(client, label.group):
            raise missing(labels.SNAPSHOT, self._snapshots.handle(leaf))

    def refuse(self, client: Client, leaf: str) -> None:
        """Raise InvalidArgument for the snapshot of a member, which is deleted with its group only."""
        if not is_member(leaf):
            return
        _, label = self._snapshots.get(client, leaf)
        self.ensure_shown(client, leaf, label)
        if label.group:
            raise InvalidArgument(
                f"snapshot {self._snapshots.handle(leaf)!r} is a member of group snapshot "
                f"{self._groups.handle(label.group)!r} and is deleted with it only; delete the group"
            )

    def of(self, client: Client, group: str) -> list[str]:
        """Return the names of a group's members; none where there is no complete group."""
        with suppress(BrokenImage, ParentLost):
            if (found := self._groups.find(client, group)) and found.label:
                return [member_leaf(group, number) for number in range(len(found.label.members))]
        return []

    def remove(self, client: Client, group: str, names: Iterable[str]) -> int:
        """Remove all members of a group that are among these names of images; return how many.

        All are tried. Raises the first error: InUse, Busy, Unavailable.
        """
        prefix = self._snapshots.name(member_prefix(group))
        failed: list[StorageError] = []
        found = [one for one in names if one.startswith(prefix)]
        for name in found:
            try:
                with suppress(NotFound):
                    self._remover.delete(client, self._snapshots, self._snapshots.leaf_of(name))
            except StorageError as error:
                failed.append(error)
        if failed:
            raise failed[0]
        return len(found)

    def resume(self, client: Client, names: Collection[str]) -> None:
        """Remove what an earlier process left: groups of rbd at once, members without a group when they are old."""
        commands = GroupCommands(client)
        for name in commands.names():
            if self._groups.leaf_of(name):
                commands.remove(name)
        complete = {member_prefix(leaf) for name in names if (leaf := self._groups.leaf_of(name))}
        members = {leaf for name in names if is_member(leaf := self._snapshots.leaf_of(name))}
        self._abandoned = {leaf for leaf in members if leaf[: leaf.rindex("-") + 1] not in complete}
        self.remove_abandoned(client)

    def remove_abandoned(self, client: Client) -> None:
        """Remove members whose group was not made within an hour: no request for it is repeated any more."""
        for leaf in sorted(self._abandoned):
            try:
                if self._is_settled(client, leaf):
                    self._abandoned.discard(leaf)
            except StorageError as error:
                log.warning("snapshot %s, which may have no group, cannot be removed yet: %s", leaf, error)

    def _is_settled(self, client: Client, leaf: str) -> bool:
        """Remove a member if it has no group and is old; return whether it need not be looked at again."""
        with suppress(ImageNotFound, ParentLost, BrokenImage, NotFound):
            found, label = self._snapshots.get(client, leaf)
            if not label.group or leaf in self.of(client, label.group):
                return True
            if time.time() - label.created < ABANDONED_SECONDS:
                return False
            log.warning("image %s is of a group snapshot that was never completed; it is removed", found.image.name)
            self._remover.delete(client, self._snapshots, leaf)
        return True
