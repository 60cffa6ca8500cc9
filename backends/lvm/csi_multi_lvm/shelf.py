"""Our volumes and snapshots among all the logical volumes of the group."""

from __future__ import annotations

from collections.abc import Iterable

from csi_multi.contract import FailedPrecondition, Setting, Stamp, missing

from . import tags
from .lvm import Lvm
from .names import Names
from .report import LogicalVolume, Report


class Shelf:
    """The logical volumes of one kind. Of the kind it is what its name starts with."""

    def __init__(self, kind: str, prefix: str, names: Names, setting: Setting, lvm: Lvm) -> None:
        self.kind = kind
        self.prefix = prefix
        self._names = names
        self._lvm = lvm
        self.owner = tags.owner(setting.driver, setting.cluster)

    def name(self, leaf: str) -> str:
        """Return the name of the logical volume."""
        return self.prefix + leaf

    def handle(self, volume: LogicalVolume) -> str:
        return self._names.join(volume.name.removeprefix(self.prefix))

    def leaf(self, handle: str) -> str:
        """Raises NotFound, WrongNode, FailedPrecondition."""
        return self._names.split(self.kind, handle)

    def get(self, leaf: str) -> LogicalVolume:
        """Return a finished one of ours. Raises NotFound, FailedPrecondition for another's."""
        return self.ours(leaf, self._lvm.look(self.name(leaf)).get(self.name(leaf)))

    def known(self, report: Report, leaf: str) -> LogicalVolume:
        """Return one that was seen lately; whoever uses it finds out if it has gone. Raises as get."""
        found = report.volumes.get(self.name(leaf))
        return found if found and self.is_ours(found) and not unfinished(found) else self.get(leaf)

    def ours(self, leaf: str, found: LogicalVolume | None) -> LogicalVolume:
        """Return what was found. Raises NotFound when it is not there or unfinished, FailedPrecondition."""
        if found is None or (self.is_ours(found) and unfinished(found)):
            raise missing(self.kind, self._names.join(leaf))
        if not self.is_ours(found):
            raise self.foreign(found)
        return found

    def made(self, leaf: str, size: int, tagged: Iterable[str]) -> LogicalVolume:
        """Return one that was made just now, without another look."""
        return LogicalVolume(name=self.name(leaf), uuid="", size=size, tags=frozenset(tagged))

    def is_ours(self, found: LogicalVolume) -> bool:
        return found.name.startswith(self.prefix) and self.owner in found.tags

    def foreign(self, found: LogicalVolume) -> FailedPrecondition:
        whose = tags.plain(tags.value(found.tags, tags.OWNER)) or "nobody this driver knows"
        return FailedPrecondition(
            f"logical volume {found.name} belongs to {whose} (its tag {tags.OWNER}...), so it is not touched"
        )

    def all(self, report: Report) -> list[LogicalVolume]:
        """Return all finished ones of ours, in the order of their names."""
        found = (report.volumes[name] for name in sorted(report.volumes))
        return [one for one in found if self.is_ours(one) and not unfinished(one)]

    def stamp(self, found: LogicalVolume) -> Stamp:
        return tags.stamp(found.name, found.tags)


def unfinished(found: LogicalVolume) -> bool:
    """Whether it is nobody's yet: a copy that goes on, or what an lvcreate that was killed left of a snapshot."""
    return bool(tags.having(found.tags, tags.TODO)) or (tags.THICK in found.tags and not found.thick_snapshot)
