"""Health: no entry for a healthy volume, one reason for each problem (csi-spec VolumeHealthEntry).

Without Storage.damage these checks break nothing, so they see entries only if the storage has some.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial

from csi_multi.contract import (
    Health,
    HealthEntry,
    InvalidToken,
    NotFound,
    StorageHealth,
    StorageHealthEntry,
    Volume,
    VolumeHealth,
)
from csi_multi.contract import backend as b

from ..assertions import CheckSkipped, expect, same
from ..check import check
from ..context import CheckContext, pages
from ..damaged_files import damages
from ..hooks import LIMIT, undone
from ..operations.base import attempt, describe_error
from ..operations.create import source_volume
from ..protocol import Target
from ..storage_contents import all_files
from ..waiting import wait_for
from .devices import open_device
from .sources import expect_success

CAMEL_CASE_WORD = re.compile(r"([A-Z][a-z0-9]*)+")
NOTICE_SECONDS = LIMIT  # until a storage has noticed that a volume was damaged or repaired
UNKNOWN_CURSOR = "?/ nobody's \N{SNOWMAN}"


def expect_well_formed(entries: Sequence[HealthEntry | StorageHealthEntry], what: str) -> None:
    """Require a known status, a CamelCase reason that is unique per status, and a message."""
    reported = set()
    for one in entries:
        expect(isinstance(one.status, Health | StorageHealth), f"{what}: status {one.status!r} is not in the contract")
        expect(CAMEL_CASE_WORD.fullmatch(one.reason), f"{what}: reason {one.reason!r} is not a CamelCase word")
        expect(one.message.strip(), f"{what}: {one.reason} has no message")
        expect((one.status, one.reason) not in reported, f"{what}: {one.status.name} {one.reason} is reported twice")
        reported.add((one.status, one.reason))


@check(b.VolumeHealthReporter)
def a_new_volume_is_healthy(t: CheckContext) -> None:
    made = t.volume()

    found = expect_success("volume_health of a new volume", t.client.health, made.handle)
    expect_well_formed(found, "volume_health of a new volume")
    same(found, (), "volume_health of a new volume")
    t.client.delete(made.handle)
    with t.refused(NotFound, what="volume_health of a volume that was deleted"):
        t.client.health(made.handle)


@check(b.VolumeHealthReporter, needs=("damage", "undamage"))
def a_damaged_volume_is_unhealthy_until_it_is_repaired(t: CheckContext) -> None:
    """Also for the next process, and in the listing; a volume beside it stays healthy, and neither is missing."""
    _expect_unhealthy(t, t.volume())


@check(b.VolumeHealthReporter, b.Clone, needs=("damage", "undamage"))
def a_damaged_clone_is_unhealthy_until_it_is_repaired(t: CheckContext) -> None:
    """What it shares with its source is its data too."""
    _expect_unhealthy(t, t.copy(source_volume(t)))


def _expect_unhealthy(t: CheckContext, damaged: Volume) -> None:
    other = t.volume()
    for way, block in damaged_in_each_way(t, damaged.handle).items():
        what = f"after {way}"
        with block():
            for when in (what, f"{what} and a restart"):
                _wait_for(t, damaged.handle, healthy=False, what=when)
                same(t.client.health(other.handle), (), f"volume_health of another volume {when}")
                missing = isinstance(attempt(lambda: t.client.get(damaged.handle))[1], t.client.kind_of(NotFound))
                expect(not missing, f"get_volume {when}: raised NotFound; a damaged volume exists")
                t.client.restart()
        _wait_for(t, damaged.handle, healthy=True, what=f"{what} and its repair")


def damaged_in_each_way(t: CheckContext, handle: str) -> dict[str, Callable[[], AbstractContextManager[None]]]:
    """Return what damages a volume for a block, by the field of Storage that does it."""
    ways = {"Storage.damage": (t.storage.damage, t.storage.undamage)}
    ways |= {f"Storage.also_damage[{number}]": pair for number, pair in enumerate(t.storage.also_damage)}
    return {
        f"{name}({handle!r})": partial(undone, partial(damage, handle), partial(repair, handle), f"the end of {name}")
        for name, (damage, repair) in ways.items()
        if damage and repair
    }


@check(b.VolumeHealthReporter, needs=("damage", "undamage", "also_damage"))
def all_problems_of_a_volume_are_reported_at_once(t: CheckContext) -> None:
    """Whichever came first. One that is told alone hides what has to be repaired, too."""
    handle = t.volume().handle
    ways, alone = damaged_in_each_way(t, handle), {}
    for way, block in ways.items():
        with block():
            alone[way] = {name: _kinds(found) for name, found in _wait_for(t, handle, healthy=False, what=way).items()}
        _wait_for(t, handle, healthy=True, what=f"after {way} and its repair")
    for first, second in itertools.permutations(ways, 2):
        what = f"after {first} and {second}"
        for name, read in _reads(t, handle).items():
            both = alone[first][name] | alone[second][name]
            text = (
                f"{name}: {first} and {second} are told as the same problem {both}; give ways that health tells apart"
            )
            expect(len(both) > max(len(alone[first][name]), len(alone[second][name])), text)
            with ways[first](), ways[second]():
                found = wait_for(lambda: _kinds(read()), lambda kinds: kinds >= both, NOTICE_SECONDS)  # noqa: B023
            expect(found >= both, f"{name} {what}: found {found}, the contract requires the present problems, {both}")
        _wait_for(t, handle, healthy=True, what=f"{what} and their repair")


def _kinds(entries: Sequence[HealthEntry]) -> set[tuple[str, str]]:
    return {(one.status.name, one.reason) for one in entries}


def _reads(t: CheckContext, handle: str) -> dict[str, Callable[[], tuple[HealthEntry, ...]]]:
    """Return all methods that tell the health of a volume."""
    reads = {"volume_health": lambda: t.client.health(handle)}
    if b.VolumeHealthLister in t.features:
        reads["list_volume_health"] = lambda: tuple(
            entry for one in pages(t.client.list_health) if one.handle == handle for entry in one.entries
        )
    if b.NodeHealthReporter in t.features and t.client.target is Target.BACKEND:
        reads["node_volume_health"] = lambda: t.backend.node_volume_health(handle)
    return reads


def _wait_for(t: CheckContext, handle: str, *, healthy: bool, what: str) -> dict[str, tuple[HealthEntry, ...]]:
    """Require that all methods of health agree that a volume is healthy, or is not, as soon as the storage knows.

    Returns what each of them tells.
    """
    reports = {}
    for name, read in _reads(t, handle).items():
        ask = partial(expect_success, f"{name} {what}", read)
        found = wait_for(ask, lambda entries: bool(entries) != healthy, NOTICE_SECONDS)
        expect_well_formed(found, f"{name} {what}")
        wanted = "no entry" if healthy else "an entry"
        text = f"{name} {what}: found {found!r} for {NOTICE_SECONDS:g} s, the contract requires {wanted}"
        expect(bool(found) != healthy, text)
        reports[name] = found
    return reports


@check(b.VolumeHealthLister)
def only_unhealthy_volumes_are_in_the_health_listing(t: CheckContext) -> None:
    made = t.volume()

    found: list[VolumeHealth] = pages(t.client.list_health)
    for one in found:
        expect(one.entries, f"list_volume_health lists {one.handle!r} without an entry")
        expect_well_formed(one.entries, f"list_volume_health about {one.handle!r}")
    listed = [one.handle for one in found]
    expect(made.handle not in listed, f"list_volume_health lists {made.handle!r}, a new volume")
    same(
        len(listed),
        len(set(listed)),
        "list_volume_health: number of volumes, compared with the number of different volumes",
    )
    by_one = [one.handle for one in pages(_limited(t, 1), 1)]
    same(by_one, listed, "list_volume_health, one per page, compared with all at once")


def _limited(t: CheckContext, most: int) -> object:
    def read(cursor: str, limit: int) -> object:
        page = t.client.list_health(cursor, limit)
        expect(
            len(page.items) <= most,
            f"list_volume_health returned {len(page.items)} items, the limit of the request is {most}",
        )
        return page

    return read


@check(b.VolumeHealthLister)
def the_health_listing_agrees_with_volume_health(t: CheckContext) -> None:
    for one in pages(t.client.list_health)[:10]:
        try:
            asked = t.client.health(one.handle)
        except NotFound:
            continue  # deleted in the meantime by another client
        same(set(asked), set(one.entries), f"volume_health of {one.handle!r}, compared with list_volume_health")


@check(b.VolumeHealthLister, needs=("records",), target=Target.BACKEND)
def the_health_listing_agrees_with_volume_health_whichever_file_is_damaged(t: CheckContext) -> None:
    """Each file that a new volume brought is missing, empty, and overwritten, one after the other."""
    t.volume()  # the first one may bring what is everyone's
    before, volume = set(all_files(t.storage.records)), t.volume()
    brought = [file for file in all_files(t.storage.records) if file not in before]
    if not brought:
        raise CheckSkipped("create_volume leaves no file below Storage.records")

    for file in brought:
        for what, damaged in damages(t, file).items():
            with damaged:
                asked, error = attempt(partial(t.client.health, volume.handle))
                listed = [one for one in pages(t.client.list_health) if one.handle == volume.handle]
                found = {entry for one in listed for entry in one.entries}
                if error is not None:  # the volume cannot be told from another's, so it is in no list
                    text = f"{file.name} {what}: list_volume_health reports {found}, but volume_health raised"
                    expect(not found, f"{text} {describe_error(error)}; what is known of a broken volume is its health")
                else:
                    same(found, set(asked or ()), f"{file.name} {what}: list_volume_health, against volume_health")


@check(b.VolumeHealthLister, target=Target.BACKEND)
def an_unknown_health_cursor_is_refused(t: CheckContext) -> None:
    for odd in (UNKNOWN_CURSOR, " ", UNKNOWN_CURSOR * 6):
        with t.refused(InvalidToken, what=f"list_volume_health after cursor {odd!r}, which no listing returned"):
            t.client.list_health(odd, 1)


@check(b.NodeHealthReporter, target=Target.BACKEND)
def a_new_volume_is_healthy_on_its_node(t: CheckContext) -> None:
    """Also before it is used there (csi-spec NodeGetVolumeHealth)."""
    made = t.volume()

    same(t.backend.node_volume_health(made.handle), (), "node_volume_health of a new volume, which is not open")
    t.client.delete(made.handle)
    with t.refused(NotFound, what="node_volume_health of a volume that was deleted"):
        t.backend.node_volume_health(made.handle)


@check(b.NodeHealthReporter, needs=("devices",), data=True, target=Target.BACKEND)
def an_open_volume_is_healthy_on_its_node(t: CheckContext) -> None:
    made = t.volume()
    open_device(t, made)

    found = t.backend.node_volume_health(made.handle)
    expect_well_formed(found, "node_volume_health of a new volume that is open")
    same(found, (), "node_volume_health of a new volume that is open")


@check(b.NodeHealthReporter, target=Target.BACKEND)
def storage_problems_have_a_reason_and_a_message(t: CheckContext) -> None:
    """There may be a problem, for example a filesystem that is nearly full."""
    found = t.backend.node_storage_health(t.storage.secrets)

    expect(isinstance(found, tuple), f"node_storage_health: {found!r} is not a tuple of StorageHealthEntry")
    expect_well_formed(found, "node_storage_health")
