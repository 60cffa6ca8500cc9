"""Space and names that are used again: nothing of an earlier volume shows in a later one."""

from __future__ import annotations

from csi_multi.contract import Blank, Volume
from csi_multi.contract import backend as b

from ..assertions import CheckSkipped, expect
from ..check import check
from ..context import BLOCK_SIZE, CheckContext, pattern
from ..operations.create import source_volume
from ..protocol import Target
from .sources import ChooseSource, method, snapshot_as_source, volume_as_source

PLACES = 64  # blocks of a volume that are written and read, from the first to the last


def places(start: int, end: int) -> list[int]:
    """Return the offsets of blocks between these offsets, the first and the last among them."""
    first, last = -(-start // BLOCK_SIZE), end // BLOCK_SIZE - 1
    return sorted({(first + (last - first) * number // (PLACES - 1)) * BLOCK_SIZE for number in range(PLACES)})


def leave_used_space(t: CheckContext, name: str = "", size: int | None = None) -> None:
    """Create a volume, write all over it, and delete it: its space and its name are free again."""
    used = t.volume(name, size)
    t.write_pieces(used, *((at, pattern(f"kit used {at}")) for at in places(0, used.size)))
    t.delete(used)


def read_blocks(t: CheckContext, volume: Volume, offsets: list[int]) -> list[bytes]:
    return t.read_pieces(volume, *((at, BLOCK_SIZE) for at in offsets))


def require_zeros(t: CheckContext, volume: Volume) -> None:
    """Raise CheckSkipped for storage where unwritten space may hold anything."""
    if t.storage.read:
        return
    with t.in_process.open_device(volume.handle) as device:
        if device.blank is not Blank.ZEROED:
            raise CheckSkipped(
                f"only for storage whose unwritten space reads as zeros: Device.blank of a new volume is {device.blank}"
            )


def expect_zeros(t: CheckContext, volume: Volume, offsets: list[int], what: str) -> None:
    used = [at for at, block in zip(offsets, read_blocks(t, volume, offsets), strict=True) if any(block)]
    expect(
        not used,
        f"{what}: {len(used)} of {len(offsets)} blocks are not zero, the first of them at {used[:1]}; it shows what an "
        "earlier volume had written there",
    )


@check(data=True, target=Target.BACKEND)
def a_new_volume_shows_nothing_of_a_deleted_one(t: CheckContext) -> None:
    """Neither under its name nor under another. All of the volume is looked at, not only its ends."""
    name = t.name()
    require_zeros(t, t.volume())
    for number in range(2):
        leave_used_space(t, "" if number else name)
    for again in (name, t.name()):
        made = t.volume(again)
        what = f"a new volume, after {'its name was' if again == name else 'other'} space was used and freed"
        expect_zeros(t, made, places(0, made.size), what)


def expect_equal_everywhere(t: CheckContext, choose_source: ChooseSource) -> None:
    """Who leaves out zeros while he copies needs a copy that is zero before."""
    for _ in range(3):  # for the source, a snapshot of it, and the copy
        leave_used_space(t)
    volume = source_volume(t)
    offsets = places(0, volume.size)
    wanted = read_blocks(t, volume, offsets)
    of = choose_source(t, volume)
    for _ in range(2):
        leave_used_space(t)
    found = read_blocks(t, t.copy(of), offsets)
    wrong = [at for at, one, other in zip(offsets, found, wanted, strict=True) if one != other]
    expect(
        not wrong,
        f"{method(of)}, on space that was used before: the copy has other data than its source at {wrong[:5]}; its "
        "source was never written there",
    )


@check(b.Clone, data=True)
def a_clone_equals_its_source_also_where_that_was_never_written(t: CheckContext) -> None:
    expect_equal_everywhere(t, volume_as_source)


@check(b.Snapshots, data=True)
def a_restored_volume_equals_its_snapshot_also_where_that_was_never_written(t: CheckContext) -> None:
    expect_equal_everywhere(t, snapshot_as_source)
