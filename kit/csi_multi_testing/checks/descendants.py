"""Copies of copies: each holds its data, whichever of those before or beside it are deleted, and in any order."""

from __future__ import annotations

from csi_multi.contract import Snapshot, Volume
from csi_multi.contract import backend as b

from ..assertions import expect
from ..check import check
from ..context import BLOCK_SIZE, CheckContext, pattern
from ..operations.base import retry
from .creation import expect_unchanged
from .sources import is_served, snapshot_as_source

Member = Volume | Snapshot
ORDERS = ((0, 1), (1, 0))  # of the deletion of the first two of three generations


class Generations:
    """A volume, its copies, and copies of these; each generation has written a block of its own."""

    def __init__(self, t: CheckContext) -> None:
        self.t = t
        self.blocks: dict[str, dict[int, bytes]] = {}  # by handle: what each volume must hold
        self.volumes: dict[str, Volume] = {}

    def add(self, volume: Volume, of: str = "") -> Volume:
        """Take a volume that is a copy of the one with this handle, and write a block to it."""
        number = len(self.blocks)
        own = {number * BLOCK_SIZE: pattern(f"kit generation {number}"), volume.size - BLOCK_SIZE: pattern(f"{number}")}
        self.t.write_pieces(volume, *own.items())
        self.blocks[volume.handle] = {**self.blocks.get(of, {}), **own}
        self.volumes[volume.handle] = volume
        return volume

    def delete(self, one: Member, what: str) -> None:
        """Delete it, or let it be refused; then everything else is as it was."""
        is_volume = isinstance(one, Volume)
        delete = self.t.client.delete if is_volume else self.t.client.delete_snapshot
        gone = retry(lambda: is_served(self.t, delete, one.handle), what)
        if gone:
            self.t.forget(one)
            if is_volume:
                del self.volumes[one.handle]
        self.expect_all(f"{what}, {'served' if gone else 'refused'}")

    def expect_all(self, what: str) -> None:
        for handle, volume in self.volumes.items():
            expect_unchanged(self.t, volume, what)
            wanted = self.blocks[handle]
            found = self.t.read_pieces(volume, *((at, BLOCK_SIZE) for at in wanted))
            lost = [at for at, block in zip(wanted, found, strict=True) if block != wanted[at]]
            number = list(self.blocks).index(handle)
            expect(not lost, f"{what}: volume {number} of {len(self.blocks)} has other data at {lost}")


@check(b.Clone, data=True)
def clones_of_clones_survive_the_deletion_of_those_before_and_beside_them(t: CheckContext) -> None:
    for order in ORDERS:
        generations = Generations(t)
        first = generations.add(t.volume())
        second = generations.add(t.copy(first), first.handle)
        third = generations.add(t.copy(second), second.handle)
        beside = generations.add(t.copy(second), second.handle)
        generations.expect_all("clones of a clone")
        generations.delete(beside, "delete_volume of a clone beside another one")
        for number in order:
            generations.delete((first, second)[number], f"delete_volume of generation {number} of clones")
        generations.add(t.copy(third), third.handle)
        generations.expect_all("another clone of a clone whose sources were deleted")


@check(b.Snapshots, data=True)
def volumes_restored_from_snapshots_of_restored_volumes_survive_the_deletion_of_those_before_them(
    t: CheckContext,
) -> None:
    for order in ((0, 1, 2, 3), (1, 0, 3, 2), (2, 3, 0, 1)):
        generations = Generations(t)
        first = generations.add(t.volume())
        cut = snapshot_as_source(t, first)
        second = generations.add(t.copy(cut), first.handle)
        later = snapshot_as_source(t, second)
        generations.add(t.copy(later), second.handle)
        generations.expect_all("a volume restored from a snapshot of a restored volume")
        members: tuple[tuple[str, Member], ...] = (
            ("the first volume", first),
            ("its snapshot", cut),
            ("the volume restored from that", second),
            ("the snapshot of that one", later),
        )
        for number in order:
            text, one = members[number]
            generations.delete(one, f"the deletion of {text}, in the order {order}")
