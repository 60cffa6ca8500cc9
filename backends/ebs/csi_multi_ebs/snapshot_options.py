"""What a VolumeSnapshotClass asks for beyond the snapshots themselves: fast restore and locks, of each alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from csi_multi.contract import InvalidArgument, StorageError, Timeout, Unavailable

from . import snapshot_locks
from .config import SnapshotParameters
from .ec2_cache import Ec2Cache


def refuse_useless(cache: Ec2Cache, parameters: SnapshotParameters) -> None:
    """Raise InvalidArgument for zones that do not exist and locks that are over, before a snapshot is created."""
    zones = parameters.fast_zones
    if zones and (unknown := sorted(set(zones) - set(cache.region_zones()))):
        raise InvalidArgument(
            f"parameters: 'fastSnapshotRestoreAvailabilityZones': {', '.join(unknown)} is not in the region, whose "
            f"zones are {', '.join(cache.region_zones())}; choose among them"
        )
    snapshot_locks.refuse_past(parameters.lock)


def set_options(
    cache: Ec2Cache, ids: Sequence[str], parameters: SnapshotParameters, delete: Callable[[], None]
) -> None:
    """Enable fast restore of snapshots that were just created, and lock them. After a final refusal `delete` is called.

    The locks come last: a locked snapshot could not be deleted.
    """
    client = cache.client
    try:
        if parameters.fast_zones:
            client.enable_fast_restore(ids, parameters.fast_zones)
        if parameters.lock:
            for id in ids:
                snapshot_locks.lock_new(client, id, parameters.lock)
    except (Unavailable, Timeout):
        raise  # a retry finds the snapshots and does this then
    except StorageError as error:
        try:
            delete()
        except StorageError as second:
            raise Unavailable(
                f"{named(ids)} did not get what the class asks for ({error}), and could not be deleted either: "
                f"{second}; try again"
            ) from error
        raise


def ensure_options(cache: Ec2Cache, ids: Sequence[str], parameters: SnapshotParameters) -> None:
    """Do the same for snapshots whose ids may have been reported: they stay, whatever EC2 answers."""
    client, what = cache.client, "fast restore could not be enabled"
    try:
        if parameters.fast_zones:
            client.enable_fast_restore(ids, parameters.fast_zones)
        what = "lock could not be set"
        if parameters.lock:
            for id in ids:
                snapshot_locks.lock_existing(client, id, parameters.lock)
    except StorageError as error:
        raise Unavailable(f"{named(ids)} exists, but its {what}: {error}; try again") from error


def named(ids: Sequence[str]) -> str:
    """Return the snapshots for error messages."""
    return f"snapshot {', '.join(map(repr, ids))}"
