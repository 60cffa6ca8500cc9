"""Creations at one moment beside a capacity that is enough for one of them: together they get no more than there is.

Whoever looks at what is left and takes it later gives the same space to several, here or in two processes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from csi_multi.contract import OutOfRange, ResourceExhausted, SizeRange, Snapshot, Volume
from csi_multi.contract import backend as b

from ..assertions import CheckSkipped, expect
from ..check import check
from ..concurrency import NamedCall, expect_answers, run_concurrently
from ..context import CheckContext, source
from ..operations.base import wait_until_ready
from ..protocol import Target
from ..waiting import wait_for
from .capacity import largest, largest_that_is_quick, require_single_promises
from .shared_space import written_volume
from .two_processes import another_process

AT_ONCE = 4
ROUNDS = 4
SECONDS = 2.0  # for each kind of creation, after which no further round begins
FREED_SECONDS = 5.0  # until a filesystem has freed what was deleted
LEFT = 2  # times Storage.size that are left for all of them
SHARE = 0.6  # of what is left, for each

Create = Callable[[Any, str], Volume | Snapshot]  # (client, name)


@dataclass(frozen=True)
class Race:
    """One kind of creation; each takes `size` bytes of the capacity."""

    method: str
    size: int
    create: Create


def rounds() -> Iterator[int]:
    """Yield the numbers of the rounds: several, on slow storage one."""
    ends = time.monotonic() + SECONDS
    for number in range(ROUNDS):
        if number and time.monotonic() > ends:
            return
        yield number


def leave_little(t: CheckContext, least: int) -> list[Volume]:
    """Create a volume that takes all of the capacity but this, if it needs one; return it. Raises CheckSkipped."""
    size = largest(t.client.capacity()) - least
    made = [t.volume(size=size)] if size >= t.size else []
    left = t.client.capacity().available
    if left > 2 * least:
        raise CheckSkipped(
            f"beside a volume of {size} bytes {left} bytes are left, which is more than this check can use up"
        )
    return made


def races(t: CheckContext) -> Iterator[Race]:
    """Yield each kind of creation that takes space, with its sources made before the space is taken."""
    size = int(LEFT * t.size * SHARE)
    copies: list[Race] = []
    if b.Clone in t.features or b.Snapshots in t.features:
        volume = t.volume(size=size) if t.no_data_reason() else written_volume(t, size)
        if b.Clone in t.features:
            copies.append(Race("clone_volume", volume.size, partial(_copy, t, volume)))
        if b.Snapshots in t.features:
            cut = wait_until_ready(t, t.snapshot(volume))
            copies.append(Race("restore_volume", volume.size, partial(_copy, t, cut)))
            if _takes_space_again(t, volume):
                copies.append(Race("create_snapshot", volume.size, partial(_cut, volume)))
    yield Race("create_volume", size, partial(_volume, t, size))
    yield from copies


def _takes_space_again(t: CheckContext, volume: Volume) -> bool:
    """Whether a second snapshot takes space too: what it shares with the first one need not be promised twice."""
    if t.storage.snapshots:
        return False  # there would be too many of one volume
    before = t.client.capacity().available
    second = wait_until_ready(t, t.snapshot(volume))
    taken = before - t.client.capacity().available
    t.delete(second)
    return taken >= volume.size // 2


def _volume(t: CheckContext, size: int, client: Any, name: str) -> Volume:
    made: Volume = client.create(t.spec(name, size))
    return made


def _copy(t: CheckContext, of: Volume | Snapshot, client: Any, name: str) -> Volume:
    made: Volume = client.create(t.spec(name, 0, source=source(of)))
    return made


def _cut(volume: Volume, client: Any, name: str) -> Snapshot:
    made: Snapshot = client.snapshot(name, volume.handle)
    return made


def expect_no_more_than_left(t: CheckContext, race: Race, left: int) -> int:
    """Create at once from two processes, and delete again; return how many succeeded."""
    clients = (t.client, another_process(t))
    calls: list[NamedCall] = [
        (race.method, partial(race.create, clients[number % len(clients)], t.name())) for number in range(AT_ONCE)
    ]
    made = expect_answers(t, run_concurrently(calls), ResourceExhausted, OutOfRange)
    t.register(*made)
    given = sum(one.size for one in made)
    # What still has as much as before shares more than the report said: capacity() may say less than there is.
    shared = t.client.capacity().available >= t.size // 2
    t.delete(*made)
    fits = given <= left or shared or given <= space_again(t, given)
    expect(fits, f"{len(made)} of {AT_ONCE} {_too_much(race.method, given, left)}")
    return len(made)


def space_again(t: CheckContext, wanted: int) -> int:
    """Return the capacity when all was deleted again; a filesystem may have been about to free some before it."""
    return wait_for(lambda: t.client.capacity().available, lambda found: found >= wanted, FREED_SECONDS)


@check(b.Capacity, target=Target.BACKEND)
def creations_at_once_get_no_more_than_the_capacity(t: CheckContext) -> None:
    require_single_promises(t)
    largest_that_is_quick(t)
    kinds = list(races(t))
    least = LEFT * t.size
    leave_little(t, least)
    for race in kinds:
        served = []
        for _ in rounds():
            left = t.client.capacity().available
            served.append(expect_no_more_than_left(t, race, left))
        t.note(f"{race.method} beside {left} bytes that are left, {AT_ONCE} at once, served: {served}")


@check(b.Capacity, b.Expand, target=Target.BACKEND)
def expansions_at_once_get_no_more_than_the_capacity(t: CheckContext) -> None:
    require_single_promises(t)
    largest_that_is_quick(t)
    if t.in_process.grows_only_attached:
        raise CheckSkipped("this check expands volumes that are not attached, which Expand.offline = False excludes")
    more, clients, served = int(LEFT * t.size * SHARE), (t.client, another_process(t)), []
    for _ in rounds():
        volumes = [t.volume() for _ in range(AT_ONCE)]
        filler = leave_little(t, LEFT * t.size)
        left = t.client.capacity().available
        calls: list[NamedCall] = [
            ("expand_volume", partial(clients[number % 2].expand, one.handle, SizeRange(required=one.size + more)))
            for number, one in enumerate(volumes)
        ]
        done = expect_answers(t, run_concurrently(calls), ResourceExhausted, OutOfRange)
        grown = sum(t.client.get(one.handle).size - one.size for one in volumes)
        served.append(len(done))
        t.delete(*volumes)
        given_before = sum(one.size for one in volumes)
        fits = grown <= left or grown <= space_again(t, grown + given_before) - given_before
        expect(fits, f"{len(done)} of {AT_ONCE} {_too_much('expand_volume', grown, left)}")
        t.delete(*filler)
    t.note(f"expand_volume beside {left} bytes that are left, {AT_ONCE} at once, served: {served}")


def _too_much(method: str, given: int, left: int) -> str:
    text = f"calls of {method} at once succeeded and got {given} bytes together, but capacity() had {left} bytes "
    return f"{text}before: look at what is left and take it under one lock, for all processes"
