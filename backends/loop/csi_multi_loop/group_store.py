"""The entries of groups, <directory>/groups/<leaf>/group.json, and which snapshots are members of one.

A member is an entry among the snapshots, under a name that no requested name becomes. It exists while the entry of its
group exists: so the rename that completes the group's entry makes the group and all members visible at once. A removal
begins with a mark on the group's entry (its mode, as for a removal in place), which hides all of them at once and needs
no space; then the members are removed, and the entry last. A member without its group is therefore what an interrupted
operation left.
"""

from __future__ import annotations

import logging
import os
import re
from contextlib import ExitStack, suppress
from pathlib import Path

from csi_multi.contract import Busy, NotFound, Setting, StorageError, ids

from .client import Client
from .directory import Directory
from .labels import GroupLabel, SnapshotLabel
from .store import GONE, NEW, Store, leaf_of

log = logging.getLogger(__name__)

_MEMBER = re.compile(r"x-[a-z2-7]{26}-[0-9]+")


def member_prefix(group: str) -> str:
    """Return what the names of a group's members begin with. `ids.leaf` returns no name with a hyphen after a hash."""
    return ids.leaf(f"x-{group}") + "-"


def member_leaf(group: str, number: int) -> str:
    return f"{member_prefix(group)}{number}"


class GroupStore(Store[GroupLabel]):
    """All groups of one instance."""

    def __init__(self, directory: Directory, setting: Setting, client: Client) -> None:
        super().__init__(directory, "group snapshot", GroupLabel, setting, client, word="group")

    def create_directory(self) -> None:
        """Create the directory of the groups with the first one, durably: a group must not be lost with it."""
        if not self.path.is_dir():
            self._client.create_directory(self.path)
            self._client.sync(self.path.parent)

    def files(self, entry: Path) -> tuple[Path, ...]:
        return (entry / self.label_name,)

    def write(self, new: Path, label: GroupLabel) -> None:
        self._client.write_label(new / self.label_name, label)

    def read(self, leaf: str) -> GroupLabel:
        label = super().read(leaf)
        if self.half_removed(leaf):
            raise self._missing(leaf)
        return label

    def mark_removed(self, leaf: str) -> None:
        """Begin to remove a group: from now on it is not shown, nor are its members."""
        self._client.mark_removed(self.path / leaf)
        self._client.sync(self.path / leaf)

    def half_removed(self, leaf: str) -> bool:
        """Whether the removal of a group has begun. Its label stays to the end."""
        return self.is_marked(leaf)

    def members(self, leaf: str) -> list[str]:
        """Return the names of a group's members; none where there is no group. Raises UnreadableLabel."""
        try:
            label = self.read(leaf)
        except NotFound:
            return []
        return [member_leaf(leaf, number) for number in range(len(label.members))]


class SnapshotStore(Store[SnapshotLabel]):
    """All snapshots of one instance, without those whose group is not complete, or is being removed."""

    def __init__(self, directory: Directory, groups: GroupStore, setting: Setting, client: Client) -> None:
        super().__init__(directory, "snapshot", SnapshotLabel, setting, client)
        self._groups = groups

    def read(self, leaf: str) -> SnapshotLabel:
        label = super().read(leaf)
        if label.group and leaf not in self._groups.members(label.group):
            raise self._missing(leaf)
        return label

    def group_of_member(self, leaf: str) -> str:
        """Return the name of the group that a member belongs, or belonged, to. Raises as read() does."""
        return super().read(leaf).group


class GroupMembers:
    """The removal of members: with their group, and of what an interrupted operation left."""

    def __init__(self, groups: GroupStore, snapshots: SnapshotStore, client: Client) -> None:
        self._groups = groups
        self._snapshots = snapshots
        self._client = client
        self._complete: set[str] = set()  # names of members that were found with their group

    def remove_unlisted(self, group: str) -> None:
        """Remove all members that the group does not have. The caller keeps creations of the group away."""
        keep, prefix = self._groups.members(group), member_prefix(group)
        failed: list[OSError | StorageError] = []
        for name in os.listdir(self._snapshots.path):
            leaf = leaf_of(name)
            if not leaf.startswith(prefix) or leaf in keep:
                continue
            try:
                self._remove(name, leaf)
            except (NotFound, FileNotFoundError):
                continue
            except (OSError, StorageError) as error:  # the others are removed
                failed.append(error)
        if failed:
            raise failed[0]

    def _remove(self, name: str, leaf: str) -> None:
        if name.startswith(GONE):
            return self._snapshots.finish_removal(leaf)
        if name.startswith(NEW):
            with suppress(BlockingIOError), self._client.lock_entry(self._snapshots.path / name):
                return self._client.remove(self._snapshots.path / name)
        with self._snapshots.locked(leaf):
            return self._snapshots.remove(leaf)

    def remove_group(self, group: str) -> None:
        """Remove a group, which the caller has locked, with all members. Raises Busy while one is being copied."""
        with ExitStack() as stack:
            for member in self._groups.members(group):
                with suppress(NotFound):  # removed by hand
                    stack.enter_context(self._snapshots.locked(member))
                    self._snapshots.refuse_foreign_files(member)
            self._groups.refuse_foreign_files(group)
            self._groups.mark_removed(group)
        self._finish_removal(group)

    def finish_removal(self, group: str) -> None:
        """Remove what an interrupted removal of a group left. Raises Busy while another process does that."""
        if self._groups.half_removed(group):
            with suppress(NotFound), self._groups.locked(group):
                if self._groups.half_removed(group):
                    self._finish_removal(group)

    def _finish_removal(self, group: str) -> None:
        self.remove_unlisted(group)
        self._client.remove(self._groups.path / group)
        self._client.sync(self._groups.path)

    def remove_leftovers(self) -> None:
        """Finish all removals, and remove members without a group, as far as no operation is at work on them."""
        with suppress(FileNotFoundError):  # no group was ever made
            for name in sorted(os.listdir(self._groups.path)):
                self._finish(name)
        members = {leaf for leaf in self._snapshots.leaves() if _MEMBER.fullmatch(leaf)}
        self._complete &= members
        for leaf in sorted(members - self._complete):
            self._look_at_member(leaf)

    def _finish(self, name: str) -> None:
        group, path = leaf_of(name), self._groups.path / name
        try:
            if name == group:
                self.finish_removal(group)
            elif group:
                with self._client.lock_entry(path):
                    self.remove_unlisted(group)
                    self._client.remove(path)
        except (Busy, FileNotFoundError, NotADirectoryError, BlockingIOError):
            return
        except (OSError, StorageError) as error:
            log.warning("the remains of an interrupted group snapshot cannot be removed yet: %s", error)

    def _look_at_member(self, leaf: str) -> None:
        try:
            group = self._snapshots.group_of_member(leaf)
            if leaf in self._groups.members(group):
                self._complete.add(leaf)
            elif group:
                with ExitStack() as stack:
                    new = self._groups.claim(group, stack)
                    try:
                        self.remove_unlisted(group)
                    finally:  # a member that another process works on must not leave what keeps its group's name
                        self._client.remove(new)
        except (Busy, NotFound):
            return
        except (OSError, StorageError) as error:
            log.warning("%s, which may be no member of a group, cannot be removed yet: %s", leaf, error)
