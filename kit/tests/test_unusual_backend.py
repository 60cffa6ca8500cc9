"""A backend that uses every freedom of the contract: no check may fail for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from csi_multi_testing import memory
from csi_multi_testing.check import CheckState, run
from csi_multi_testing.checks import CHECKS
from csi_multi_testing.context import in_process
from csi_multi_testing.memory import GIB, MemoryBackend

from csi_multi.contract import (
    AlreadyExists,
    Busy,
    Capability,
    InUse,
    NotFound,
    OutOfRange,
    Page,
    PageRequest,
    SizeRange,
    Snapshot,
    SnapshotRequest,
    Strings,
    Volume,
    VolumeRequest,
)

SOON = 1  # times a snapshot is seen until volumes can be made from it


class Peculiar(MemoryBackend):
    """Whole GiB, opaque handles, tokens, slow snapshots, raw block devices only; sources of copies are kept.

    EBS, Ceph RBD and LVM each have some of these properties.
    """

    def leaf(self, name: str) -> str:
        with self.storage.lock:
            numbers: dict[str, int] = self.storage.__dict__.setdefault("numbers", {})
            return f"res-{numbers.setdefault(name, len(numbers)):08x}"

    def unsupported(self, capability: Capability, parameters: Any = None) -> str:
        return super().unsupported(capability, parameters) or ("" if capability.block else "block devices only")

    def _put(self, request: VolumeRequest, default: int) -> Volume:
        if request.source and request.size.required > default:
            raise OutOfRange("a copy has the size of its source; expand it afterwards")
        size = request.size.choose(granularity=GIB, minimum=default if request.source else GIB, default=2 * GIB)
        try:
            return super()._put(replace(request, size=SizeRange(required=size, limit=size)), default)
        except AlreadyExists:
            return self._known_again(request, size)

    def _known_again(self, request: VolumeRequest, size: int) -> Volume:
        """A token tells a request that was repeated to the letter."""
        try:
            found = self.find_volume(request.name)
        except NotFound:
            raise Busy(f"volume {request.name!r} has just been deleted") from None
        if (found.stamp, found.size) != (request.stamp, size):
            raise AlreadyExists(f"volume {request.name!r} exists")
        return found

    def delete_volume(self, handle: str, secrets: Strings) -> None:
        if any(one.source == handle for one in [*self.storage.snapshots.values()]):
            raise InUse(f"volume {handle!r} has snapshots")
        if self._copies(handle):
            raise InUse(f"volumes were made from volume {handle!r}")
        super().delete_volume(handle, secrets)

    def delete_snapshot(self, handle: str, secrets: Strings) -> None:
        if self._copies(handle):
            raise InUse(f"volumes were made from snapshot {handle!r}")
        super().delete_snapshot(handle, secrets)

    def _copies(self, handle: str) -> bool:
        volumes = [*self.storage.volumes.values()]
        return any(one.stamp.source and one.stamp.source.handle == handle for one in volumes)

    def create_snapshot(self, request: SnapshotRequest) -> Snapshot:
        return self._seen(super().create_snapshot(request))

    def get_snapshot(self, handle: str) -> Snapshot:
        return self._seen(super().get_snapshot(handle))

    def list_snapshots(self, page: PageRequest, source: str | None = None) -> Page[Snapshot]:
        found = super().list_snapshots(page, source)
        return replace(found, items=tuple(self._seen(one) for one in found.items))

    def _seen(self, snapshot: Snapshot) -> Snapshot:
        with self.storage.lock:
            seen: dict[str, int] = self.storage.__dict__.setdefault("seen", {})
            seen[snapshot.handle] = seen.get(snapshot.handle, 0) + 1
            return replace(snapshot, ready=seen[snapshot.handle] > SOON)


@pytest.mark.parametrize("name", CHECKS)
def test_freedoms_are_no_faults(name: str) -> None:
    outcome = run(CHECKS[name], in_process(memory.storage(Peculiar, exact_sizes=(GIB,), size=GIB // 2)))

    assert outcome.state is not CheckState.FAILED, outcome.text
