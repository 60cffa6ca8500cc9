"""Import logical volumes that were created by hand, and release them again.

An import tags the logical volume and renames it last; a release renames it back first and then removes the tags. So
an import that was interrupted leaves a volume with its own name, which the driver does not own: it is begun again. A
release that was interrupted leaves the same, and is completed when it is repeated.
"""

from __future__ import annotations

import re
from dataclasses import replace

from csi_multi.contract import AlreadyExists, FailedPrecondition, InUse, InvalidArgument, Stamp, missing, not_imported

from . import labels
from .errors import NAME_TAKEN, CommandRefused
from .labels import GROUP, PREFIXES
from .operation import Operation
from .report import LogicalVolume, Report

NAME = re.compile(r"[A-Za-z0-9_.+][A-Za-z0-9_.+-]*")


class Importer(Operation):
    def import_volume(self, given: str, stamp: Stamp) -> LogicalVolume:
        """Tag and rename a volume, or find an earlier import. Raises what Import.import_volume says."""
        old, new = self._name(given), self._owned_volumes.name(self._owned_volumes.leaf_for(stamp.name))
        report = self._client.report()
        wanted = [*labels.stamp_tags(stamp), labels.IMPORTED, f"{labels.ORIGINAL_NAME}{labels.escape(old)}"]
        if existing := report.volumes.get(new):
            if {*wanted} <= existing.tags:
                return existing
            raise AlreadyExists(f"logical volume {new} already exists; choose another name")
        found = report.volumes.get(old)
        if found is None:
            raise missing("logical volume", old)
        self._refuse_unfit(report, found)
        present = labels.with_prefix(found.tags, labels.TAG_PREFIX)
        stale = [tag for tag in present if tag not in wanted]  # of an interrupted import
        if absent := [tag for tag in wanted if tag not in found.tags]:
            self._client.change_tags(old, add=absent, remove=stale)
        self._rename(old, new)
        return replace(found, name=new, tags=(found.tags - {*stale}) | {*wanted})

    def release(self, handle: str) -> str:
        """Restore a volume's name, then remove the tags. Raises what Import.release_volume says."""
        leaf = self._owned_volumes.leaf(handle)
        report = self._client.report()
        found = self._renamed_back(report, leaf) or self._owned_volumes.require(
            leaf, report.volumes.get(self._owned_volumes.name(leaf))
        )
        if labels.IMPORTED not in found.tags:
            raise not_imported(handle)
        _refuse_open(found)
        old = labels.unescape(labels.value(found.tags, labels.ORIGINAL_NAME))
        if found.name != old:
            self._rename(found.name, old)
        self._client.change_tags(old, remove=labels.with_prefix(found.tags, labels.TAG_PREFIX))
        return f"logical volume {self._config.volume_group}/{old}"

    def _renamed_back(self, report: Report, leaf: str) -> LogicalVolume | None:
        """Return the volume that an interrupted release left, None if there is none."""
        if self._owned_volumes.name(leaf) in report.volumes:
            return None
        tags = {self._owned_volumes.owner, labels.IMPORTED}
        for found in report.volumes.values():
            interrupted = labels.value(found.tags, labels.ORIGINAL_NAME) == labels.escape(found.name)
            if interrupted and tags <= found.tags:
                stamp = self._owned_volumes.stamp(found)
                if self._owned_volumes.leaf_for(stamp.name) == leaf:
                    return found
        return None

    def _rename(self, old: str, new: str) -> None:
        try:
            self._client.rename(old, new)
        except CommandRefused as error:
            if error.contains(NAME_TAKEN):
                raise AlreadyExists(f"{error}; rename the existing one with lvrename") from None
            raise error.contract_error() from None
        finally:
            self._reports.clear()

    def _name(self, given: str) -> str:
        """Return the name without the group: data for vg0/data and /dev/vg0/data. Raises InvalidArgument."""
        group, slash, name = given.removeprefix("/dev/").rpartition("/")
        if not NAME.fullmatch(name) or (slash and not GROUP.fullmatch(group)):
            raise InvalidArgument(
                f"{given!r} is not the name of a logical volume; give one such as {self._config.volume_group}/data"
            )
        if slash and group != self._config.volume_group:
            raise InvalidArgument(
                f"{given!r} is in volume group {group!r}, and this instance uses {self._config.volume_group!r}; choose "
                "the instance of that group, or configure one"
            )
        return name

    def _refuse_unfit(self, report: Report, found: LogicalVolume) -> None:
        """Raise AlreadyExists, FailedPrecondition or InUse for a volume that cannot be imported."""
        interrupted = labels.value(found.tags, labels.ORIGINAL_NAME) == labels.escape(found.name)
        if (owner := labels.value(found.tags, labels.OWNER)) and not interrupted:
            raise AlreadyExists(
                f"logical volume {found.name} already belongs to {labels.unescape(owner)}; release it there first"
            )
        if found.name.startswith(PREFIXES):
            raise FailedPrecondition(
                f"logical volume {found.name} has a name of the driver's own form; give it another one with lvrename"
            )
        if "pool" in found.layout:
            raise FailedPrecondition(f"logical volume {found.name} is a pool; import the volumes in it instead")
        if found.thick_snapshot:
            raise FailedPrecondition(
                f"logical volume {found.name} is a thick snapshot and is removed with {found.origin}; copy it to a "
                "logical volume of its own"
            )
        if found.thick_origin:
            raise FailedPrecondition(
                f"logical volume {found.name} has thick snapshots; remove them first, with lvremove or lvconvert"
            )
        if found.thin and found.pool != self._config.thin_pool:
            raise FailedPrecondition(
                f"logical volume {found.name} is in thin pool {found.pool!r}, and this instance uses "
                f"{self._config.thin_pool or 'none'!r}; configure an instance with that pool"
            )
        if not found.thin and found.layout != {"linear"}:
            type_ = ", ".join(sorted(found.layout))
            raise FailedPrecondition(
                f"logical volume {found.name} is of type {type_}; only linear and thin volumes can be imported: copy "
                "it into one"
            )
        _refuse_open(found)


def _refuse_open(found: LogicalVolume) -> None:
    if found.open:
        raise InUse(f"logical volume {found.name} is open on this node; unmount it, or stop what uses it")
