"""Copies of much data: all of it is compared, also where one system call or one chunk copies a part only."""

from __future__ import annotations

from collections.abc import Iterator

from csi_multi.contract import backend as b

from ..assertions import CheckFailed, CheckSkipped, expect
from ..check import check
from ..context import BLOCK_SIZE, CheckContext
from ..protocol import Target
from ..short_transfers import TRANSFERS, short_transfers
from ..storage import MIB
from .sources import ChooseSource, method, snapshot_as_source, volume_as_source

PARTS = 16  # system calls at least for a copy of the data
PART = 64 << 10  # bytes at most of one of them
DATA = 130 * MIB  # without a hole, more than two chunks of 64 MiB
PIECE = 10 * MIB  # of the data, read or written at once
BOUNDARIES = (2 << 30, 4 << 30)  # bytes: of one system call, of a number of 32 bits
SAMPLES = 100  # of what was never written

Place = tuple[int, int]  # offset and length


def numbered(place: Place) -> bytes:
    """Return data of which each block says where it is, and none is zeros."""
    offset, length = place
    blocks = range(offset // BLOCK_SIZE, (offset + length) // BLOCK_SIZE)
    return b"".join((number + 1).to_bytes(8, "big") * (BLOCK_SIZE // 8) for number in blocks)


def pieces(start: int, end: int) -> Iterator[Place]:
    for offset in range(start, end, PIECE):
        yield offset, min(PIECE, end - offset)


def expect_numbered(found: bytes, place: Place, what: str) -> None:
    wanted = numbered(place)
    if found == wanted:
        return
    first = next(at for at in range(0, place[1], BLOCK_SIZE) if found[at : at + BLOCK_SIZE] != wanted[at:][:BLOCK_SIZE])
    holds = "other data" if any(found[first : first + BLOCK_SIZE]) else "zeros"
    raise CheckFailed(
        f"{what}: the copy has {holds} at {place[0] + first}, its source has data there; copy until all is copied: a "
        "call may copy less than was asked for"
    )


def expect_complete_by_parts(t: CheckContext, choose_source: ChooseSource) -> None:
    """As after a signal, over a network, or of more than 2 GiB: the system calls return early, without an error."""
    volume = t.volume()
    data = (0, min(PARTS * PART, volume.size) // BLOCK_SIZE * BLOCK_SIZE)
    part = max(BLOCK_SIZE, data[1] // PARTS // BLOCK_SIZE * BLOCK_SIZE)
    t.write_pieces(volume, (0, numbered(data)))
    with short_transfers(part) as shortened:
        of = choose_source(t, volume)
        copy = t.copy(of)

    calls = f", while each {' and '.join(sorted(shortened))} was of {part} bytes at most" if shortened else ""
    expect_numbered(t.read(copy, data[1]), data, f"{method(of)}{calls}")
    if not shortened:
        raise CheckSkipped(f"the copy calls none of os.{', os.'.join(TRANSFERS)} for more than {part} bytes")


@check(b.Clone, data=True, target=Target.BACKEND)
def a_clone_is_complete_where_each_system_call_copies_a_part(t: CheckContext) -> None:
    expect_complete_by_parts(t, volume_as_source)


@check(b.Snapshots, data=True, target=Target.BACKEND)
def a_restored_volume_is_complete_where_each_system_call_copies_a_part(t: CheckContext) -> None:
    expect_complete_by_parts(t, snapshot_as_source)


def expect_large_copied(t: CheckContext, choose_source: ChooseSource) -> None:
    volume = t.volume(size=t.storage.large)
    end = volume.size // BLOCK_SIZE * BLOCK_SIZE
    data = list(pieces(0, min(DATA, end // 2)))
    marks = [(offset, BLOCK_SIZE) for offset in marked(end)]
    t.write_pieces(volume, *((place[0], numbered(place)) for place in (*data, *marks)))
    of = choose_source(t, volume)
    copy = t.copy(of)

    expect(copy.size >= volume.size, f"{method(of)}: the copy has {copy.size} bytes, its source {volume.size}")
    what = f"{method(of)} of {volume.size} bytes"
    holes = [place for place in samples(sum(data[-1]), end) if place not in marks]
    places = (*data, *marks, *holes)
    for place, found in zip(places, t.read_pieces(copy, *places), strict=True):
        if place not in holes:
            expect_numbered(found, place, what)
        expect(
            place not in holes or not any(found),
            f"{what}: the copy has data at {place[0]}, where its source reads as zeros",
        )


def marked(end: int) -> list[int]:
    """Return the blocks on both sides of each boundary, and the last one."""
    sides = [at for boundary in BOUNDARIES for at in (boundary - BLOCK_SIZE, boundary)]
    return [*(at for at in sides if at < end - BLOCK_SIZE), end - BLOCK_SIZE]


def samples(start: int, end: int) -> list[Place]:
    """Return blocks between these offsets, the first and those beside marks among them."""
    step = max(BLOCK_SIZE, (end - start) // SAMPLES // BLOCK_SIZE * BLOCK_SIZE)
    beside = {at + side for at in marked(end) for side in (-BLOCK_SIZE, BLOCK_SIZE)}
    return [(at, BLOCK_SIZE) for at in sorted({*range(start, end, step), *beside}) if start <= at < end]


@check(b.Clone, needs=("large",), data=True)
def a_large_clone_holds_all_data_of_its_source(t: CheckContext) -> None:
    expect_large_copied(t, volume_as_source)


@check(b.Snapshots, needs=("large",), data=True)
def a_large_restored_volume_holds_all_data_of_its_snapshot(t: CheckContext) -> None:
    expect_large_copied(t, snapshot_as_source)
