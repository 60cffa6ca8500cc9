"""A resource with another owner's stamp, or none, is foreign: not listed, not found, never changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from csi_multi.contract import (
    AttachRequest,
    ExpandRequest,
    FailedPrecondition,
    ModifyRequest,
    NotFound,
    OpenRequest,
    SizeRange,
    SnapshotRequest,
    Source,
    SourceKind,
    StorageError,
)
from csi_multi.contract import backend as b

from ..assertions import expect, same
from ..check import check
from ..context import CheckContext
from ..in_process import InProcessClient
from ..listings import Listing, snapshots, volumes
from ..protocol import BLOCK, Target

REFUSALS = (NotFound, FailedPrecondition)


def expect_present(t: CheckContext, foreign: set[str], what: str) -> None:
    lost = sorted(foreign - t.resources())
    expect(not lost, f"{what}: {', '.join(lost[:5])} was removed, but belongs to another owner")


def put_foreign(t: CheckContext) -> set[str]:
    foreign = t.create_foreign()
    expect(foreign, "Storage.foreign created nothing that Storage.resources returns")
    return foreign


def expect_not_listed(listing: Listing) -> None:
    """Also in the smallest pages: items that are left out must not change the cursor."""
    t = listing.t
    ours = [listing.make(t.name()).handle]
    before = sorted(listing.handles())
    put_foreign(t)
    same(sorted(listing.handles()), before, f"{listing.method} with foreign resources on the storage")
    ours.append(listing.make(t.name()).handle)
    found = listing.handles(listing.small_page())
    listing.expect_all(ours, found, "with foreign resources on the storage")
    same(sorted(found), sorted({*before, *ours}), f"{listing.method}, page by page")


@check(b.ListVolumes, needs=("foreign", "resources"))
def foreign_volumes_are_not_listed(t: CheckContext) -> None:
    expect_not_listed(volumes(t))


@check(b.ListSnapshots, needs=("foreign", "resources"))
def foreign_snapshots_are_not_listed(t: CheckContext) -> None:
    expect_not_listed(snapshots(t))


def names_of(handle: str) -> list[str]:
    """Return the requested names that may have given a handle."""
    return sorted({handle, handle.rpartition("/")[2]})


@check(needs=("foreign", "foreign_handles", "resources"), target=Target.BACKEND)
def foreign_resources_are_not_found(t: CheckContext) -> None:
    put_foreign(t)
    for handle in t.storage.foreign_handles:
        asked: list[tuple[str, str]] = [("get_volume", handle), *(("find_volume", name) for name in names_of(handle))]
        if b.Snapshots in t.features:
            asked += [("get_snapshot", handle), *(("find_snapshot", name) for name in names_of(handle))]
        for method, word in asked:
            with t.refused(*REFUSALS, what=f"{method}({word!r}), which belongs to another owner"):
                getattr(t.backend, method)(word)


@check(needs=("foreign", "foreign_handles", "resources"), target=Target.BACKEND)
def foreign_resources_cannot_be_deleted(t: CheckContext) -> None:
    foreign = put_foreign(t)
    methods = ["delete_volume", *(["delete_snapshot"] if b.Snapshots in t.features else [])]
    for handle in t.storage.foreign_handles:
        message = False
        for method in methods:
            what = f"{method}({handle!r}), which belongs to another owner"
            with t.refused(*REFUSALS, what=what):
                try:
                    getattr(t.backend, method)(handle, t.storage.secrets)
                except FailedPrecondition:
                    message = True
                    raise
            expect_present(t, foreign, what)
        expect(
            message,
            f"{' and '.join(methods)}, of {handle!r}, which belongs to another owner: NotFound, which the orchestrator "
            "treats as success; the contract requires FailedPrecondition",
        )


def operations_on(
    t: CheckContext, client: InProcessClient, handle: str
) -> Iterator[tuple[type[b.Backend], str, Callable[[], Any]]]:
    """Yield every operation of a client on a volume: its feature, its method, and the call."""
    backend, secrets = client.backend, t.storage.secrets
    size = SizeRange(required=1 << 40)
    stamp = client.request(t.spec()).stamp
    copy = client.request(t.spec(size=0, source=Source(kind=SourceKind.VOLUME, handle=handle)))
    growth = ExpandRequest(handle=handle, size=size, secrets=secrets)
    yield b.Expand, "expand_volume", lambda: backend.expand_volume(growth)
    yield b.Clone, "clone_volume", lambda: t.register(backend.clone_volume(copy))
    request = SnapshotRequest(stamp=stamp, source=handle, secrets=secrets)
    yield b.Snapshots, "create_snapshot", lambda: t.register(backend.create_snapshot(request))
    change = ModifyRequest(handle=handle, mutable=type(backend).MutableParameters(), secrets=secrets)
    yield b.Modify, "modify_volume", lambda: backend.modify_volume(change)
    if t.storage.nodes:
        wanted = AttachRequest(handle=handle, node=t.storage.nodes[0], capability=BLOCK, secrets=secrets)
        yield b.Attach, "attach", lambda: backend.attach(wanted)


@check(needs=("foreign", "foreign_handles", "resources"), target=Target.BACKEND)
def foreign_volumes_cannot_be_used(t: CheckContext) -> None:
    foreign = put_foreign(t)
    for handle in t.storage.foreign_handles:
        for feature, method, act in operations_on(t, t.in_process, handle):
            if feature in t.features:
                what = f"{method} on {handle!r}, which belongs to another owner"
                with t.refused(*REFUSALS, what=what):
                    act()
                expect_present(t, foreign, what)


@check(needs=("foreign", "foreign_handles", "resources", "devices"), target=Target.BACKEND)
def foreign_volumes_cannot_be_opened(t: CheckContext) -> None:
    put_foreign(t)
    for handle in t.storage.foreign_handles:
        with t.refused(
            *REFUSALS, what=f"open_device({handle!r}), which belongs to another owner: its device could be formatted"
        ):
            t.backend.open_device(OpenRequest(handle=handle, secrets=t.storage.secrets))
            t.backend.close_device(handle)


@check(needs=("foreign", "foreign_handles", "resources"))
def a_name_of_a_foreign_resource_is_not_taken_over(t: CheckContext) -> None:
    foreign = put_foreign(t)
    for handle in t.storage.foreign_handles:
        for name in names_of(handle):
            what = f"create_volume {name!r}, where {handle!r} belongs to another owner"
            try:
                made = t.client.create(t.spec(name))
            except StorageError:
                continue  # a refusal is correct
            finally:
                expect_present(t, foreign, what)
            t.register(made)  # a volume may have the same handle as a foreign snapshot
            expect(made.handle != handle or t.new_resources(), f"{what}: the answer is the foreign volume")


@check(needs=("foreign", "resources"))
def foreign_resources_survive_work_on_own_volumes(t: CheckContext) -> None:
    foreign = put_foreign(t)
    volume = t.volume()
    if b.Snapshots in t.features:
        t.client.delete_snapshot(t.snapshot(volume).handle)
    if b.Expand in t.features:
        t.client.expand(volume.handle, SizeRange(required=2 * t.size))
    expect_present(t, foreign, "work on an own volume")
    t.client.restart()  # calls resume(), which finishes the work of an earlier process
    expect_present(t, foreign, "resume, called by a starting process")
    t.client.delete(volume.handle)
    expect_present(t, foreign, "delete_volume of an own volume")
