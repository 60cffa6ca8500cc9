"""Operations that overlap end as if one had come after the other, and none waits for ever.

Within a process the core keeps calls about one id apart (locks.py). Two processes overlap for real while
the orchestrator changes its leader: creations of one name are met that way, too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import methodcaller as call
from typing import Any

from csi_multi.contract import FailedPrecondition, InUse, NotFound, SizeRange
from csi_multi.contract import backend as b

from ..assertions import expect, same
from ..check import On, check
from ..concurrency import Act, Outcome, answers, at_once
from ..context import CheckContext, pages, source
from ..fault_injection import FaultInjector
from ..in_process import InProcess
from ..operations.base import absent, firmly, ready
from ..operations.making import SEED, origin

Asking = Callable[[str], Callable[[Any], Any]]  # for a name, what to ask a door
CROWD = 8
ROUNDS = 3


def makes_one(
    t: CheckContext, words: str, asking: Asking, doors: Callable[[], list[Any]], delete: Callable[[str], None]
) -> None:
    """Let all doors ask for the same, at once: one thing is made, and everybody who gets an answer gets that."""
    several = f"{words}, {CROWD} times at once"
    alone = _resources_of(t, asking(t.name()), delete)
    for _ in range(ROUNDS):
        before = t.resources()
        ask = asking(t.name())
        found = answers(t, at_once([(several, partial(ask, door)) for door in doors()]))
        made = firmly(partial(ask, t.door), f"{several}, and once more")
        t.made(made)
        for one in found:
            same(one.handle, made.handle, f"{several}: a handle that was answered")
        new = t.resources() - before
        expect(len(new) == alone, f"{several}: the storage holds {', '.join(sorted(new)[:10])}, one call makes {alone}")
        firmly(partial(delete, made.handle), f"{several}, then deleted")
        t.forget(made)
        left = t.resources() - before
        expect(not left, f"{several}, then deleted: left behind: {', '.join(sorted(left)[:10])}")


def _resources_of(t: CheckContext, ask: Callable[[Any], Any], delete: Callable[[str], None]) -> int:
    """Return how many resources one undisturbed call makes."""
    before = t.resources()
    made = ask(t.door)
    new = t.resources() - before
    delete(made.handle)
    return len(new)


def processes(t: CheckContext) -> list[Any]:
    """Return doors that share nothing but the storage."""
    return [InProcess(t.storage, FaultInjector()) for _ in range(CROWD)]


@check(on=On.BACKEND)
def processes_that_create_the_same_volume_create_it_once(t: CheckContext) -> None:
    makes_one(t, "create_volume", lambda name: call("create", t.wish(name)), partial(processes, t), t.door.delete)


@check(b.Snapshots, on=On.BACKEND)
def processes_that_create_the_same_snapshot_create_it_once(t: CheckContext) -> None:
    source_handle = t.volume().handle
    delete = t.door.delete_snapshot
    makes_one(t, "create_snapshot", lambda name: call("snapshot", name, source_handle), partial(processes, t), delete)


@check(b.Clone, on=On.BACKEND)
def processes_that_create_the_same_clone_create_it_once(t: CheckContext) -> None:
    origin = source(t.volume())

    def asking(name: str) -> Callable[[Any], Any]:
        return call("create", t.wish(name, 0, source=origin))

    makes_one(t, "clone_volume", asking, partial(processes, t), t.door.delete)


@check()
def threads_that_create_the_same_volume_create_it_once(t: CheckContext) -> None:
    makes_one(t, "create_volume", lambda name: call("create", t.wish(name)), lambda: [t.door] * CROWD, t.door.delete)


@check()
def concurrent_creations_and_deletions_of_one_name_are_serialized(t: CheckContext) -> None:
    wish = t.wish()
    for _ in range(ROUNDS):
        volume = t.create(wish)
        create = ("create_volume, beside a deletion of the name", partial(t.create, wish))
        delete = ("delete_volume, beside a creation of the name", partial(t.door.delete, volume.handle))
        answers(t, at_once([create, delete, create, delete]))
        volume = firmly(partial(t.create, wish), "create_volume, after creations and deletions of the name")
        same(t.door.get(volume.handle), volume, "get_volume, after creations and deletions of the name")
        firmly(partial(t.door.delete, volume.handle), "delete_volume, after a race")
        t.forget(volume)


@check()
def concurrent_deletions_of_one_volume_all_succeed(t: CheckContext) -> None:
    volume = t.volume()

    answers(t, at_once([("delete_volume, several at once", partial(t.door.delete, volume.handle))] * CROWD))

    firmly(partial(t.door.delete, volume.handle), "delete_volume, once more")
    with t.refused(NotFound, what="get_volume after deletions at once"):
        t.door.get(volume.handle)


@check()
def concurrent_operations_on_different_volumes_are_independent(t: CheckContext) -> None:
    old = [t.volume() for _ in range(3)]
    wishes = [t.wish() for _ in range(3)]

    creations = [("create_volume, beside others", partial(t.create, wish)) for wish in wishes]
    deletions = [("delete_volume, beside others", partial(t.door.delete, one.handle)) for one in old[1:]]
    made = at_once([*creations, *deletions])

    answers(t, made)
    for volume in [old[0], *(one.answer for one in made if one.answer)]:
        what = "get_volume of what lives, after work on other volumes"
        same(firmly(partial(t.door.get, volume.handle), what), volume, what)
    for volume in old[1:]:
        firmly(partial(t.door.delete, volume.handle), "delete_volume, repeated")
        absent(partial(t.door.get, volume.handle), "get_volume of what was deleted")


def in_turns(round_: int, acts: list[Act]) -> list[Outcome]:
    """Do these at once. Who starts last tends to be first: let that be another one each time."""
    turn = 1 if round_ % 2 else -1
    return at_once(acts[::turn])[::turn]


@check(b.Expand, b.Snapshots)
def a_concurrent_expansion_and_snapshot_are_serialized(t: CheckContext) -> None:
    volume, name = t.volume(), t.name("cut")
    wanted = SizeRange(required=2 * t.size)

    outcomes = at_once(
        [
            ("expand_volume, beside a snapshot", partial(t.door.expand, volume.handle, wanted)),
            ("create_snapshot, beside a growth", partial(t.snapshot, volume, name)),
        ]
    )

    answers(t, outcomes, FailedPrecondition)  # some storage cannot grow what has snapshots
    growth = ("expand_volume, repeated after a snapshot beside it", partial(t.door.expand, volume.handle, wanted))
    answers(t, at_once([growth]), FailedPrecondition)
    cut = firmly(partial(t.snapshot, volume, name), "create_snapshot, beside a growth, repeated")
    sizes = (volume.size, t.door.get(volume.handle).size)
    expect(
        cut.size in sizes, f"create_snapshot, beside a growth: the snapshot has {cut.size} bytes, neither of {sizes}"
    )


@check(b.Snapshots)
def a_concurrent_snapshot_and_deletion_of_its_source_are_serialized(t: CheckContext) -> None:
    for round_ in range(ROUNDS):
        volume, name = origin(t), t.name("cut")
        outcomes = in_turns(
            round_,
            [
                (
                    "create_snapshot, beside a deletion of its source",
                    partial(t.snapshot, volume, name),
                ),
                ("delete_volume, beside a snapshot of it", partial(t.door.delete, volume.handle)),
            ],
        )
        answers(t, outcomes, NotFound, InUse)
        if not (cut := outcomes[0].answer):
            continue
        if not t.no_data():
            copy = firmly(partial(t.copy, ready(t, cut)), "restore_volume, after the deletion of the source")
            t.expect_filled(copy, SEED, volume.size, "create_snapshot, beside a deletion of its source")


@check(b.Snapshots)
def a_concurrent_restore_and_deletion_of_its_snapshot_are_serialized(t: CheckContext) -> None:
    volume = origin(t)
    for round_ in range(ROUNDS):
        cut = ready(t, t.snapshot(volume))
        wish = t.wish(size=0, source=source(cut))
        outcomes = in_turns(
            round_,
            [
                ("restore_volume, beside a deletion of its snapshot", partial(t.create, wish)),
                ("delete_snapshot, beside a restore of it", partial(t.door.delete_snapshot, cut.handle)),
            ],
        )
        answers(t, outcomes, NotFound, InUse)
        if (copy := outcomes[0].answer) and not t.no_data():
            t.expect_filled(copy, SEED, volume.size, "restore_volume, beside a deletion of its snapshot")


@check(b.ListVolumes)
def existing_volumes_stay_listed_while_others_are_created_and_deleted(t: CheckContext) -> None:
    living = {t.volume().handle, t.volume().handle}
    over = False

    def churn() -> None:
        nonlocal over
        try:
            for _ in range(2 * ROUNDS):
                volume = t.volume()
                t.door.delete(volume.handle)
                t.forget(volume)
        finally:
            over = True

    def look() -> None:
        while not over:
            for limit in (0, 2):
                missing = living - {one.handle for one in pages(t.door.list_volumes, limit)}
                expect(not missing, f"list_volumes, while others come and go: leaves out {sorted(missing)}")

    outcomes = at_once([("volumes that come and go", churn), ("list_volumes, beside them", look)])

    for one in outcomes:
        if isinstance(one.error, AssertionError):
            raise one.error
    answers(t, outcomes)
