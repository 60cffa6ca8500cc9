"""Handles: short and printable enough for ids, permanent, and NotFound if unknown (csi-spec 2.2).

node_local.py has the further rules for handles of NodeLocal backends.
"""

from __future__ import annotations

import re
from functools import partial

from csi_multi.contract import NotFound
from csi_multi.contract import backend as b
from csi_multi.contract.ids import MAX_HANDLE, MAX_NODE

from ..assertions import CheckSkipped, expect, same
from ..check import check
from ..context import CheckContext
from ..operations.base import expect_not_found, retry
from ..operations.create import as_ready
from ..protocol import Target
from .creation import expect_nothing_new, expect_repeats, expect_unchanged
from .names import longest

CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")


def unknown_handles(t: CheckContext) -> tuple[str, ...]:
    """Return handles that never existed; none starts with a node's name."""
    long = "x" * (200 if t.client.target is Target.BACKEND else 100)  # the core accepts no id of more than 128 bytes
    return ("", "/", "..", "../../../../etc/passwd", "-rf", "*", long, "ü💾", "a b\n", "';--", "%s{}")


def similar_handles(handle: str) -> tuple[str, ...]:
    """Return handles that never existed but are similar to an existing one."""
    last = handle.rpartition("/")[2]
    return (
        f"{handle}x",
        f"{handle}\n",
        f" {handle}",
        f"{handle}/",
        f"./{handle}",
        f"{handle}/../{last}",
        handle.removesuffix(last) + last.swapcase(),
    )


def _expect_unknown(t: CheckContext, handle: str) -> None:
    expect_not_found(lambda: t.client.get(handle), f"get_volume({handle!r}), a handle that never existed")
    if t.client.target is Target.BACKEND:
        what = f"delete_volume({handle!r}), a handle that never existed"
        expect_not_found(lambda: t.backend.delete_volume(handle, t.storage.secrets), what)
    else:
        retry(lambda: t.client.delete(handle), f"delete_volume({handle!r}), a handle that never existed")


@check()
def an_unknown_handle_of_any_shape_is_not_found(t: CheckContext) -> None:
    for handle in unknown_handles(t):
        _expect_unknown(t, handle)


@check()
def an_almost_correct_handle_is_not_found(t: CheckContext) -> None:
    made = t.volume()
    before = t.new_resources()
    for handle in similar_handles(made.handle):
        if handle != made.handle:
            _expect_unknown(t, handle)
            expect_unchanged(t, made, f"after delete_volume({handle!r})")
    expect_nothing_new(t, before, "after delete_volume with handles that never existed")


@check(b.Snapshots)
def an_unknown_snapshot_handle_of_any_shape_is_not_found(t: CheckContext) -> None:
    for handle in unknown_handles(t):
        what = f"get_snapshot({handle!r}), a handle that never existed"
        expect_not_found(partial(t.client.get_snapshot, handle), what)
        retry(partial(t.client.delete_snapshot, handle), f"delete_snapshot({handle!r}) of an unknown snapshot")


@check(b.Snapshots)
def an_almost_correct_snapshot_handle_is_not_found(t: CheckContext) -> None:
    made = t.snapshot(t.volume())
    before = t.new_resources()
    for handle in similar_handles(made.handle):
        if handle != made.handle:
            what = f"get_snapshot({handle!r}), a handle that never existed, beside {made.handle!r}"
            expect_not_found(partial(t.client.get_snapshot, handle), what)
            what = f"delete_snapshot({handle!r}), a handle that never existed"
            retry(partial(t.client.delete_snapshot, handle), what)
            found = retry(partial(t.client.get_snapshot, made.handle), f"{what}, then get_snapshot")
            same(as_ready(found), as_ready(made), f"{what}, then get_snapshot")
    same(t.new_resources(), before, "the storage after delete_snapshot with handles that never existed")


@check(b.Snapshots)
def handles_of_volumes_and_snapshots_are_not_confused(t: CheckContext) -> None:
    made = t.volume()
    snapshot = t.snapshot(made)
    if snapshot.handle == made.handle:
        raise CheckSkipped("handles of volumes and of snapshots have the same form; their use distinguishes them")

    with t.refused(NotFound, what="get_volume with the handle of a snapshot"):
        t.client.get(snapshot.handle)
    with t.refused(NotFound, what="get_snapshot with the handle of a volume"):
        t.client.get_snapshot(made.handle)
    retry(lambda: t.client.delete(snapshot.handle), "delete_volume with the handle of a snapshot")
    retry(lambda: t.client.delete_snapshot(made.handle), "delete_snapshot with the handle of a volume")
    expect_unchanged(t, made, "after delete_snapshot with the handle of a volume")
    what = "after delete_volume with the handle of a snapshot: get_snapshot"
    same(retry(lambda: t.client.get_snapshot(snapshot.handle), what).source, made.handle, f"{what}, the source")


def _expect_fits(t: CheckContext, handle: str, method: str) -> None:
    """An id is the instance's name, a slash and the handle. Elsewhere both names in it may be longer."""
    size, where = len(handle.encode()), ""
    if t.client.target is Target.BACKEND and b.NodeLocal in t.features:
        size, where = size + MAX_NODE - len(t.backend.node_of(handle)), f" on a node with a name of {MAX_NODE} bytes"
    problem = f"{method}: the handle {handle!r} has {size} bytes{where}, {MAX_HANDLE} fit into an id (ids.MAX_HANDLE)"
    expect(size <= MAX_HANDLE, problem)
    expect(not CONTROL.search(handle), f"{method}: the handle {handle!r} contains a control character")


@check()
def a_handle_fits_into_an_id_however_long_the_name(t: CheckContext) -> None:
    for name in (longest(t.name()), longest(f"{t.name()}\t", "💾")):
        made = t.volume(name)
        _expect_fits(t, made.handle, f"create_volume with a name of {len(name.encode())} bytes")


@check(b.Snapshots)
def a_snapshot_handle_fits_into_an_id(t: CheckContext) -> None:
    snapshot = t.snapshot(t.volume(longest(t.name())), longest(f"{t.name()}\t", "💾"))

    _expect_fits(t, snapshot.handle, "create_snapshot with the longest names")


@check(b.GroupSnapshots)
def the_handles_of_a_group_fit_into_ids(t: CheckContext) -> None:
    group = t.group([t.volume(longest(t.name()))], longest(f"{t.name()}\t", "💾"))

    for handle in (group.handle, *(one.handle for one in group.snapshots)):
        _expect_fits(t, handle, "create_group_snapshot with the longest names")


@check()
def a_handle_still_works_after_a_restart(t: CheckContext) -> None:
    spec = t.spec()
    made = t.create(spec)

    t.client.restart()

    expect_unchanged(t, made, "after a restart")
    expect_repeats(t, made, spec, "repeated after a restart")
    t.client.delete(made.handle)
    with t.refused(NotFound, what="get_volume after a restart and delete_volume"):
        t.client.get(made.handle)
