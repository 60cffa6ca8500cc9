"""Concurrent operations end as if one had run after the other, and none waits for ever.

Within a process the core runs one call per id at a time (csi_multi.core.locks). Two processes overlap while the
orchestrator changes its leader, so creations of one name are also tested with several processes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import methodcaller as call
from typing import Any

from csi_multi.contract import FailedPrecondition, InUse, NotFound, SizeRange
from csi_multi.contract import backend as b

from ..assertions import expect, same
from ..check import check
from ..concurrency import CallResult, NamedCall, expect_answers, run_concurrently
from ..context import CheckContext, source
from ..counting import added_since, expect_nothing_left
from ..fault_injection import FaultInjector
from ..in_process import InProcessClient
from ..interleaving import second_process
from ..operations.base import expect_not_found, retry, wait_until_ready
from ..operations.create import SEED, source_volume
from ..operations.effects import expect_same_effect, model_of
from ..protocol import Target

RequestFor = Callable[[str], Callable[[Any], Any]]  # for a name, the request to a client
CONCURRENT = 8
ROUNDS = 3


def expect_created_once(
    t: CheckContext,
    label: str,
    request_for: RequestFor,
    clients: Callable[[], list[Any]],
    delete: Callable[[str], None],
) -> None:
    """Let all clients make the same request at once: one resource is created, and every answer is that one."""
    concurrently = f"{label}, {CONCURRENT} times at once"
    per_call = _resources_of(t, request_for(t.name()), delete)
    for _ in range(ROUNDS):
        before = t.resources()
        request, callers = request_for(t.name()), clients()
        found = expect_answers(t, run_concurrently([(concurrently, partial(request, one)) for one in callers]))
        # An orchestrator repeats a call until it is answered, and the same process gets it.
        found += [retry(partial(request, one), f"{concurrently}, and again") for one in callers]
        made = retry(partial(request, t.client), f"{concurrently}, and once more")
        t.register(made)
        for one in found:
            same(one.handle, made.handle, f"{concurrently}: the handle of an answer")
        new = t.resources() - before
        expect(
            added_since(t, before) == per_call,
            f"{concurrently}: the storage holds {', '.join(sorted(new)[:10])}, one call creates {per_call}",
        )
        retry(partial(delete, made.handle), f"{concurrently}, then deleted")
        t.forget(made)
        expect_nothing_left(t, before, f"{concurrently}, then deleted")


def _resources_of(t: CheckContext, request: Callable[[Any], Any], delete: Callable[[str], None]) -> int:
    """Return the number of resources that one call alone creates."""
    before = t.resources()
    made = request(t.client)
    count = added_since(t, before)
    delete(made.handle)
    return count


def processes(t: CheckContext) -> list[Any]:
    """Return clients that share only the storage."""
    return [InProcessClient(t.storage, FaultInjector()) for _ in range(CONCURRENT)]


@check(target=Target.BACKEND)
def processes_that_create_the_same_volume_create_it_once(t: CheckContext) -> None:
    expect_created_once(
        t, "create_volume", lambda name: call("create", t.spec(name)), partial(processes, t), t.client.delete
    )


@check(b.Snapshots, target=Target.BACKEND)
def processes_that_create_the_same_snapshot_create_it_once(t: CheckContext) -> None:
    source_handle = t.volume().handle
    delete = t.client.delete_snapshot
    expect_created_once(
        t, "create_snapshot", lambda name: call("snapshot", name, source_handle), partial(processes, t), delete
    )


@check(b.Clone, target=Target.BACKEND)
def processes_that_create_the_same_clone_create_it_once(t: CheckContext) -> None:
    source_volume = source(t.volume())

    def request_for(name: str) -> Callable[[Any], Any]:
        return call("create", t.spec(name, 0, source=source_volume))

    expect_created_once(t, "clone_volume", request_for, partial(processes, t), t.client.delete)


@check()
def threads_that_create_the_same_volume_create_it_once(t: CheckContext) -> None:
    expect_created_once(
        t, "create_volume", lambda name: call("create", t.spec(name)), lambda: [t.client] * CONCURRENT, t.client.delete
    )


@check()
def concurrent_creations_and_deletions_of_one_name_are_serialized(t: CheckContext) -> None:
    spec = t.spec()
    for _ in range(ROUNDS):
        volume = t.create(spec)
        create = ("create_volume, beside a deletion of the name", partial(t.create, spec))
        delete = ("delete_volume, beside a creation of the name", partial(t.client.delete, volume.handle))
        expect_answers(t, run_concurrently([create, delete, create, delete]))
        volume = retry(partial(t.create, spec), "create_volume, after creations and deletions of the name")
        same(t.client.get(volume.handle), volume, "get_volume, after creations and deletions of the name")
        retry(partial(t.client.delete, volume.handle), "delete_volume, after a race")
        t.forget(volume)


@check()
def concurrent_deletions_of_one_volume_all_succeed(t: CheckContext) -> None:
    volume = t.volume()

    expect_answers(
        t, run_concurrently([("delete_volume, several at once", partial(t.client.delete, volume.handle))] * CONCURRENT)
    )

    retry(partial(t.client.delete, volume.handle), "delete_volume, once more")
    with t.refused(NotFound, what="get_volume after concurrent deletions"):
        t.client.get(volume.handle)


@check()
def concurrent_operations_on_different_volumes_are_independent(t: CheckContext) -> None:
    old = [t.volume() for _ in range(3)]
    specs = [t.spec() for _ in range(3)]

    creations = [("create_volume, beside others", partial(t.create, spec)) for spec in specs]
    deletions = [("delete_volume, beside others", partial(t.client.delete, one.handle)) for one in old[1:]]
    made = run_concurrently([*creations, *deletions])

    expect_answers(t, made)
    for volume in [old[0], *(one.answer for one in made if one.answer)]:
        what = "get_volume of an existing volume, after work on other volumes"
        same(retry(partial(t.client.get, volume.handle), what), volume, what)
    for volume in old[1:]:
        retry(partial(t.client.delete, volume.handle), "delete_volume, repeated")
        expect_not_found(partial(t.client.get, volume.handle), "get_volume after the deletion")


def run_in_changing_order(round_: int, calls: list[NamedCall]) -> list[CallResult]:
    """Run these calls at once, in alternating order: the call that starts last often runs first."""
    turn = 1 if round_ % 2 else -1
    return run_concurrently(calls[::turn])[::turn]


@check()
def unknown_volumes_do_not_hide_others_that_are_read_at_the_same_time(t: CheckContext) -> None:
    """A storage that looks several ids up in one call may refuse all of them if one does not exist."""
    known, gone = [t.volume() for _ in range(CONCURRENT // 2)], t.volume()
    t.delete(gone)
    unknown = ("get_volume of a deleted volume, beside others", partial(t.client.get, gone.handle))
    reads = [("get_volume, beside a deleted volume", partial(t.client.get, one.handle)) for one in known]
    for round_ in range(ROUNDS):
        outcomes = run_in_changing_order(round_, [call for read in reads for call in (read, unknown)])
        for volume, found in zip(known, outcomes[::2], strict=True):
            expect_answers(t, [found])
            same(found.answer or volume, volume, found.label)
        for found in outcomes[1::2]:
            expect_answers(t, [found], NotFound)
            same(found.answer, None, found.label)


@check(b.Expand, b.Modify, needs=("other_mutable",))
def a_concurrent_expansion_and_modification_both_take_effect(t: CheckContext) -> None:
    """A claim's size and class may change in one edit. A success means that the change is made."""
    wanted = dict(t.storage.other_mutable or {})
    model = model_of(t, wanted)
    for round_ in range(ROUNDS):
        volume = t.volume()
        size = SizeRange(required=2 * volume.size)
        grow = ("expand_volume, beside a modification", partial(t.client.expand, volume.handle, size))
        change = ("modify_volume, beside an expansion", partial(t.client.modify, volume.handle, wanted))
        grown, changed = run_in_changing_order(round_, [grow, change])
        expect_answers(t, [grown, changed])
        if not grown.error:
            found = t.client.get(volume.handle).size
            expect(found >= size.required, f"{grown.label}: succeeded, then get_volume shows {found} bytes")
        if not changed.error:
            expect_same_effect(t, volume, model, changed.label)
        for label, act in (grow, change):
            retry(act, f"{label}, repeated")
        found = t.client.get(volume.handle).size
        expect(found >= size.required, f"{grow[0]}, repeated, then get_volume shows {found} bytes")
        expect_same_effect(t, volume, model, f"{change[0]}, repeated")


