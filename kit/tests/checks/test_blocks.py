"""Backends whose maps would spoil a backup, and the checks that find it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from csi_multi_testing.check import CheckState
from csi_multi_testing.checks import blocks
from csi_multi_testing.memory import GRANULE, MemoryBackend

from csi_multi.contract import BlockMap, Extent, FailedPrecondition, OutOfRange, Strings


class Mapped(MemoryBackend):
    """What it says about blocks: the defects below are there."""

    def reported(self, extents: list[Extent], offset: int) -> Iterable[Extent]:
        return extents

    def allocated_blocks(self, handle: str, offset: int, secrets: Strings) -> BlockMap:
        found = super().allocated_blocks(handle, offset, secrets)
        return replace(found, extents=iter(self.reported(list(found.extents), offset)))

    def changed_blocks(self, base: str, target: str, offset: int, secrets: Strings) -> BlockMap:
        found = super().changed_blocks(base, target, offset, secrets)
        return replace(found, extents=iter(self.reported(list(found.extents), offset)))


class HeadOnly(Mapped):
    """Knows the beginning."""

    def reported(self, extents: list[Extent], offset: int) -> Iterable[Extent]:
        return extents[:4]


class OnePage(Mapped):
    """Ends where it has looked at so much and found no change."""

    def reported(self, extents: list[Extent], offset: int) -> Iterable[Extent]:
        return [one for one in extents if one.offset < offset + (256 << 20)]


class Unsorted(Mapped):
    """Goes back."""

    def reported(self, extents: list[Extent], offset: int) -> Iterable[Extent]:
        return reversed(extents)


class Overlapping(Mapped):
    """Says some bytes twice."""

    def reported(self, extents: list[Extent], offset: int) -> Iterable[Extent]:
        return [replace(one, offset=max(0, one.offset - 512)) for one in extents]


class Late(Mapped):
    """Leaves out the block that the offset is in."""

    def reported(self, extents: list[Extent], offset: int) -> Iterable[Extent]:
        return [one for one in extents if one.offset >= offset]


class Listing(MemoryBackend):
    """Has all extents in memory."""

    def allocated_blocks(self, handle: str, offset: int, secrets: Strings) -> BlockMap:
        found = super().allocated_blocks(handle, offset, secrets)
        return replace(found, extents=list(found.extents))  # type: ignore[arg-type]


class Unequal(MemoryBackend):
    """Tells a length that its blocks do not have."""

    def allocated_blocks(self, handle: str, offset: int, secrets: Strings) -> BlockMap:
        return replace(super().allocated_blocks(handle, offset, secrets), block_size=2 * GRANULE)


class Small(MemoryBackend):
    """Takes the length of the data for the size of the volume."""

    def allocated_blocks(self, handle: str, offset: int, secrets: Strings) -> BlockMap:
        return replace(super().allocated_blocks(handle, offset, secrets), size=GRANULE)


class Whole(MemoryBackend):
    """Starts at the start, whatever the offset."""

    def allocated_blocks(self, handle: str, offset: int, secrets: Strings) -> BlockMap:
        return super().allocated_blocks(handle, 0, secrets)


class Additions(MemoryBackend):
    """Tells what is allocated now and was not."""

    def changed_blocks(self, base: str, target: str, offset: int, secrets: Strings) -> BlockMap:
        old = {one.offset for one in self.allocated_blocks(base, 0, secrets).extents}
        found = self.allocated_blocks(target, offset, secrets)
        return replace(found, extents=(one for one in list(found.extents) if one.offset not in old))


class Data(MemoryBackend):
    """Leaves out what is zeros now."""

    def changed_blocks(self, base: str, target: str, offset: int, secrets: Strings) -> BlockMap:
        found = super().changed_blocks(base, target, offset, secrets)
        data = self.storage.data[f"@{target}"]
        return replace(found, extents=(one for one in found.extents if any(data.get(one.offset, b"x"))))


class NewestLayer(MemoryBackend):
    """Knows what was written since the snapshot before."""

    def allocated_blocks(self, handle: str, offset: int, secrets: Strings) -> BlockMap:
        before = [one for one in self.storage.snapshots.values() if one.created < self.get_snapshot(handle).created]
        if not before:
            return super().allocated_blocks(handle, offset, secrets)
        return super().changed_blocks(max(before, key=lambda one: one.created).handle, handle, offset, secrets)


class ForgetsLargeZeros(MemoryBackend):
    """Drops zeroed ranges from the map of what is stored, and compares only what is in it."""

    def changed_blocks(self, base: str, target: str, offset: int, secrets: Strings) -> BlockMap:
        found = super().changed_blocks(base, target, offset, secrets)
        extents = list(found.extents)
        data = self.storage.data[f"@{target}"]
        zeros = [one for one in extents if not any(data.get(one.offset, b""))]
        kept = extents if len(zeros) < 100 else [one for one in extents if one not in zeros]
        return replace(found, extents=iter(kept))


class Nearest(MemoryBackend):
    """Compares with the snapshot before, which need not be the one that was asked for."""

    def changed_blocks(self, base: str, target: str, offset: int, secrets: Strings) -> BlockMap:
        cut = sorted(self.storage.snapshots.values(), key=lambda one: one.created)
        before = cut[cut.index(self.get_snapshot(target)) - 1]
        return super().changed_blocks(before.handle, target, offset, secrets)


class Trusting(MemoryBackend):
    """Takes the base for granted."""

    def changed_blocks(self, base: str, target: str, offset: int, secrets: Strings) -> BlockMap:
        return self._blocks(self.get_snapshot(target), offset, self.storage.data.get(f"@{base}", {}))


class UpToTheSmaller(MemoryBackend):
    """Compares as far as both snapshots reach."""

    def changed_blocks(self, base: str, target: str, offset: int, secrets: Strings) -> BlockMap:
        found, end = super().changed_blocks(base, target, offset, secrets), self.get_snapshot(base).size
        return BlockMap(size=found.size, extents=[one for one in found.extents if one.offset < end])


class AllOfTheTarget(MemoryBackend):
    """Takes what the target has for the changes since a snapshot of another volume."""

    def changed_blocks(self, base: str, target: str, offset: int, secrets: Strings) -> BlockMap:
        if self.get_snapshot(base).source != self.get_snapshot(target).source:
            return self.allocated_blocks(target, offset, secrets)
        return super().changed_blocks(base, target, offset, secrets)


class SizeOfTheBase(MemoryBackend):
    """Takes the size of the earlier snapshot for that of the map."""

    def changed_blocks(self, base: str, target: str, offset: int, secrets: Strings) -> BlockMap:
        return replace(super().changed_blocks(base, target, offset, secrets), size=self.get_snapshot(base).size)


class SizeOfTheVolume(MemoryBackend):
    """Takes the volume's size of today for that of the snapshot."""

    def allocated_blocks(self, handle: str, offset: int, secrets: Strings) -> BlockMap:
        source = self.get_volume(self.get_snapshot(handle).source)
        return replace(super().allocated_blocks(handle, offset, secrets), size=source.size)


