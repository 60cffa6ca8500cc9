"""Snapshot locks: a new snapshot is locked as its class says, and nobody can delete it until the lock ends.

EC2 accepts the lock of a snapshot that is not completed yet; its duration begins when it is. A snapshot that shows a
lock, also one that has ended, is not locked again by a repeated request: an administrator may have changed it.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime

from csi_multi.contract import FailedPrecondition, InvalidArgument, NotFound, StorageError, Timeout, Unavailable

from .client import Client
from .resources import Ec2SnapshotLock, SnapshotLock

EXPIRED = "expired"
COMPLIANCE = "compliance"  # after its cool-off period nobody can end this lock


def refuse_past(lock: SnapshotLock | None) -> None:
    """Raise InvalidArgument for a class whose locks would have ended, before a snapshot is created."""
    if lock and lock.until and lock.until <= datetime.now(UTC):
        raise InvalidArgument(
            f"parameters: 'lockExpirationDate': {lock.until.isoformat()} is over; use a VolumeSnapshotClass with a "
            "later date, or with lockDuration"
        )


def lock_new(client: Client, snapshot: str, lock: SnapshotLock) -> None:
    """Lock a snapshot that was just created. Raises Unavailable when EC2 does not know it yet."""
    try:
        client.lock_snapshot(snapshot, lock)
    except NotFound as error:
        raise Unavailable(f"snapshot {snapshot!r} was created and is not locked yet: {error}; try again") from error


def lock_existing(client: Client, snapshot: str, lock: SnapshotLock) -> None:
    """Lock a snapshot of an earlier request, unless it has a lock."""
    if client.snapshot_lock(snapshot) is None:
        lock_new(client, snapshot, lock)


def refuse_locked(client: Client, snapshot: str, error: StorageError) -> None:
    """Raise FailedPrecondition when `error`, EC2's answer to a deletion, means that the snapshot is locked.

    EC2's error code for this is not documented, so the lock itself is looked up.
    """
    if isinstance(error, NotFound | Unavailable | Timeout) and "lock" not in str(error).lower():
        return
    found = None
    with suppress(StorageError):  # then the answer to the deletion is all that is known
        found = client.snapshot_lock(snapshot)
    if found:
        refuse_while_locked(snapshot, found, error)


def refuse_while_locked(snapshot: str, found: Ec2SnapshotLock, error: StorageError | None = None) -> None:
    """Raise FailedPrecondition for a lock that has not ended."""
    if found.state == EXPIRED:
        return
    remedy = "nobody can unlock it" if found.state == COMPLIANCE else "unlock it with 'aws ec2 unlock-snapshot'"
    until = f" until {found.expires.isoformat()}" if found.expires else ""
    raise FailedPrecondition(
        f"snapshot {snapshot!r} is locked ({found.state}){until} and cannot be deleted before; {remedy}, or wait: the "
        "deletion is tried again"
    ) from error