@check(b.Expand, b.Snapshots)
def a_concurrent_expansion_and_snapshot_are_serialized(t: CheckContext) -> None:
    volume, name = t.volume(), t.name("snapshot")
    wanted = SizeRange(required=2 * t.size)

    outcomes = run_concurrently(
        [
            ("expand_volume, beside a snapshot", partial(t.client.expand, volume.handle, wanted)),
            ("create_snapshot, beside an expansion", partial(t.snapshot, volume, name)),
        ]
    )

    expect_answers(t, outcomes, FailedPrecondition)  # some storage cannot expand a volume that has snapshots
    growth = ("expand_volume, repeated after a snapshot beside it", partial(t.client.expand, volume.handle, wanted))
    expect_answers(t, run_concurrently([growth]), FailedPrecondition)
    snapshot = retry(partial(t.snapshot, volume, name), "create_snapshot, beside an expansion, repeated")
    sizes = (volume.size, t.client.get(volume.handle).size)
    expect(
        snapshot.size in sizes,
        f"create_snapshot, beside an expansion: the snapshot has {snapshot.size} bytes, neither of {sizes}",
    )


@check(b.Snapshots)
def a_concurrent_snapshot_and_deletion_of_its_source_are_serialized(t: CheckContext) -> None:
    for round_ in range(ROUNDS):
        volume, name = source_volume(t), t.name("snapshot")
        outcomes = run_in_changing_order(
            round_,
            [
                (
                    "create_snapshot, beside a deletion of its source",
                    partial(t.snapshot, volume, name),
                ),
                ("delete_volume, beside a snapshot of it", partial(t.client.delete, volume.handle)),
            ],
        )
        expect_answers(t, outcomes, NotFound, InUse)
        if not (snapshot := outcomes[0].answer):
            continue
        if not t.no_data_reason():
            copy = retry(
                partial(t.copy, wait_until_ready(t, snapshot)), "restore_volume, after the deletion of the source"
            )
            t.expect_filled(copy, SEED, volume.size, "create_snapshot, beside a deletion of its source")