class RefusesBehindTheBase(MemoryBackend):
    """Takes an offset behind the end of the earlier snapshot for one behind the end of both."""

    def changed_blocks(self, base: str, target: str, offset: int, secrets: Strings) -> BlockMap:
        if offset >= self.get_snapshot(base).size:
            raise OutOfRange(f"offset {offset} is beyond the end")
        return super().changed_blocks(base, target, offset, secrets)


BROKEN = [
    (blocks.snapshots_of_two_volumes_are_compared_or_refused, AllOfTheTarget, "where only the base has data"),
    (blocks.extents_are_in_order_and_within_the_volume, SizeOfTheBase, "after the volume grew: BlockMap.size"),
    (blocks.extents_are_in_order_and_within_the_volume, SizeOfTheVolume, "whose volume grew afterwards: BlockMap.size"),
    (blocks.a_block_map_can_be_continued_from_any_offset, RefusesBehindTheBase, "is beyond the end"),
    (
        blocks.a_block_that_changed_after_a_long_equal_stretch_is_reported,
        OnePage,
        "one in each MiB, and a write of 4096 bytes at 5368705024: byte 5368705024 is in no extent",
    ),
    (
        blocks.blocks_written_behind_the_end_of_the_earlier_snapshot_are_reported,
        UpToTheSmaller,
        "a backup would lose it",
    ),
    (blocks.written_blocks_are_reported_as_allocated, HeadOnly, "is in no extent; a backup would lose it"),
    (blocks.blocks_changed_between_snapshots_are_reported, Additions, "after a write of 4096 bytes again at 0: byte"),
    (blocks.blocks_changed_between_snapshots_are_reported, Data, "bytes with zeros"),
    (
        blocks.blocks_that_an_earlier_snapshot_has_are_allocated_in_a_later_one_too,
        NewestLayer,
        "allocated_blocks of a second snapshot, at 16773120, written before the first",
    ),
    (
        blocks.ranges_that_are_zeroed_or_discarded_between_snapshots_are_reported,
        ForgetsLargeZeros,
        "a backup would keep the old data",
    ),
    (blocks.changes_are_reported_across_snapshots_in_between, Nearest, "with a snapshot in between"),
    (blocks.extents_are_in_order_and_within_the_volume, Unsorted, "extents must be in order and must not overlap"),
    (blocks.extents_are_in_order_and_within_the_volume, Overlapping, "extents must be in order and must not overlap"),
    (blocks.extents_are_in_order_and_within_the_volume, Listing, "BlockMap.extents is a list, not an iterator"),
    (blocks.extents_are_in_order_and_within_the_volume, Unequal, "does not have the length of BlockMap.block_size"),
    (blocks.extents_are_in_order_and_within_the_volume, Small, "BlockMap.size, compared with the volume's"),
    (blocks.a_block_map_can_be_continued_from_any_offset, Whole, "extents that end before it"),
    (blocks.a_block_map_can_be_continued_from_any_offset, Late, "is missing, but is in the map from the start"),
    (blocks.an_offset_beyond_the_end_is_refused, Whole, "succeeded, the contract requires OutOfRange"),
    (blocks.blocks_of_a_deleted_snapshot_are_refused, Trusting, "succeeded, the contract requires NotFound"),
]


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)


class Untracked(MemoryBackend):
    """Does not know what changed. Correct."""

    def changed_blocks(self, base: str, target: str, offset: int, secrets: Strings) -> BlockMap:
        for one in (base, target):
            self.get_snapshot(one)
        raise FailedPrecondition("changes are not tracked")


def test_a_storage_that_does_not_track_changes_is_not_asked_for_them(judged: Any) -> None:
    outcome = judged(blocks.blocks_changed_between_snapshots_are_reported, Untracked)

    assert (outcome.state, outcome.text) == (CheckState.SKIPPED, "changes are not tracked: changes are not tracked")
    assert judged(blocks.a_block_map_can_be_continued_from_any_offset, Untracked).state is CheckState.PASSED
