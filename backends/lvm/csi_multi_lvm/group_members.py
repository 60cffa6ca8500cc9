"""Which snapshots are shown: all, but those whose group snapshot is not complete, or is being removed.

A member is a snapshot under a name that no requested name becomes. LVM changes one logical volume at a time, so one
member, the first, speaks for the whole group. It is created before the others, with the tag csi.partial. The command
that takes this tag off makes the group and all members visible at once. A removal begins with the tag csi.removing,
which hides them all at once; then the others are removed, and the first one last.
"""

from __future__ import annotations

from collections.abc import Mapping

from . import labels
from .listing import OwnedVolumes, incomplete
from .report import LogicalVolume, Report

HIDDEN = (labels.PARTIAL, labels.REMOVING)


class OwnedSnapshots(OwnedVolumes):
    """The instance's snapshots, members of groups included."""

    def get(self, leaf: str) -> LogicalVolume:
        """Return a snapshot that is shown. Raises NotFound, FailedPrecondition for another owner's."""
        leaves = [one for one in (leaf, labels.first_member(leaf)) if one]
        found = self._client.find(*map(self.name, leaves))
        one = found.get(self.name(leaf))
        return self.require(leaf, one if one is None or self._is_shown(one, found) else None)

    def get_cached(self, report: Report, leaf: str) -> LogicalVolume:
        found = report.volumes.get(self.name(leaf))
        if found and self.owns(found) and not incomplete(found) and self._is_shown(found, report.volumes):
            return found
        return self.get(leaf)

    def all(self, report: Report) -> list[LogicalVolume]:
        return [one for one in super().all(report) if self._is_shown(one, report.volumes)]

    def _is_shown(self, found: LogicalVolume, volumes: Mapping[str, LogicalVolume]) -> bool:
        group = labels.value(found.tags, labels.GROUP_LEAF)
        return not group or not self.owns(found) or self.is_complete(group, volumes)

    # Groups

    def is_complete(self, group: str, volumes: Mapping[str, LogicalVolume]) -> bool:
        """Return whether a group exists, with all members."""
        first = volumes.get(self.name(self.member_leaf(group, 0)))
        return first is not None and self.owns(first) and not any(tag in first.tags for tag in HIDDEN)

    def members(self, group: str, volumes: Mapping[str, LogicalVolume]) -> list[LogicalVolume]:
        """Return what there is of a group, in the order of the numbers."""
        tag = f"{labels.GROUP_LEAF}{group}"
        found = [one for one in volumes.values() if self.owns(one) and tag in one.tags]
        return sorted(found, key=lambda one: number_of(one.name))

    def groups(self, report: Report) -> set[str]:
        """Return the leaves of all groups of which there is anything."""
        owned = (one for one in report.volumes.values() if self.owns(one))
        return {group for one in owned if (group := labels.value(one.tags, labels.GROUP_LEAF))}

    def condition(self, group: str) -> str:
        """Return lvm's condition for the members of a group."""
        return f'lv_tags={{"{self.owner}"}} && lv_tags={{"{labels.GROUP_LEAF}{group}"}}'


def number_of(member: str) -> int:
    """Return which member of its group it is, by its name."""
    return int(member.rpartition("-")[2])
