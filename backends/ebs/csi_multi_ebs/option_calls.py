"""The calls to EC2 that only some classes ask for: fast restore, locks, and how far a volume is initialized."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import Any

from . import errors
from .listing import existing
from .resources import VOLUME_ID, Ec2Initialization, Ec2SnapshotLock, SnapshotLock, Tags

MAX_IDS = 500  # ids per call


class OptionCalls(ABC):
    """A part of Client, which makes the calls."""

    @abstractmethod
    def _call(self, call: str, **fields: Any) -> dict[str, Any]:
        """Make a call with the fields that are not None."""

    @abstractmethod
    def _all(self, call: str, items: str, **fields: Any) -> list[dict[str, Any]]:
        """Return what all pages of a response hold under the key `items`."""

    def initializations(self, ids: Collection[str]) -> dict[str, Ec2Initialization]:
        """Return how far the volumes are loaded, of those that EC2 shows."""
        return {one["VolumeId"]: Ec2Initialization.read(one) for one in self._statuses(ids)}

    def _statuses(self, ids: Collection[str]) -> list[dict[str, Any]]:
        """Return what DescribeVolumeStatus says of these volumes, of those that EC2 shows."""

        def fetch(some: list[str]) -> list[dict[str, Any]]:
            return self._all("DescribeVolumeStatus", "VolumeStatuses", VolumeIds=some)

        def search(some: list[str]) -> list[dict[str, Any]]:  # it has no filter by id
            return [item for one in some for item in existing([one], fetch, lambda _: [], 1)]

        return existing([one for one in ids if VOLUME_ID.fullmatch(one)], fetch, search, MAX_IDS)

    def enable_fast_restore(self, snapshots: Collection[str], zones: Collection[str]) -> None:
        """Enable fast restore of these snapshots in these zones. Raises the first failure."""
        response = self._call(
            "EnableFastSnapshotRestores", SourceSnapshotIds=list(snapshots), AvailabilityZones=list(zones)
        )
        for failed in response.get("Unsuccessful", ()):
            for failure in failed.get("FastSnapshotRestoreStateErrors", ()):
                raise errors.from_response("EnableFastSnapshotRestores", {**response, **failure})

    def lock_snapshot(self, snapshot: str, lock: SnapshotLock) -> None:
        """Lock a snapshot against deletion, also one that is pending. Raises NotFound, InvalidArgument."""
        self._call(
            "LockSnapshot",
            SnapshotId=snapshot,
            LockMode=lock.mode,
            LockDuration=lock.days,
            ExpirationDate=lock.until,
            CoolOffPeriod=lock.cool_off_hours,
        )

    def snapshot_lock(self, snapshot: str) -> Ec2SnapshotLock | None:
        """Return the lock that the snapshot has or had, None when it never had one."""
        return self.snapshot_locks([snapshot]).get(snapshot)

    def snapshot_locks(self, snapshots: Collection[str]) -> dict[str, Ec2SnapshotLock]:
        """Return the locks that these snapshots have or had; one that never had one is missing."""
        response = self._call("DescribeLockedSnapshots", SnapshotIds=list(snapshots))
        return {one["SnapshotId"]: Ec2SnapshotLock.read(one) for one in response.get("Snapshots", ())}


def tag_specification(resource: str, tags: Tags) -> list[dict[str, Any]]:
    return [{"ResourceType": resource, "Tags": tag_list(tags)}]


def tag_list(tags: Tags) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in tags.items()]
