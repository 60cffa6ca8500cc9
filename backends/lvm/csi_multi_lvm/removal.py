"""Remove volumes, and what a process that died has left."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

from csi_multi.contract import InUse, StorageError, not_ours_to_delete

from . import tags
from .activation import Activation
from .config import Config
from .growing import Grower
from .lvm import Lvm, Refused
from .making import Maker
from .names import ANNEX, COPIED, VOLUME
from .report import LogicalVolume, Report
from .seen import Seen
from .shelf import Shelf, unfinished
from .work import Work

log = logging.getLogger(__name__)

FORGOTTEN = 24 * 3600.0  # seconds after which nobody is going to ask for an unfinished copy again


class Remover(Work):
    def __init__(
        self,
        config: Config,
        lvm: Lvm,
        seen: Seen,
        activation: Activation,
        volumes: Shelf,
        maker: Maker,
        grower: Grower,
    ) -> None:
        super().__init__(config, lvm, seen, activation, volumes)
        self._maker = maker
        self._grower = grower

    def remove(self, leaf: str) -> None:
        """Remove a volume. Raises NotFound, InUse while it is open or has snapshots, FailedPrecondition.

        One command when all is well: it removes only what is ours, closed and without thick snapshots,
        which would go with it. What else is the matter is looked up after that.
        """
        name = self._volumes.name(leaf)
        ours = f'lv_tags={{"{self._volumes.owner}"}} && lv_tags!={{"{tags.IMPORTED}"}}'
        condition = f'{ours} && lv_role!={{"thickorigin"}} && lv_active=""'
        try:
            if self._lvm.remove(name, condition):
                self._seen.drop(name)
                return
        except Refused as error:
            self._seen.forget()
            if name in self._lvm.look(name):
                raise error.narrowed() from None
        except BaseException:
            self._seen.forget()
            raise
        self._seen.forget()
        report = self._lvm.report()
        found = report.volumes.get(name)
        if found and self._volumes.is_ours(found) and unfinished(found):
            self._maker.refuse_taken(leaf)
            return
        found = self._volumes.ours(leaf, found)
        if tags.IMPORTED in found.tags:
            raise not_ours_to_delete(self._volumes.handle(found))
        if found.thick_origin:
            raise InUse(
                f"volume {name} has snapshots that need it: {', '.join(_snapshots(report, found))}; delete them first"
            )
        raise InUse(f"volume {name} is open on this node; unpublish and unstage it first")

    def sweep(self) -> None:
        """Remove what nobody is going to finish, and deactivate what was only read."""
        report = self._lvm.report()
        for found in report.volumes.values():
            if self._volumes.owner in found.tags:
                try:
                    self._swept(report, found)
                except StorageError as error:
                    log.warning("%s, of an interrupted operation, stays for now: %s", found.name, error)

    def _swept(self, report: Report, found: LogicalVolume) -> None:
        if tags.READING in found.tags:
            self._activation.release(found.name, noted=True)
        if found.name.startswith(ANNEX):
            self._grower.drop_annex(found.name)
        if found.name.startswith(COPIED):
            copy = report.volumes.get(VOLUME + found.name.removeprefix(COPIED))
            if copy is None or not unfinished(copy):
                self._maker.discard(found)
        since = tags.value(found.tags, tags.AT)
        if unfinished(found) and since and time.time() - float(since) > FORGOTTEN:
            self._maker.discard(found)


def _snapshots(report: Report, found: LogicalVolume) -> Iterator[str]:
    return (one.name for one in report.volumes.values() if one.origin == found.name and one.thick_snapshot)
