"""Chains of snapshots and copies, which share blocks or layers where the storage is copy-on-write.

A snapshot may add a layer to its source, and a deletion may merge two. Whatever the order of deletions, the rest keeps
its data, and nothing stays or piles up.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from csi_multi.contract import Snapshot, Volume
from csi_multi.contract import backend as b

from ..assertions import expect, same
from ..check import check
from ..context import CheckContext
from ..counting import expect_nothing_left
from ..operations.base import retry
from ..operations.create import source_volume
from .sources import is_served, snapshot_as_source

LENGTH = 4  # snapshots of a chain
ORDERS_SECONDS = 2.0  # for all orders together; one is always tried
USUAL_ORDERS = ((1, 2, 0, 3), (0, 1, 2, 3), (3, 2, 1, 0))  # from within, oldest first, newest first
CYCLES = 5  # of creation and deletion; also the attempts to delete what depends on each other


class Chain:
    """A volume with snapshots, written before each, and copies of every other snapshot, which are written too."""

    def __init__(self, t: CheckContext) -> None:
        self.t = t
        self.volume = t.volume()
        self.snapshots: list[Snapshot] = []
        self.copies: dict[str, Volume] = {}  # by the seed of their data
        for number in range(LENGTH):
            t.fill(self.volume, f"kit {number}")
            self.snapshots.append(snapshot_as_source(t, self.volume))
            if number % 2 == 0:
                self.copies[f"kit copy {number}"] = t.copy(self.snapshots[number])
                t.fill(self.copies[f"kit copy {number}"], f"kit copy {number}")
        t.fill(self.volume, "kit now")

    def delete(self, order: tuple[int, ...]) -> None:
        """Delete the snapshots in this order, then the rest.

        Before each deletion the snapshot that is deleted next, the volume and the copies are compared, and after the
        last one the volume and the copies.
        """
        refused: list[int] = []
        for position, number in enumerate(order):
            what = self._state(order[:position], refused)
            self._expect_snapshot(number, what)
            self._expect_volumes(what)
            if is_served(self.t, self.t.client.delete_snapshot, self.snapshots[number].handle):
                self.t.forget(self.snapshots[number])
            else:
                refused.append(number)
        self._expect_volumes(self._state(order, refused))
        self._remove_rest([self.snapshots[number] for number in refused])

    def _state(self, tried: tuple[int, ...], refused: list[int]) -> str:
        """Return, for messages, what is deleted so far."""
        gone = [str(number) for number in tried if number not in refused]
        deleted = f"snapshots {', '.join(gone)} deleted" if gone else "no snapshot deleted"
        return f"a chain of snapshots 0 to {LENGTH - 1} with copies, {deleted}"

    def _expect_snapshot(self, number: int, what: str) -> None:
        t = self.t
        restored = retry(partial(t.copy, self.snapshots[number]), f"{what}, then restore_volume of snapshot {number}")
        t.expect_filled(restored, f"kit {number}", self.volume.size, f"{what}, then snapshot {number}")
        retry(partial(t.client.delete, restored.handle), f"{what}, then delete_volume of a restored volume")
        t.forget(restored)

    def _expect_volumes(self, what: str) -> None:
        self.t.expect_filled(self.volume, "kit now", self.volume.size, f"{what}, then the volume")
        for seed, copy in self.copies.items():
            self.t.expect_filled(copy, seed, copy.size, f"{what}, then a copy")

    def _remove_rest(self, refused: list[Snapshot]) -> None:
        """Delete the rest, copies first: they may be why a deletion was refused."""
        rest: list[Volume | Snapshot] = [*self.copies.values(), *reversed(refused), self.volume]
        for _ in range(CYCLES):
            for one in list(rest):
                delete = self.t.client.delete if isinstance(one, Volume) else self.t.client.delete_snapshot
                if is_served(self.t, delete, one.handle):
                    rest.remove(one)
                    self.t.forget(one)


@check(b.Snapshots, data=True)
def the_snapshots_of_a_chain_are_deleted_in_any_order(t: CheckContext) -> None:
    """As many orders as fit into the time, judged by the slowest so far; all of them with Storage.complete."""
    before, rest = t.resources(), set(itertools.permutations(range(LENGTH))) - set(USUAL_ORDERS)
    orders = [*USUAL_ORDERS, *sorted(rest)]
    begun, slowest, tried = time.monotonic(), 0.0, 0
    for order in orders:
        started = time.monotonic()
        if tried and not t.storage.complete and started + slowest > begun + ORDERS_SECONDS:
            break
        Chain(t).delete(order)
        numbers = ", ".join(map(str, order))
        expect_nothing_left(t, before, f"a chain of snapshots, deleted in the order {numbers}, then copies and volume")
        slowest, tried = max(slowest, time.monotonic() - started), tried + 1
    t.note(f"orders tried: {tried} of {len(orders)}")


def expect_no_growth(t: CheckContext, what: str, cycle: Callable[[], Any]) -> None:
    """A first cycle may leave a layer. Later ones must not add to it: a volume is backed up every night."""
    cycle()
    first = t.resources()
    for _ in range(CYCLES):
        cycle()
    more = t.resources()
    added = ", ".join(sorted(more - first)[:10])
    expect(len(more) <= len(first), f"{what}, {CYCLES} times: {len(more) - len(first)} more resources: {added}")


@check(b.Snapshots)
def snapshots_that_come_and_go_leave_nothing_with_their_volume(t: CheckContext) -> None:
    volume = source_volume(t)

    def cycle() -> None:
        snapshot = snapshot_as_source(t, volume)
        t.delete(snapshot)

    expect_no_growth(t, "create_snapshot and delete_snapshot", cycle)
    same(t.client.get(volume.handle), volume, "create_snapshot and delete_snapshot, often, then get_volume")


@check(b.Clone)
def clones_that_come_and_go_leave_nothing_with_their_source(t: CheckContext) -> None:
    volume = source_volume(t)

    def cycle() -> None:
        copy = t.copy(volume)
        t.delete(copy)

    expect_no_growth(t, "clone_volume and delete_volume of the clone", cycle)
    same(t.client.get(volume.handle), volume, "clone_volume and delete_volume of the clone, often, then get_volume")
