"""Owners with similar names: another cluster, driver or instance is another one, even if its name begins with ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from csi_multi.contract import FailedPrecondition, NotFound, StorageError, Volume
from csi_multi.contract import backend as b
from csi_multi.contract.errors import NOT_FINAL

from ..assertions import CheckSkipped, expect, same
from ..check import check
from ..context import CheckContext, pages, source
from ..operations.base import attempt, describe_error, wait_until_ready
from ..operations.create import as_ready
from ..other_owners import OTHERS, client_of
from ..protocol import Target
from .foreign import operations_on

INSTANCES = ("another", "kit-2", "ki", "KIT")  # beside the instance "kit"
# NotFound of a deletion too: where the names of resources begin with their owner, nobody meets those of others.
REFUSED = (NotFound, FailedPrecondition, *NOT_FINAL)


@check(needs=("foreign",), target=Target.BACKEND)
def owners_with_similar_names_do_not_touch_each_others_volumes(t: CheckContext) -> None:
    """A storage may be of one owner only, who is the first one to use it: then it refuses all others."""
    mine = t.volume()
    for changes in OTHERS:
        other = client_of(t, changes)
        expect_foreign(other, mine, f"for {describe(changes)}, a volume of ours")
        theirs, error = attempt(lambda other=other: other.create(t.spec()))  # type: ignore[misc]
        if theirs:
            expect_foreign(t.client, theirs, f"a volume of {describe(changes)}")
            same(other.get(theirs.handle), theirs, f"{describe(changes)}: get_volume of its own volume")
            other.delete(theirs.handle)
        elif not isinstance(error, StorageError):
            raise error or AssertionError("neither an answer nor an error")
        same(t.client.get(mine.handle), mine, f"after the calls of {describe(changes)}, get_volume of ours")


def describe(changes: Mapping[str, str]) -> str:
    return " and ".join(f"{name} {value!r}" for name, value in changes.items())


def expect_foreign(client: Any, volume: Volume, what: str) -> None:
    """Require that a client neither finds, lists nor deletes a volume."""
    backend, handle = client.backend, volume.handle
    acts = (
        ("get_volume", lambda: backend.get_volume(handle)),
        ("find_volume", lambda: backend.find_volume(volume.stamp.name)),
        ("delete_volume", lambda: backend.delete_volume(handle, client.storage.secrets)),
    )
    for method, act in acts:
        found, error = attempt(act)
        outcome = f"raised {describe_error(error)}" if error else f"answered {found!r}"
        names = ", ".join(kind.__name__ for kind in REFUSED)
        expect(isinstance(error, REFUSED), f"{what}: {method} {outcome}, the contract requires one of {names}")
    if isinstance(backend, b.ListVolumes):
        listed, _ = attempt(lambda: [one.handle for one in pages(client.list_volumes)])
        expect(handle not in (listed or ()), f"{what}: list_volumes lists it")


@check(target=Target.BACKEND)
def instances_with_similar_names_are_as_different_as_others(t: CheckContext) -> None:
    """If the volumes of an instance are its own, then also for one whose name begins with its name."""
    t.volume()
    outcomes = {}
    for name in INSTANCES:
        other = client_of(t, {"instance": name})
        theirs, error = attempt(lambda other=other: other.create(t.spec()))  # type: ignore[misc]
        if not theirs:
            raise CheckSkipped(f"another instance cannot use this storage: {error}")
        found = attempt(lambda theirs=theirs: t.backend.get_volume(theirs.handle))[1]  # type: ignore[misc]
        outcomes[name] = type(found).__name__ if found else "an answer"
        what = f"get_volume by instance 'kit' of a volume of instance {name!r}"
        same(outcomes[name], outcomes["another"], f"{what}, against instance 'another'")
        if found:
            deletion = attempt(lambda theirs=theirs: t.backend.delete_volume(theirs.handle, t.storage.secrets))[1]  # type: ignore[misc]
            expect(deletion, f"delete_volume by instance 'kit' of a volume of instance {name!r}: succeeded")
            same(other.get(theirs.handle), theirs, f"delete_volume by instance 'kit', refused, then {name!r} reads it")
        other.delete(theirs.handle)


def _expect_refused(acts: Sequence[tuple[str, Callable[[], Any]]], what: str) -> None:
    names = ", ".join(kind.__name__ for kind in REFUSED)
    for method, act in acts:
        found, error = attempt(act)
        outcome = f"raised {describe_error(error)}" if error else f"answered {found!r}"
        expect(isinstance(error, REFUSED), f"{what}: {method} {outcome}, the contract requires one of {names}")


@check(b.Snapshots, needs=("foreign",), target=Target.BACKEND)
def owners_with_similar_names_do_not_touch_each_others_snapshots(t: CheckContext) -> None:
    """They neither find, list, restore nor delete them."""
    made = wait_until_ready(t, t.snapshot(t.volume()))
    handle = made.handle
    for changes in OTHERS:
        other = client_of(t, changes)
        backend, what = other.backend, f"for {describe(changes)}, a snapshot of ours"
        restored = other.request(t.spec(size=0, source=source(made)))
        acts = (
            ("get_snapshot", partial(backend.get_snapshot, handle)),
            ("find_snapshot", partial(backend.find_snapshot, made.stamp.name)),
            ("restore_volume", lambda other=other, wanted=restored: t.register(other.backend.restore_volume(wanted))),
            ("delete_snapshot", partial(backend.delete_snapshot, handle, t.storage.secrets)),
        )
        _expect_refused(acts, what)
        if b.ListSnapshots in t.features:
            listed, _ = attempt(lambda other=other: [one.handle for one in pages(other.list_snapshots)])  # type: ignore[misc]
            expect(handle not in (listed or ()), f"{what}: list_snapshots lists it")
        same(as_ready(t.client.get_snapshot(handle)), as_ready(made), f"{what}: refused, then get_snapshot of ours")


@check(needs=("foreign",), target=Target.BACKEND)
def owners_with_similar_names_do_not_copy_or_change_each_others_volumes(t: CheckContext) -> None:
    mine = t.volume()
    for changes in OTHERS:
        other = client_of(t, changes)
        acts = [(name, act) for feature, name, act in operations_on(t, other, mine.handle) if feature in t.features]
        _expect_refused(acts, f"for {describe(changes)}, a volume of ours")
        same(t.client.get(mine.handle), mine, f"after the calls of {describe(changes)}, get_volume of ours")
