"""Zeros that replace data are data: they hide what a snapshot or a source holds in the same place."""

from __future__ import annotations

from collections.abc import Callable

from csi_multi.contract import Snapshot, Volume
from csi_multi.contract import backend as b

from ..assertions import expect
from ..check import check
from ..context import BLOCK_SIZE, CheckContext, pattern
from .blocks import ZEROING, zero
from .sources import method, snapshot_as_source, volume_as_source

WAYS = ("a write of zeros", *ZEROING)
MakeCopy = Callable[[CheckContext, Volume], Volume]


def place(number: int) -> int:
    return 2 * number * BLOCK_SIZE  # bytes; blocks of data are between them


def with_data(t: CheckContext) -> Volume:
    volume = t.volume()
    t.write_pieces(volume, *((at * BLOCK_SIZE, pattern(f"kit {at}")) for at in range(2 * len(WAYS))))
    return volume


def put_zeros(t: CheckContext, volume: Volume) -> list[int]:
    """Zero a block in each way; return which of them read as zeros: a discard may leave the data."""
    for number, way in enumerate(WAYS):
        if number == 0:
            t.write(volume, bytes(BLOCK_SIZE), place(number))
        elif not zero(t, volume, way, place(number), BLOCK_SIZE):
            t.note(f"the device does not accept {way}")
    found = t.read_pieces(volume, *((place(number), BLOCK_SIZE) for number in range(len(WAYS))))
    expect(not any(found[0]), f"zeros were written at {place(0)}, and are not there when the volume is read again")
    return [number for number, block in enumerate(found) if not any(block)]


def expect_zeroed(t: CheckContext, volume: Volume, zeroed: list[int], what: str) -> None:
    """Require zeros in these places, and data in the blocks beside them."""
    found = t.read_pieces(volume, *((at * BLOCK_SIZE, BLOCK_SIZE) for at in range(2 * len(WAYS))))
    for number in zeroed:
        at, way = place(number), WAYS[number]
        expect(not any(found[2 * number]), f"{what}: the data at {at} that {way} had replaced is there again")
    for at in range(1, 2 * len(WAYS), 2):
        expect(found[at] == pattern(f"kit {at}"), f"{what}: the data at {at * BLOCK_SIZE} is lost, beside zeros")


def expect_data(t: CheckContext, volume: Volume, what: str) -> None:
    for at, found in enumerate(t.read_pieces(volume, *((at * BLOCK_SIZE, BLOCK_SIZE) for at in range(2 * len(WAYS))))):
        expect(found == pattern(f"kit {at}"), f"{what}: the data at {at * BLOCK_SIZE} has changed")


def expect_zeros_kept(t: CheckContext, of: Volume | Snapshot, volume: Volume, make_copy: MakeCopy, what: str) -> None:
    """Zero blocks of a volume that shares them with `of`; neither it nor its copies get them back."""
    zeroed = put_zeros(t, volume)
    t.client.restart()
    expect_zeroed(t, volume, zeroed, f"{what}, whose blocks were zeroed")
    expect_zeroed(t, make_copy(t, volume), zeroed, f"{what}, whose blocks were zeroed, then a copy of it")
    expect_data(t, t.copy(of), f"{what}, whose blocks were zeroed, then {method(of)} of its source")


def copy_by_snapshot(t: CheckContext, volume: Volume) -> Volume:
    return t.copy(snapshot_as_source(t, volume))


def clone(t: CheckContext, volume: Volume) -> Volume:
    return t.copy(volume_as_source(t, volume))


@check(b.Snapshots, data=True)
def zeros_that_replace_the_data_of_a_snapshot_stay_zeros(t: CheckContext) -> None:
    """In the volume that was cut, and in one that was restored."""
    volume = with_data(t)
    made = snapshot_as_source(t, volume)
    restored = t.copy(made)
    expect_zeros_kept(t, made, volume, copy_by_snapshot, "a volume with a snapshot")
    expect_zeros_kept(t, made, restored, copy_by_snapshot, "a restored volume")


@check(b.Clone, data=True)
def zeros_that_replace_the_data_of_a_clone_stay_zeros(t: CheckContext) -> None:
    volume = with_data(t)
    expect_zeros_kept(t, volume, clone(t, volume), clone, "a clone")
