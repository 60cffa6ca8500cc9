"""Take over logical volumes that were made by hand: tagged, and last renamed; released, renamed back."""

from __future__ import annotations

import re
from dataclasses import replace

from csi_multi.contract import AlreadyExists, FailedPrecondition, InUse, InvalidArgument, Stamp, missing, not_imported

from . import tags
from .lvm import Refused
from .names import ANNEX, COPIED, GROUP, SNAPSHOT, VOLUME
from .report import LogicalVolume, Report
from .work import Work

NAME = re.compile(r"[A-Za-z0-9_.+][A-Za-z0-9_.+-]*")
OURS = "csi."  # what all tags of the driver's start with


class Importer(Work):
    """Killed between tags and name, a volume has its own name and is not ours: it is begun anew."""

    def take(self, given: str, leaf: str, stamp: Stamp) -> LogicalVolume:
        """Tag and rename it, or find it done. Raises what Import.import_volume says."""
        old, new = self._name(given), self._volumes.name(leaf)
        report = self._lvm.report()
        wanted = [*tags.of_stamp(stamp), tags.IMPORTED, f"{tags.WAS}{tags.escaped(old)}"]
        if there := report.volumes.get(new):
            if {*wanted} <= there.tags:
                return there
            raise AlreadyExists(f"logical volume {new} is there already; choose another name")
        found = report.volumes.get(old)
        if found is None:
            raise missing("logical volume", old)
        self._refuse_unfit(report, found)
        stale = [tag for tag in tags.having(found.tags, OURS) if tag not in wanted]  # of an import that was killed
        if lacking := [tag for tag in wanted if tag not in found.tags]:
            self._lvm.retag(old, add=lacking, remove=stale)
        self._rename(old, new)
        return replace(found, name=new, tags=(found.tags - {*stale}) | {*wanted})

    def release(self, leaf: str, handle: str) -> str:
        """Give it the name it had, and then take the tags off. Raises what Import.release_volume says."""
        found = self._volumes.get(leaf)
        if tags.IMPORTED not in found.tags:
            raise not_imported(handle)
        _refuse_open(found)
        old = tags.plain(tags.value(found.tags, tags.WAS))
        self._rename(found.name, old)
        self._lvm.retag(old, remove=tags.having(found.tags, OURS))
        return f"logical volume {self._config.volume_group}/{old}"

    def _rename(self, old: str, new: str) -> None:
        try:
            self._lvm.rename(old, new)
        except Refused as error:
            if error.said(("already exists",)):
                raise AlreadyExists(f"{error}; rename that away") from None
            raise error.narrowed() from None
        finally:
            self._seen.forget()

    def _name(self, given: str) -> str:
        """Return the name without what stands for the group: vg0/data and /dev/vg0/data are data."""
        group, slash, name = given.removeprefix("/dev/").rpartition("/")
        if not NAME.fullmatch(name) or (slash and not GROUP.fullmatch(group)):
            raise InvalidArgument(f"{given!r} is not a logical volume such as {self._config.volume_group}/data")
        if slash and group != self._config.volume_group:
            raise InvalidArgument(
                f"{given!r} is in volume group {group!r}, this instance has {self._config.volume_group!r}: choose the "
                "instance of that group, or configure one"
            )
        return name

    def _refuse_unfit(self, report: Report, found: LogicalVolume) -> None:
        """Raises AlreadyExists, FailedPrecondition, InUse."""
        killed = tags.value(found.tags, tags.WAS) == tags.escaped(found.name)
        if (owner := tags.value(found.tags, tags.OWNER)) and not killed:
            raise AlreadyExists(f"logical volume {found.name} belongs to {tags.plain(owner)} already")
        if found.name.startswith((VOLUME, SNAPSHOT, COPIED, ANNEX)):
            raise FailedPrecondition(f"{found.name} has a name of the driver's form; give it another one with lvrename")
        if "pool" in found.layout:
            raise FailedPrecondition(f"{found.name} is a pool: import the volumes in it")
        if found.thick_snapshot:
            raise FailedPrecondition(
                f"{found.name} is a snapshot, which is gone with {found.origin}; copy it into a volume of its own"
            )
        if found.thick_origin:
            raise FailedPrecondition(f"{found.name} has thick snapshots; remove them first, with lvremove or lvconvert")
        if found.thin and found.pool != self._config.thin_pool:
            raise FailedPrecondition(
                f"{found.name} is in thin pool {found.pool!r}, this instance has {self._config.thin_pool or 'none'!r}: "
                "configure an instance with that pool"
            )
        if not found.thin and found.layout != {"linear"}:
            kind = ", ".join(sorted(found.layout))
            raise FailedPrecondition(f"{found.name} is of type {kind}; linear and thin volumes can be imported")
        _refuse_open(found)


def _refuse_open(found: LogicalVolume) -> None:
    if found.open:
        raise InUse(f"logical volume {found.name} is open on this node; unmount it, or stop what uses it, first")
