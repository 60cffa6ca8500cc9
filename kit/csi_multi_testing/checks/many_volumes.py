"""Many volumes at once, of different names: each request is served as if it were alone, and lists stay complete.

An orchestrator that starts, or a node that fails, makes such bursts.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from csi_multi.contract import NotFound, Page, ResourceExhausted, Volume
from csi_multi.contract import backend as b

from ..assertions import CheckSkipped, expect, same
from ..check import check
from ..concurrency import TIME_LIMIT, run_concurrently
from ..context import CheckContext, pages
from ..counting import expect_nothing_left
from ..operations.base import retry
from .creation import expect_equal_records

MANY_VOLUMES = 50
FEW_VOLUMES = 8  # on storage where one creation takes seconds
BURST_SECONDS = 15.0  # for all of the creations of a burst, one after the other
PAGE_SIZE = 3
PATIENCE = 4  # times what the creations and deletions of a burst take one after the other: its time limit


@dataclass(frozen=True)
class Burst:
    """How many volumes are created and deleted at once, and the time for it."""

    count: int
    seconds: float  # the time limit of all creations, or deletions, together

    def make_calls(self, what: str, calls: list[Callable[[], Any]]) -> list[Any]:
        """Make these calls at once and return their answers in order.

        Each is repeated for most of the time while its error is retryable: all may wait for one lock of the storage.
        """
        repeated = [(what, partial(retry, one, what, 0.8 * self.seconds)) for one in calls]
        results = run_concurrently(repeated, self.seconds)
        for one in results:
            if one.error:
                _skip_if_full(one.error, len(calls))
                raise one.error
        return [one.answer for one in results]

    def create(self, t: CheckContext) -> list[Volume]:
        specs = [t.spec() for _ in range(self.count)]
        return self.make_calls(f"create_volume, {self.count} at once", [partial(t.create, spec) for spec in specs])

    def delete(self, t: CheckContext, volumes: list[Volume]) -> None:
        what = f"delete_volume, {len(volumes)} at once"
        self.make_calls(what, [partial(t.client.delete, volume.handle) for volume in volumes])
        for volume in volumes:
            expect_gone(t, volume, f"{what}, then get_volume", self.seconds)
        t.forget(*volumes)


def suitable_burst(t: CheckContext, share: float = 1.0) -> Burst:
    """Return this share of many volumes, or of fewer where their creation would take too long."""
    started = time.monotonic()
    volume = t.volume()
    t.delete(volume)
    taken = max(time.monotonic() - started, 0.001)
    count = max(FEW_VOLUMES, int(share * min(MANY_VOLUMES, BURST_SECONDS / taken)))
    t.note(f"{count} volumes at once")
    return Burst(count, max(TIME_LIMIT, count * taken * PATIENCE))


def _skip_if_full(error: BaseException, count: int) -> None:
    if isinstance(error.__cause__, ResourceExhausted):
        raise CheckSkipped(f"the storage has no space for {count} volumes of Storage.size") from error


def expect_gone(t: CheckContext, volume: Volume, what: str, seconds: float) -> None:
    """Require that the volume is not found; others may hold the lock of the storage for some time."""

    def read() -> Volume | None:
        try:
            return t.client.get(volume.handle)
        except NotFound:
            return None

    found = retry(read, what, seconds)
    expect(found is None, f"{what}: found {found!r}, the contract requires NotFound")


def expect_listed(
    t: CheckContext, wanted: set[str], gone: set[str], limit: int, what: str, seconds: float = 0.0
) -> None:
    """Require a list with all of these handles, each once, and none that is gone; try each page for some time."""
    what = f"list_volumes with {limit or 'no'} limit, {what}"

    def page(cursor: str, limit: int) -> Page[Volume]:
        return retry(partial(t.client.list_volumes, cursor, limit), what, seconds)

    found = Counter(one.handle for one in pages(page, limit))
    twice = sorted(handle for handle, number in found.items() if number > 1)
    expect(not twice, f"{what}: twice in one list: {', '.join(twice[:5])}")
    missing = sorted(wanted - found.keys())
    expect(not missing, f"{what}: {len(missing)} of {len(wanted)} are missing: {', '.join(missing[:5])}")
    left = sorted(gone & found.keys())
    expect(not left, f"{what}: still listed after they were deleted: {', '.join(left[:5])}")


@check()
def many_volumes_are_created_and_deleted_at_once(t: CheckContext) -> None:
    burst = suitable_burst(t)
    before = t.resources()
    alone = t.volume()
    with_one = t.resources()
    each = len(with_one - before)
    made = burst.create(t)

    what = f"create_volume, {burst.count} at once"
    same(len({one.handle for one in made}), burst.count, f"{what}: the number of different handles")
    for volume in made:
        found = retry(partial(t.client.get, volume.handle), f"{what}, then get_volume")
        expect_equal_records(found, volume, f"{what}, then get_volume")
    new = len(t.resources() - before)
    right = each * (burst.count + 1)
    expect(new == right, f"{what}: the storage has {new} new resources, {each} for each volume are right")
    burst.delete(t, made)
    expect_nothing_left(t, with_one, f"delete_volume, {burst.count} at once")
    expect_equal_records(t.client.get(alone.handle), alone, "many others were created and deleted, then get_volume")


@dataclass
class Changes:
    """Volumes that are deleted and created again and again, until each list was made once beside that."""

    t: CheckContext
    burst: Burst
    present: list[Volume]
    deleted: set[str] = field(default_factory=set)  # handles
    finished: threading.Event = field(default_factory=threading.Event)
    listed: dict[int, threading.Event] = field(
        default_factory=lambda: {limit: threading.Event() for limit in (0, PAGE_SIZE)}
    )

    def run(self) -> None:
        ends = time.monotonic() + self.burst.seconds
        try:
            while True:
                self.burst.delete(self.t, self.present)
                self.deleted |= {one.handle for one in self.present}
                self.present = self.burst.create(self.t)
                if all(one.is_set() for one in self.listed.values()) or time.monotonic() > ends:
                    break
        finally:
            self.finished.set()

    def list_beside(self, stay: set[str], limit: int) -> None:
        """List these volumes, which are not changed, as long as others are."""
        try:
            while not self.finished.is_set():
                what = "while others are created and deleted"
                expect_listed(self.t, stay, set(), limit, what, self.burst.seconds)
                self.listed[limit].set()
        finally:
            self.listed[limit].set()


@check(b.ListVolumes)
def lists_are_complete_while_many_volumes_are_created_and_deleted(t: CheckContext) -> None:
    burst = suitable_burst(t, share=0.5)
    made = burst.create(t)
    stay = {one.handle for one in made[::3]}
    changes = Changes(t, burst, [one for number, one in enumerate(made) if number % 3])

    results = run_concurrently(
        [("others are created and deleted", changes.run)]
        + [("list_volumes, while others are", partial(changes.list_beside, stay, limit)) for limit in changes.listed],
        3 * burst.seconds,
    )
    for one in results:
        if one.error:
            raise one.error

    present = {one.handle for one in changes.present}
    for limit in changes.listed:
        gone = changes.deleted - present
        expect_listed(t, stay | present, gone, limit, "after others were created and deleted")
