"""Snapshots: cut once per name, though EC2 knows no tokens for them, and told as they are.

Before a snapshot is cut its name is looked for, in one call for all who look at that moment. What this
process cut it remembers for a while, because EC2 may show it late.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property

from csi_multi.contract import (
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    Page,
    PageRequest,
    Snapshot,
    SnapshotRequest,
    StorageError,
    Timeout,
    Unavailable,
    leaf,
)

from . import tags
from .account import GIB, Account
from .config import SnapshotParameters
from .listing import Listing
from .rows import VOLUME, SnapshotRow

LATE = 300.0  # seconds for which a cut is remembered


class Cutting:
    def __init__(self, account: Account) -> None:
        self._account = account
        self._guard = threading.Lock()
        self._cut: dict[str, tuple[float, str]] = {}  # by name: until when EC2 may not show it, and what is known of it

    def create(self, request: SnapshotRequest) -> SnapshotRow:
        """Cut a snapshot; it is usable later. One that fails later is never replaced under its name.

        Raises AlreadyExists, NotFound, InvalidArgument, ResourceExhausted, and FailedPrecondition for a failed one.
        """
        account, zones = self._account, (request.parameters or SnapshotParameters()).fast_zones
        self._refuse_unknown(zones)
        found = self._named(request.name)
        if good := _good(found):
            self._prepare_again(good[0], zones)
            raise AlreadyExists(f"snapshot {request.name!r} exists")
        if found:
            raise _failed(request.name, found[0])  # somebody may know it by its id: there is no other for it
        account.volume(request.source)  # is it there, and ours?
        row = self._cut_now(request)
        if row.state == "error":  # nobody has heard of it
            with suppress(StorageError):
                self._remove(row.id)
            raise Unavailable(f"EC2 could not cut snapshot {row.id!r} ({row.message or 'no reason given'}); try again")
        self._refuse_second(request.name, row)
        self._prepare(row, zones)
        return row

    def _cut_now(self, request: SnapshotRequest) -> SnapshotRow:
        """Cut it, and remember that EC2 may not show it at once, whatever it answers."""
        account = self._account
        labels = tags.of_snapshot(request, account.setting, account.config)
        try:
            row = account.ec2.create_snapshot(request.source, labels, f"snapshot {request.name} of {request.source}")
        except (Unavailable, Timeout) as error:
            self._note(request.name, account.config.consistency_seconds, f"maybe ({error})")
            raise
        self._note(request.name, LATE, f"as {row.id!r}")
        return row

    def _note(self, name: str, seconds: float, known: str) -> None:
        with self._guard:
            now = time.monotonic()
            self._cut = {name: cut for name, cut in self._cut.items() if cut[0] > now}
            self._cut[name] = (now + seconds, known)

    def _refuse_second(self, name: str, row: SnapshotRow) -> None:
        """Raise AlreadyExists when another process cut one before; of several the oldest stays, for all who ask."""
        good = _good(self._account.snapshot_names.get(leaf(name), self._account.ends(None)) or [])
        if good and good[0].id != row.id and (good[0].created, good[0].id) < (row.created, row.id):
            self._remove(row.id)
            raise AlreadyExists(f"snapshot {name!r} exists as {good[0].id!r}")

    def find(self, name: str) -> SnapshotRow:
        """Return the snapshot of this requested name. Raises NotFound."""
        if good := _good(self._named(name)):
            return good[0]
        raise NotFound(f"snapshot {name!r} does not exist")

    def delete(self, handle: str) -> None:
        """Raises NotFound, InUse, and FailedPrecondition for what is not ours."""
        row = self._account.snapshot(handle)
        self._remove(row.id)

    def _remove(self, id: str) -> None:
        """Delete it, and expect it no more."""
        self._account.ec2.delete_snapshot(id)
        with self._guard:
            self._cut = {name: cut for name, cut in self._cut.items() if cut[1] != f"as {id!r}"}

    def listed(self, page: PageRequest, source: str | None) -> Page[Snapshot]:
        """Return our snapshots, of one volume if given. Raises InvalidToken."""
        if source is None:
            return self._all.read(page, _all_told)
        if not VOLUME.fullmatch(source):
            return Page(items=())
        ec2, owner = self._account.ec2, self._account.owner
        return Listing(lambda token: ec2.snapshot_page(owner, 0, token, source), ec2.snapshots).read(page, _all_told)

    @cached_property
    def _all(self) -> Listing[SnapshotRow]:
        ec2, owner = self._account.ec2, self._account.owner
        return Listing(lambda token: ec2.snapshot_page(owner, 0, token), ec2.snapshots)

    def _named(self, name: str) -> list[SnapshotRow]:
        """Return what has this name, failed ones too, the oldest first. Raises Unavailable while in doubt."""
        found = self._account.snapshot_names.get(leaf(name), self._account.ends(None)) or []
        until, known = self._cut.get(name, (0.0, ""))
        if not found and time.monotonic() < until:
            raise Unavailable(
                f"snapshot {name!r} was cut {known} a moment ago, and EC2 does not show it yet; try again"
            )
        return found

    def _refuse_unknown(self, zones: tuple[str, ...]) -> None:
        """Raise InvalidArgument for zones of no fast restores, before there is a snapshot."""
        if zones and (odd := sorted(set(zones) - set(self._account.region()))):
            raise InvalidArgument(
                f"parameters: 'fastSnapshotRestoreAvailabilityZones': {', '.join(odd)} is not in the region, which has "
                f"{', '.join(self._account.region())}"
            )

    def _prepare(self, row: SnapshotRow, zones: tuple[str, ...]) -> None:
        """Let volumes of a snapshot that was just cut be fast from the start; refused for good, there is none."""
        try:
            if zones:
                self._account.ec2.fast_restore(row.id, zones)
        except (Unavailable, Timeout):
            raise  # the retry finds the snapshot, and asks again
        except StorageError as error:
            try:
                self._remove(row.id)
            except StorageError as second:
                raise Unavailable(
                    f"fast restore of snapshot {row.id!r} failed, and so did its deletion: {second}"
                ) from error
            raise

    def _prepare_again(self, row: SnapshotRow, zones: tuple[str, ...]) -> None:
        """The same for one that somebody may have been told of: it stays, whatever EC2 says."""
        try:
            if zones:
                self._account.ec2.fast_restore(row.id, zones)
        except StorageError as error:
            raise Unavailable(f"snapshot {row.id!r} is there, but its fast restore failed: {error}") from error


def _failed(name: str, row: SnapshotRow) -> FailedPrecondition:
    return FailedPrecondition(
        f"snapshot {name!r} was cut as {row.id!r} and has failed ({row.message or 'no reason given'}): nothing can be "
        f"restored from it; delete the VolumeSnapshot and make another (if {row.id!r} is in EC2 then, delete it there)"
    )


def _good(found: list[SnapshotRow]) -> list[SnapshotRow]:
    return [row for row in found if row.state != "error"]


def _all_told(rows: dict[str, SnapshotRow]) -> Callable[[str], Snapshot | None]:
    def one(handle: str) -> Snapshot | None:
        row = rows.get(handle)
        return told(row) if row and row.state != "error" and tags.stamp(row.tags) else None

    return one


def told(row: SnapshotRow) -> Snapshot:
    """Return a snapshot of ours as the contract has it. Raises NotFound for one without a stamp."""
    stamp = tags.stamp(row.tags)
    if stamp is None:
        raise NotFound(f"snapshot {row.id!r} is not this driver's")
    return Snapshot(
        handle=row.id,
        source=tags.snapshot_source(row.tags) or row.volume,
        size=row.size * GIB,
        created=row.created,
        stamp=stamp,
        ready=row.state == "completed",
    )
