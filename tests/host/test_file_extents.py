"""What two files share is found by the places of their blocks, and nothing else counts as shared."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from csi_multi.host import file_extents
from csi_multi.host.file_extents import ExtentFlag, PlacedExtent

SIZE = 40  # the units of these files
FLAGS = (0, 0, ExtentFlag.SHARED, ExtentFlag.UNWRITTEN, ExtentFlag.ENCODED, ExtentFlag.DATA_INLINE)


@st.composite
def files(draw: st.DrawFn) -> list[PlacedExtent]:
    """A file of extents at few places, so that many are shared by chance."""
    found, at = [], 0
    while at < SIZE:
        at += draw(st.integers(0, 4))
        length, place, flags = draw(st.integers(1, 8)), draw(st.sampled_from((0, 3, 100))), draw(st.sampled_from(FLAGS))
        found.append(PlacedExtent(at, at + place, length, flags))
        at += length
    return found


def unit(extents: list[PlacedExtent], at: int) -> Any:
    """What one unit of a file holds: None for zeros, its place, or that this is not known."""
    for one in extents:
        if one.offset <= at < one.end and not one.flags & ExtentFlag.UNWRITTEN:
            known = not one.flags & (ExtentFlag.ENCODED | ExtentFlag.DATA_INLINE)
            return one.place + at - one.offset if known else "unknown"
    return None


@given(files(), files(), st.integers(0, SIZE - 1), st.sampled_from((1, 2, 3, 1000)))
def test_every_unit_that_is_not_shared_is_in_a_difference(
    one: list[PlacedExtent], other: list[PlacedExtent], start: int, batch: int
) -> None:
    contents = {1: one, 2: other}

    def placed(descriptor: int, first: int, last: int) -> list[PlacedExtent]:
        return [each for each in contents[descriptor] if each.end > first and each.offset < last][:batch]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_extents, "placed", placed)
        patch.setattr(file_extents, "_BATCH", batch)
        found = list(file_extents.unshared(1, 2, start, SIZE))

    told: dict[int, bool] = {}
    for difference in found:
        assert difference.start < difference.end
        for at in range(difference.start, difference.end):
            assert at not in told
            told[at] = difference.certain
    assert list(told) == sorted(told)
    for at in range(start, SIZE):
        mine, theirs = unit(one, at), unit(other, at)
        same = True if mine == theirs else None
        wanted = False if "unknown" in (mine, theirs) else None if same else True
        assert told.get(at) is wanted, at
    assert not set(told) - set(range(start, SIZE))


def test_blocks_that_move_meanwhile_are_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    places = iter(range(0, 1000, 100))
    monkeypatch.setattr(file_extents, "placed", lambda *_: [PlacedExtent(0, next(places), SIZE, 0)])

    assert list(file_extents.unshared(1, 2, 0, SIZE)) == [(0, SIZE, False)]


def test_holes_are_left_out_of_what_holds_data(tmp_path: Path) -> None:
    file = tmp_path / "file"
    with file.open("wb") as writing:
        writing.truncate(1 << 24)
        for place in (1 << 20, 3 << 20):
            os.pwrite(writing.fileno(), b"x" * 4096, place)
    with file.open("rb") as reading:
        whole = list(file_extents.data_ranges(reading.fileno(), 0, 1 << 24))
        part = list(file_extents.data_ranges(reading.fileno(), (1 << 20) + 1, 2 << 20))

    assert [start for start, _ in whole] == [1 << 20, 3 << 20]
    assert part == [((1 << 20) + 1, whole[0][1])]


def test_what_has_no_places_says_so() -> None:
    reading, writing = os.pipe()
    try:
        with pytest.raises(OSError, match=r"Operation not supported|Inappropriate ioctl"):
            file_extents.placed(reading, 0, 4096)
    finally:
        os.close(reading)
        os.close(writing)
