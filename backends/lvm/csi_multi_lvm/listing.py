"""Listing: the logical volumes of the group that belong to this instance, one of them or all, page by page."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TypeVar

from csi_multi.contract import FailedPrecondition, Page, PageRequest, Setting, Stamp, missing, paged

from . import labels
from .client import Client
from .labels import Handles
from .report import LogicalVolume, Report

log = logging.getLogger(__name__)

T = TypeVar("T")


class OwnedVolumes:
    """The instance's logical volumes of one kind, volumes or snapshots, by the prefix of their names."""

    def __init__(self, kind: str, prefix: str, handles: Handles, setting: Setting, client: Client) -> None:
        self.kind = kind
        self.prefix = prefix
        self.owner = labels.owner_tag(setting.driver, setting.cluster)
        self._handles = handles
        self._client = client

    # Names

    def leaf_for(self, name: str) -> str:
        """Return the leaf for a requested name. Raises InvalidArgument."""
        return self._handles.leaf_for(name)

    def member_leaf(self, group: str, number: int) -> str:
        """Return the leaf of a member of a group snapshot. Raises InvalidArgument."""
        return self._handles.member_leaf(group, number)

    def leaf(self, handle: str) -> str:
        """Return the leaf in a handle. Raises NotFound, WrongNode, FailedPrecondition."""
        return self._handles.leaf(self.kind, handle)

    def name(self, leaf: str) -> str:
        """Return the name of the logical volume."""
        return self.prefix + leaf

    def handle(self, volume: LogicalVolume) -> str:
        return self.handle_of(volume.name.removeprefix(self.prefix))

    def handle_of(self, leaf: str) -> str:
        return self._handles.handle(leaf)

    def stamp(self, volume: LogicalVolume) -> Stamp:
        return labels.read_stamp(volume.name, volume.tags)

    # One of them

    def get(self, leaf: str) -> LogicalVolume:
        """Return a complete volume of this instance. Raises NotFound, FailedPrecondition for another owner's."""
        return self.require(leaf, self._client.find(self.name(leaf)).get(self.name(leaf)))

    def get_cached(self, report: Report, leaf: str) -> LogicalVolume:
        """Return it from a report that may be old; it may have been deleted since. Raises as get."""
        found = report.volumes.get(self.name(leaf))
        return found if found and self.owns(found) and not incomplete(found) else self.get(leaf)

    def require(self, leaf: str, found: LogicalVolume | None) -> LogicalVolume:
        """Return what was found. Raises NotFound when it is absent or incomplete, FailedPrecondition."""
        if found is None or (self.owns(found) and incomplete(found)):
            raise missing(self.kind, self._handles.handle(leaf))
        if not self.owns(found):
            raise self.not_owned(found)
        return found

    def new(self, leaf: str, size: int, tags: Iterable[str]) -> LogicalVolume:
        """Return a volume that was created just now, without reading it back."""
        return LogicalVolume(name=self.name(leaf), uuid="", size=size, tags=frozenset(tags))

    def owns(self, found: LogicalVolume) -> bool:
        return found.name.startswith(self.prefix) and self.owner in found.tags

    def not_owned(self, found: LogicalVolume) -> FailedPrecondition:
        owner = labels.unescape(labels.value(found.tags, labels.OWNER))
        belongs = f"belongs to {owner}" if owner else "has no owner"
        return FailedPrecondition(
            f"logical volume {found.name} {belongs} (tag {labels.OWNER}...) and is not touched; only volumes with this "
            f"driver's tag {self.owner} are managed"
        )

    # All of them

    def all(self, report: Report) -> list[LogicalVolume]:
        """Return all complete volumes of this instance, sorted by name."""
        found = (report.volumes[name] for name in sorted(report.volumes))
        return [one for one in found if self.owns(one) and not incomplete(one)]

    def page(self, report: Report, page: PageRequest, convert: Callable[[LogicalVolume], T | None]) -> Page[T]:
        """Return a page of them, each as `convert` returns it, without those for which that is None.

        One with a damaged stamp is left out, so that the others are listed.
        """
        found = {one.name.removeprefix(self.prefix): one for one in self.all(report)}

        def load(leaf: str) -> T | None:
            try:
                return convert(found[leaf])
            except FailedPrecondition as error:
                log.warning("logical volume %s is left out of the listing: %s", found[leaf].name, error)
                return None

        return paged(sorted(found), page, load)


def incomplete(found: LogicalVolume) -> bool:
    """Return whether it is not a volume yet: a copy that is not complete, or a snapshot whose lvcreate was killed."""
    copying = labels.with_prefix(found.tags, labels.INTENDED_SIZE)
    return bool(copying) or (labels.THICK_SNAPSHOT in found.tags and not found.thick_snapshot)
