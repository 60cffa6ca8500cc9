"""Snapshots of several volumes as of one moment.

LVM creates one snapshot per command, each of another moment. So it creates all members first; then, while it is locked
out, they are made anew. The thin device of a thin member is deleted, and created again by the same number. A thick
member is prepared to begin anew (thick_cut.py). Both happen while all volumes that are in use are suspended, which
takes as long as a few calls of dmsetup. LVM's metadata needs no change.

A suspended device accepts no writes, and the filesystem on it is frozen, so this holds for raw block devices as well.
Devices that are still suspended when a process has died are resumed by the next one (Activation.resume).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import NamedTuple

from csi_multi.contract import Busy, Host, StorageError, Unavailable

from . import group_lock, thick_cut
from .activation import Activation
from .client import Client
from .kernel_devices import ActiveDevice
from .report import LogicalVolume

log = logging.getLogger(__name__)

LIMIT = 8.0  # seconds for which volumes are suspended at most; after 10 Activation.resume takes them for abandoned
LOCK_WAIT = 60.0  # seconds to wait for other lvm commands


class Cut(NamedTuple):
    """A member that lvm has created, and the volume that it gets the data of."""

    member: str
    origin: LogicalVolume
    size: int  # bytes of both


class _Pair(NamedTuple):
    """Their numbers in the pool."""

    member: int
    origin: int


class GroupCut:
    def __init__(self, host: Host, client: Client, activation: Activation, group: str) -> None:
        self._host = host
        self._client = client
        self._activation = activation
        self._group = group

    def cut(self, pool: str, cuts: Sequence[Cut]) -> float:
        """Give each member its volume's data as of one moment, and return when that was, in seconds since 1970.

        Raises Busy, Unavailable, Timeout. After an error the members hold anything, or nothing.
        """
        directory = self._client.lock_directory()
        thin, thick = [one for one in cuts if one.origin.thin], [one for one in cuts if not one.origin.thin]
        pairs = self._numbers(thin) if thin else []
        with ExitStack() as stack:
            target = stack.enter_context(self._activation.pool_active(pool)) if thin else ""
            for member in self._found(thick):
                stack.enter_context(self._activation.reading(member))  # a store is made anew only while it is active
            stack.enter_context(group_lock.locked(directory, self._group, LOCK_WAIT))
            devices = self._devices(cuts)
            for pair in pairs:
                self._tell(target, f"delete {pair.member}")
            prepared = [thick_cut.prepare(self._host, self._activation, one.member).name for one in thick]
            with self._suspended([one.name for one in devices.values() if one]):
                created = time.time()
                for pair in pairs:
                    self._tell(target, f"create_snap {pair.member} {pair.origin}")
                if prepared:
                    self._host.run("dmsetup", "resume", "--noudevsync", *prepared)
                self._require_suspended(devices)
        return created

    def _numbers(self, cuts: Sequence[Cut]) -> list[_Pair]:
        numbers = self._client.thin_ids(*(name for one in cuts for name in (one.member, one.origin.name)))
        try:
            return [_Pair(numbers[one.member], numbers[one.origin.name]) for one in cuts]
        except KeyError as error:
            raise _removed(error) from None

    def _found(self, cuts: Sequence[Cut]) -> list[LogicalVolume]:
        found = self._client.find(*(one.member for one in cuts)) if cuts else {}
        try:
            return [found[one.member] for one in cuts]
        except KeyError as error:
            raise _removed(error) from None

    def _tell(self, target: str, message: str) -> None:
        self._host.run("dmsetup", "message", target, "0", message)

    def _devices(self, cuts: Sequence[Cut]) -> dict[str, ActiveDevice | None]:
        """Return the devices of the volumes, None of those that are not in use. Raises Busy."""
        devices = {one.origin.name: self._activation.device(one.origin.name) for one in cuts}
        for one in cuts:
            device = devices[one.origin.name]
            if device and device.size != one.size:
                raise Busy(f"logical volume {one.origin.name} grew while the group was prepared; try again")
            if device and device.suspended:
                raise Busy(f"logical volume {one.origin.name} was left suspended by a killed command; try again")
        return devices

    @contextmanager
    def _suspended(self, names: Sequence[str]) -> Iterator[None]:
        """Suspend these devices for the block."""
        if not names:
            yield
            return
        started = time.monotonic()
        try:
            self._host.run("dmsetup", "suspend", "--noudevsync", *names, timeout=LIMIT)
            yield
        finally:
            self._resume(names)
            milliseconds = (time.monotonic() - started) * 1000
            log.info("%d volumes of a group were suspended for %.0f ms", len(names), milliseconds)

    def _resume(self, names: Sequence[str]) -> None:
        """Resume these devices, each although another one cannot be."""
        try:
            self._host.run("dmsetup", "resume", "--noudevsync", *names)
        except StorageError:
            for name in names:
                with suppress(StorageError):  # Activation.resume tries again, at the next check
                    self._host.run("dmsetup", "resume", "--noudevsync", name)
            raise

    def _require_suspended(self, devices: Mapping[str, ActiveDevice | None]) -> None:
        """Raise Unavailable unless all that were in use are still suspended, and the others still not in use."""
        for origin, before in devices.items():
            now = self._activation.device(origin)
            if now != before or (now and not now.suspended):
                raise Unavailable(
                    f"logical volume {origin} was resumed, or opened, while its group snapshot was made; try again"
                )


def _removed(error: KeyError) -> Busy:
    return Busy(f"another process removed logical volume {error} at the same time; try again")
