"""What is refused for lack of space has taken nothing: the capacity is afterwards what it was before.

A promise that stays (a quota, a registration with the new size) is on no volume that anybody sees, and takes its space
for ever. A refusal is final, so nobody repeats the request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from csi_multi.contract import ResourceExhausted, SizeRange, Volume
from csi_multi.contract import backend as b

from ..assertions import CheckFailed, CheckSkipped, same
from ..check import check
from ..context import CheckContext
from ..fault_injection import FaultInjector
from ..in_process import InProcessClient
from ..occupied_space import NO_LIMIT
from ..operations.base import attempt, wait_until_ready
from ..protocol import Target
from .capacity import MAX_SIZE_FACTOR, TRIES, largest_that_is_quick, report_of_free_space
from .full_storage import NO_SPACE, refusal
from .sources import expect_success

Ask = Callable[[], object]
Requests = Callable[[CheckContext, Volume], Iterator[tuple[str, Ask]]]


def too_much(t: CheckContext) -> int:
    """Return bytes for which there is no space, though a volume may have them. Raises CheckSkipped where all is."""
    if t.storage.overcommitted:
        raise CheckSkipped("Storage.overcommitted: the storage promises its space any number of times")
    free = report_of_free_space(t).available
    size = free + (t.size if free <= MAX_SIZE_FACTOR * t.size else free)  # others may free some on large storage
    if size > NO_LIMIT:
        raise CheckSkipped("capacity() reports no limit")
    return size


def free_spaces(t: CheckContext) -> dict[str, int]:
    """Return what is available, as this process and another one see it."""
    other = InProcessClient(t.storage, FaultInjector())
    found = {"": t.client.capacity().available, ", in another process": other.capacity().available}
    other.close()
    return found


def expect_nothing_kept(t: CheckContext, make: Callable[[], Volume], requests: Requests) -> None:
    """Make requests beside a new volume; require that those that are refused leave the capacity as it was.

    Others may use space meanwhile: it fails when the capacity has fallen each time, or is gone.
    """
    changes: list[str] = []
    for _ in range(TRIES):
        try:
            volume = make()
            change = _change(t, volume, requests)
        except (CheckSkipped, ResourceExhausted):  # no space for the next try: what was refused has it
            if changes:
                break
            raise
        t.delete(volume)
        if not change:
            return
        changes.append(change)
    raise CheckFailed("; ".join(changes))


def _change(t: CheckContext, volume: Volume, requests: Requests) -> str:
    """Return which request lowered the capacity, and how much; "" if none did."""
    served = []
    for method, ask in requests(t, volume):
        before, there = free_spaces(t), t.new_resources()
        if not refusal(f"{method} for which there is no space", ask, *NO_SPACE):
            served.append(method)
            continue
        same(t.new_resources(), there, f"{method}: refused, but the storage changed")
        for process, found in free_spaces(t).items():
            if before[process] - found > t.size // 2:  # less: what the storage itself notes
                return (
                    f"{method}, refused for lack of space, lowered capacity().available{process} from "
                    f"{before[process]} to {found} bytes, and what was refused must take nothing"
                )
    if served:
        t.note(f"{' and '.join(served)}: served though capacity() reports less")
    return ""


def growth(t: CheckContext, volume: Volume) -> Iterator[tuple[str, Ask]]:
    wanted = SizeRange(required=volume.size + too_much(t))
    yield f"expand_volume to {wanted.required} bytes", partial(t.client.expand, volume.handle, wanted)


def creations(t: CheckContext, volume: Volume) -> Iterator[tuple[str, Ask]]:
    size = volume.size + too_much(t)
    yield f"create_volume of {size} bytes", _removed(t, partial(t.volume, size=size))
    if b.Clone in t.features:
        yield f"clone_volume with {size} bytes", _removed(t, partial(t.copy, volume, size=size))
    if b.Snapshots in t.features:
        snapshot = wait_until_ready(t, t.snapshot(volume))
        size += volume.size
        yield f"restore_volume with {size} bytes", _removed(t, partial(t.copy, snapshot, size=size))
        t.delete(snapshot)


def _removed(t: CheckContext, create: Callable[[], Volume]) -> Ask:
    def ask() -> None:
        made = create()
        t.delete(made)

    return ask


def copies(t: CheckContext, volume: Volume) -> Iterator[tuple[str, Ask]]:
    """Copies of a volume that has more than half of the storage: where a copy takes its size, there is no space."""
    small = t.volume()
    if b.Clone in t.features:
        yield "clone_volume of more than half of the storage", _removed(t, partial(t.copy, volume))
    if b.Snapshots in t.features:
        yield "create_snapshot of more than half of the storage", partial(_snapshot, t, volume)
    if b.GroupSnapshots in t.features:
        yield "create_group_snapshot of more than half of the storage", partial(_group, t, [small, volume])
    t.delete(small)


def _snapshot(t: CheckContext, volume: Volume) -> None:
    made = t.snapshot(volume)
    t.delete(made)


def _group(t: CheckContext, volumes: list[Volume]) -> None:
    made = t.group(volumes)
    t.delete(made)


@check(b.Capacity, b.Expand, target=Target.BACKEND)
def a_growth_that_is_refused_for_lack_of_space_takes_nothing_of_it(t: CheckContext) -> None:
    too_much(t)
    expect_nothing_kept(t, t.volume, growth)
    expect_success("create_volume after a refused expand_volume", t.volume)


@check(b.Capacity, target=Target.BACKEND)
def a_creation_that_is_refused_for_lack_of_space_takes_nothing_of_it(t: CheckContext) -> None:
    too_much(t)
    expect_nothing_kept(t, t.volume, creations)
    expect_success("create_volume after a refused one", t.volume)


@check(b.Capacity, target=Target.BACKEND)
def a_copy_that_is_refused_for_lack_of_space_takes_nothing_of_it(t: CheckContext) -> None:
    if not {b.Clone, b.Snapshots} & set(t.features):
        raise CheckSkipped("the backend declares neither Snapshots nor Clone")
    if t.storage.overcommitted:
        raise CheckSkipped("Storage.overcommitted: the storage promises its space any number of times")
    half = largest_that_is_quick(t) // 2 + t.size

    def make() -> Volume:
        volume, error = attempt(partial(t.volume, size=half))
        if not volume:
            raise CheckSkipped(f"a volume of more than half of the capacity cannot be created: {error}") from error
        return volume

    expect_nothing_kept(t, make, copies)
