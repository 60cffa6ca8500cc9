"""Blocks of snapshots: all that were written or changed, page by page, however the list is interrupted."""

from __future__ import annotations

from itertools import pairwise

import pytest
from csi_multi_ebs.backend import EbsBackend
from csi_multi_ebs.changed_blocks import BLOCK_SIZE

from csi_multi.contract import BlockMap, FailedPrecondition, NotFound, OutOfRange, Unavailable, Volume

from . import fake_ebs_blocks
from .backend_requests import GIB, expand_request, snapshot_request, volume_request
from .fake_ec2 import FakeEc2, seconds

MISSING = "snap-00000000000000000"


@pytest.fixture
def origin(ebs: EbsBackend) -> Volume:
    return ebs.create_volume(volume_request())


def write(cloud: FakeEc2, volume: Volume, *blocks: int, data: bytes = b"data") -> None:
    for block in blocks:
        fake_ebs_blocks.write(cloud, volume.handle, block * BLOCK_SIZE, data)


def taken(ebs: EbsBackend, volume: Volume, name: str = "snap-1") -> str:
    handle = ebs.create_snapshot(snapshot_request(name, volume.handle)).handle
    ebs.get_snapshot(handle)
    return handle


def numbers(found: BlockMap) -> list[int]:
    extents = list(found.extents)
    assert {one.length for one in extents} <= {BLOCK_SIZE}
    assert all(one.offset < other.offset for one, other in pairwise(extents))
    return [one.offset // BLOCK_SIZE for one in extents]


def allocated(ebs: EbsBackend, handle: str, offset: int = 0) -> list[int]:
    return numbers(ebs.allocated_blocks(handle, offset, {}))


def test_what_was_written_is_allocated_and_what_changed_is_changed(
    ebs: EbsBackend, cloud: FakeEc2, origin: Volume
) -> None:
    write(cloud, origin, 0, 7, 2047)
    old = taken(ebs, origin)
    write(cloud, origin, 7, 9, data=b"other")
    new = taken(ebs, origin, "snap-2")

    found = ebs.allocated_blocks(old, 0, {})
    assert (found.size, found.block_size) == (GIB, BLOCK_SIZE)
    assert numbers(found) == [0, 7, 2047]
    assert allocated(ebs, new) == [0, 7, 9, 2047]
    assert numbers(ebs.changed_blocks(old, new, 0, {})) == [7, 9]


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_all_pages_are_read_also_empty_ones(ebs: EbsBackend, cloud: FakeEc2, origin: Volume, size: int) -> None:
    write(cloud, origin, *range(0, 21, 3))
    handle = taken(ebs, origin)
    cloud.block_pages.size = size
    cloud.block_pages.empty = 2

    assert allocated(ebs, handle) == list(range(0, 21, 3))


def test_a_list_begins_in_the_block_of_the_offset(ebs: EbsBackend, cloud: FakeEc2, origin: Volume) -> None:
    write(cloud, origin, 0, 1, 2, 5)
    handle = taken(ebs, origin)

    assert allocated(ebs, handle, 1) == [0, 1, 2, 5]
    assert allocated(ebs, handle, BLOCK_SIZE) == [1, 2, 5]
    assert allocated(ebs, handle, 3 * BLOCK_SIZE - 1) == [2, 5]
    assert allocated(ebs, handle, GIB) == []
    assert cloud.seen[-1].get("StartingBlockIndex") in ("2", "")
    with pytest.raises(OutOfRange):
        ebs.allocated_blocks(handle, GIB + 1, {})


def test_pages_are_read_when_they_are_needed(ebs: EbsBackend, cloud: FakeEc2, origin: Volume) -> None:
    write(cloud, origin, *range(50))
    handle = taken(ebs, origin)
    cloud.block_pages.size = 10

    extents = ebs.allocated_blocks(handle, 0, {}).extents
    for _ in range(10):
        next(extents)
    assert cloud.calls["ListSnapshotBlocks"] == 1
    next(extents)
    assert cloud.calls["ListSnapshotBlocks"] == 2


def test_a_token_that_expired_costs_no_block(ebs: EbsBackend, cloud: FakeEc2, origin: Volume) -> None:
    write(cloud, origin, *range(0, 60, 2))
    handle = taken(ebs, origin)
    cloud.block_pages.size = 10

    found = []
    for one in ebs.allocated_blocks(handle, 0, {}).extents:
        found.append(one.offset // BLOCK_SIZE)
        cloud.block_pages.tokens.clear()
    assert found == list(range(0, 60, 2))


def test_a_list_that_cannot_go_on_does_not_end_but_fails(ebs: EbsBackend, cloud: FakeEc2, origin: Volume) -> None:
    write(cloud, origin, *range(30))
    handle = taken(ebs, origin)
    cloud.block_pages.size = 10

    extents = ebs.allocated_blocks(handle, 0, {}).extents
    assert [next(extents).offset // BLOCK_SIZE for _ in range(10)] == list(range(10))
    cloud.block_pages.empty = 9
    cloud.fail(
        "ListSnapshotBlocks",
        "ValidationException INVALID_PAGE_TOKEN",
        times=2,
        when=lambda call: bool(call.get("NextToken")),
    )
    with pytest.raises(Unavailable, match=f"continued at byte {10 * BLOCK_SIZE}"):
        next(extents)
    cloud.block_pages.empty = 0
    cloud.fail("ListSnapshotBlocks", "InternalServerException", skip=1)
    with pytest.raises(Unavailable):
        allocated(ebs, handle)
    cloud._faults._all.clear()
    assert allocated(ebs, handle, 10 * BLOCK_SIZE) == list(range(10, 30))


def test_throttled_calls_are_repeated(connect: object, cloud: FakeEc2, origin: Volume, ebs: EbsBackend) -> None:
    patient = connect(max_attempts=4)  # type: ignore[operator]
    write(cloud, origin, 3)
    handle = taken(ebs, origin)
    cloud.fail("ListSnapshotBlocks", "RequestThrottledException", times=2)

    assert allocated(patient, handle) == [3]


def test_growth_between_two_snapshots_is_no_obstacle(ebs: EbsBackend, cloud: FakeEc2, origin: Volume) -> None:
    write(cloud, origin, 1)
    old = taken(ebs, origin)
    ebs.expand_volume(expand_request(origin, 2))
    write(cloud, origin, 3000)
    new = taken(ebs, origin, "snap-2")

    found = ebs.changed_blocks(old, new, 0, {})
    assert found.size == 2 * GIB
    assert numbers(found) == [3000]
    assert max(numbers(ebs.changed_blocks(new, old, 0, {})), default=0) < GIB // BLOCK_SIZE


def test_snapshots_without_a_common_history_are_refused_with_the_remedy(
    ebs: EbsBackend, cloud: FakeEc2, origin: Volume
) -> None:
    old, new = taken(ebs, origin), taken(ebs, origin, "snap-2")
    other = taken(ebs, ebs.create_volume(volume_request("pvc-2")), "snap-3")

    with pytest.raises(FailedPrecondition, match="full backup"):
        ebs.changed_blocks(old, other, 0, {})
    cloud.block_pages.unrelated.add(frozenset((old, new)))
    with pytest.raises(FailedPrecondition, match="full backup"):
        ebs.changed_blocks(old, new, 0, {})


def test_a_snapshot_that_is_pending_is_listed_later(ebs: EbsBackend, cloud: FakeEc2, origin: Volume) -> None:
    old = taken(ebs, origin)
    cloud.takes.snapshot = seconds(3600)
    new = ebs.create_snapshot(snapshot_request("snap-2", origin.handle)).handle

    with pytest.raises(Unavailable, match="is pending"):
        ebs.allocated_blocks(new, 0, {})
    with pytest.raises(Unavailable, match="is pending"):
        ebs.changed_blocks(old, new, 0, {})
    with pytest.raises(NotFound):
        ebs.allocated_blocks(MISSING, 0, {})
    with pytest.raises(NotFound):
        ebs.changed_blocks(MISSING, old, 0, {})
    cloud.advance(3601)
    assert allocated(ebs, new) == []


def test_a_snapshot_that_only_ebs_does_not_know_yet_is_not_reported_as_missing(
    ebs: EbsBackend, cloud: FakeEc2, origin: Volume
) -> None:
    handle = taken(ebs, origin)
    cloud.fail("ListSnapshotBlocks", "ResourceNotFoundException SNAPSHOT_NOT_FOUND")

    with pytest.raises(Unavailable):
        ebs.allocated_blocks(handle, 0, {})
