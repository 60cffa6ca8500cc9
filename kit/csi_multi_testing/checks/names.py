"""Names are any text of up to 128 bytes: each works, and no two are confused (csi-spec 2.2)."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from functools import partial

from csi_multi.contract import NotFound, Snapshot, Volume, leaf
from csi_multi.contract import backend as b

from ..assertions import expect, same
from ..check import check
from ..context import CheckContext
from ..operations.base import retry, wait_until_ready
from ..operations.create import SEED, as_ready, source_volume
from ..protocol import Target
from .creation import expect_repeats, expect_unchanged
from .sources import expect_success

MAX_NAME_BYTES = 128  # bytes
SNAPSHOTS = 8  # of one volume, which every storage can have


def longest(text: str, fill: str = "n") -> str:
    """Return the text, padded to the maximum length of a name."""
    missing = MAX_NAME_BYTES - len(text.encode())
    return text + fill * (missing // len(fill.encode())) + "n" * (missing % len(fill.encode()))


def unusual(unique: str) -> tuple[str, ...]:
    """Return names that csi-spec allows but files, shells, patterns, tags or protocols may mishandle."""
    return (
        longest(unique),
        longest(f"{unique}-💾", "💾"),
        f"a/{unique}//b/",
        f"../../{unique}/..",
        f".{unique}",
        f"--{unique}=*",
        f"{unique}\tTAB\r\nLF ",
        f" '{unique}\"`$(id)`;\\",
        f"{unique}%2F%s{{}}@#:,[~]?",
    )


def similar(unique: str) -> tuple[str, ...]:
    """Return different names that a careless derivation of storage names could make equal."""
    composed = f"{unique}-é"
    return (
        unique,
        unique.replace("K", "k", 1),
        f"{unique} ",
        f"{unique}/a",
        f"{unique}-a",
        f"{unique}_a",
        composed,
        unicodedata.normalize("NFD", composed),
        leaf(f"{unique}/a"),
        longest(unique)[:-1] + "x",
        longest(unique)[:-1] + "y",
    )


def _expect_works(t: CheckContext, name: str) -> None:
    what = f"the name {name!r}"
    made = retry(lambda: t.volume(name), f"create_volume with {what}")
    expect_repeats(t, made, t.spec(name), f"repeated with {what}")
    if t.client.target is Target.BACKEND:
        same(t.backend.find_volume(name), made, f"find_volume with {what}")
    t.client.delete(made.handle)
    with t.refused(NotFound, what=f"get_volume after delete_volume of {what}"):
        t.client.get(made.handle)
    t.forget(made)


@check()
def any_name_that_csi_allows_works_for_a_volume(t: CheckContext) -> None:
    for name in unusual(t.name()):
        _expect_works(t, name)


@check()
def names_of_dots_only_work_for_a_volume(t: CheckContext) -> None:
    for name in (".", ".."):
        _expect_works(t, name)


@check()
def nearly_equal_names_give_different_volumes(t: CheckContext) -> None:
    names = similar(t.name("Kit"))
    made = {name: retry(partial(t.volume, name), f"create_volume with {name!r}") for name in names}

    _expect_distinct({name: volume.handle for name, volume in made.items()}, "create_volume")
    gone, *rest = names
    t.client.delete(made[gone].handle)
    for name in rest:
        expect_repeats(t, made[name], t.spec(name), f"repeated with {name!r} after {gone!r} was deleted")
    if t.client.target is Target.BACKEND:
        with t.refused(NotFound, what=f"find_volume with {gone!r}, deleted, beside {rest[0]!r}"):
            t.backend.find_volume(gone)


def _expect_distinct(handles: dict[str, str], method: str) -> None:
    first: dict[str, str] = {}
    for name, handle in handles.items():
        other = first.setdefault(handle, name)
        expect(other == name, f"{method}: the names {other!r} and {name!r} gave the same handle {handle!r}")


@check()
def the_handle_of_a_volume_can_be_the_name_of_another(t: CheckContext) -> None:
    """The name of one volume equals the handle of another; they are not confused."""
    first = t.volume(f"{t.name()}/first")
    second = t.volume(first.handle)

    _expect_distinct({"the first": first.handle, first.handle: second.handle}, "create_volume")
    t.client.delete(second.handle)
    expect_unchanged(t, first, "after delete_volume of the volume that has its handle as name")


@check(b.Snapshots)
def any_name_that_csi_allows_works_for_a_snapshot(t: CheckContext) -> None:
    volume, unique = t.volume(), t.name()
    names = (*unusual(unique)[:4], unique.capitalize(), unique)
    made = {name: retry(partial(t.snapshot, volume, name), f"create_snapshot with {name!r}") for name in names}

    _expect_distinct({name: snapshot.handle for name, snapshot in made.items()}, "create_snapshot")
    for name, snapshot in made.items():
        again = t.snapshot(volume, name)
        same(again.handle, snapshot.handle, f"create_snapshot, repeated with the name {name!r}")


@check(b.Snapshots)
def a_volume_and_a_snapshot_may_have_the_same_name(t: CheckContext) -> None:
    name = t.name()
    made = t.volume(name)
    what = "create_snapshot with the name of a volume"
    snapshot = retry(lambda: t.snapshot(made, name), what)

    expect_unchanged(t, made, what)
    same(t.client.get_snapshot(snapshot.handle).source, made.handle, f"{what}: the source of get_snapshot")
    t.client.delete_snapshot(snapshot.handle)
    expect_unchanged(t, made, "after delete_snapshot of the snapshot with its name")


@check(b.Snapshots)
def nearly_equal_names_give_different_snapshots(t: CheckContext) -> None:
    """Of two volumes: storage systems may have few snapshots of one, and names that count for one volume only."""
    names = similar(t.name("Kit"))
    volumes = (t.volume(), t.volume())
    made = {
        name: retry(partial(t.snapshot, volumes[number >= SNAPSHOTS], name), f"create_snapshot with {name!r}")
        for number, name in enumerate(names)
    }

    _expect_distinct({name: snapshot.handle for name, snapshot in made.items()}, "create_snapshot")
    gone, *rest = names
    t.client.delete_snapshot(made[gone].handle)
    for name in rest:
        found = t.client.get_snapshot(made[name].handle)
        same(as_ready(found), as_ready(made[name]), f"delete_snapshot of {gone!r}, then get_snapshot of {name!r}")


@check(b.GroupSnapshots)
def nearly_equal_names_give_different_groups(t: CheckContext) -> None:
    names = similar(t.name("Kit"))
    volumes = (t.volume(), t.volume())
    made = {
        name: retry(partial(t.group, [volumes[number >= SNAPSHOTS]], name), f"create_group_snapshot with {name!r}")
        for number, name in enumerate(names)
    }

    _expect_distinct({name: group.handle for name, group in made.items()}, "create_group_snapshot")
    members = {name: group.snapshots[0].handle for name, group in made.items()}
    _expect_distinct(members, "create_group_snapshot, the member")
    gone, *rest = names
    t.client.delete_group(made[gone].handle)
    for name in rest:
        found = [one.handle for one in t.client.get_group(made[name].handle).snapshots]
        same(found, [members[name]], f"delete_group_snapshot of {gone!r}, then the members of {name!r}")


@check(b.GroupSnapshots, data=True, target=Target.BACKEND)
def a_group_takes_no_snapshot_that_has_the_name_of_a_member(t: CheckContext) -> None:
    """What a backend calls the members is no name that nobody else may use."""
    name, volume = t.name("group"), source_volume(t)
    members = [t.volume(), t.volume()]
    group = t.group(members, name)
    names = {name, *(one.stamp.name for one in group.snapshots), *(one.handle for one in group.snapshots)}
    names |= {one.handle.rpartition("/")[2] for one in group.snapshots}
    t.delete(group)
    cuts = {one: wait_until_ready(t, retry(partial(t.snapshot, volume, one), f"{one!r}")) for one in sorted(names)}

    group = retry(partial(t.group, members, name), f"create_group_snapshot {name!r} beside snapshots {sorted(names)}")
    handles = [one.handle for one in (*cuts.values(), *group.snapshots)]
    same(len(set(handles)), len(handles), "the number of handles of snapshots, of a group and beside it")
    _expect_cuts(t, volume, cuts, f"create_group_snapshot {name!r}")
    t.delete(group)
    _expect_cuts(t, volume, cuts, f"delete_group_snapshot {name!r}")


def _expect_cuts(t: CheckContext, volume: Volume, cuts: Mapping[str, Snapshot], what: str) -> None:
    for name, cut in cuts.items():
        found = expect_success(f"{what}, then get_snapshot of {name!r}", t.client.get_snapshot, cut.handle)
        same(as_ready(found), cut, f"{what}, then get_snapshot of {name!r}")
        copy = t.copy(cut)
        t.expect_filled(copy, SEED, volume.size, f"{what}, then a restore of {name!r}")
        t.delete(copy)