@check(b.Snapshots)
def a_concurrent_restore_and_deletion_of_its_snapshot_are_serialized(t: CheckContext) -> None:
    volume = source_volume(t)
    for round_ in range(ROUNDS):
        snapshot = wait_until_ready(t, t.snapshot(volume))
        spec = t.spec(size=0, source=source(snapshot))
        outcomes = run_in_changing_order(
            round_,
            [
                ("restore_volume, beside a deletion of its snapshot", partial(t.create, spec)),
                ("delete_snapshot, beside a restore of it", partial(t.client.delete_snapshot, snapshot.handle)),
            ],
        )
        expect_answers(t, outcomes, NotFound, InUse)
        if (copy := outcomes[0].answer) and not t.no_data_reason():
            t.expect_filled(copy, SEED, volume.size, "restore_volume, beside a deletion of its snapshot")


@check(b.Clone, target=Target.BACKEND)
def a_concurrent_clone_and_deletion_of_its_source_are_serialized(t: CheckContext) -> None:
    """By two processes: within one the core holds the source."""
    with second_process(t) as other:
        for round_ in range(ROUNDS):
            volume = source_volume(t)
            spec = t.spec(size=0, source=source(volume))
            outcomes = run_in_changing_order(
                round_,
                [
                    ("clone_volume, beside a deletion of its source", partial(t.create, spec)),
                    ("delete_volume, beside a clone of it", partial(other.delete, volume.handle)),
                ],
            )
            expect_answers(t, outcomes, NotFound, InUse)
            copy = outcomes[0].answer
            if copy and not t.no_data_reason():
                t.expect_filled(copy, SEED, volume.size, "clone_volume, beside a deletion of its source")
            for one in (copy, volume) if copy else (volume,):
                retry(partial(t.delete, one), "delete_volume, after a clone beside a deletion of its source")
    t.client.restart()  # what the other process kept for a copy is the next one's to remove
