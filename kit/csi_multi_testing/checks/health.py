"""Health: nothing about what is well, one word for each thing that is wrong (csi-spec VolumeHealthEntry).

Nothing is made ill here, so entries are judged where the storage happens to have some.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from csi_multi.contract import (
    Health,
    HealthEntry,
    InvalidToken,
    NotFound,
    StorageHealth,
    StorageHealthEntry,
    VolumeHealth,
)
from csi_multi.contract import backend as b

from ..assertions import expect, same
from ..check import check
from ..context import CheckContext, pages
from ..protocol import Target
from .devices import opened
from .sources import expect_success

WORD = re.compile(r"([A-Z][a-z0-9]*)+")
FOREIGN = "?/ nobody's \N{SNOWMAN}"


def well_told(entries: Sequence[HealthEntry | StorageHealthEntry], what: str) -> None:
    """Require a known status, a CamelCase reason that is there once per status, and a text for people."""
    seen = set()
    for one in entries:
        expect(
            isinstance(one.status, Health | StorageHealth), f"{what}: status {one.status!r} is not one of the contract"
        )
        expect(WORD.fullmatch(one.reason), f"{what}: reason {one.reason!r} is not a CamelCase word")
        expect(one.message.strip(), f"{what}: {one.reason} comes without a message")
        expect((one.status, one.reason) not in seen, f"{what}: {one.status.name} {one.reason} is there twice")
        seen.add((one.status, one.reason))


@check(b.VolumeHealthReporter)
def a_new_volume_is_healthy(t: CheckContext) -> None:
    made = t.volume()

    found = expect_success("volume_health of a new volume", t.client.health, made.handle)
    well_told(found, "volume_health of a new volume")
    same(found, (), "volume_health of a new volume")
    t.client.delete(made.handle)
    with t.refused(NotFound, what="volume_health of a volume that was deleted"):
        t.client.health(made.handle)


@check(b.VolumeHealthLister)
def only_unhealthy_volumes_are_in_the_health_listing(t: CheckContext) -> None:
    made = t.volume()

    found: list[VolumeHealth] = pages(t.client.list_health)
    for one in found:
        expect(one.entries, f"list_volume_health shows {one.handle!r}, with nothing that is wrong with it")
        well_told(one.entries, f"list_volume_health about {one.handle!r}")
    listed = [one.handle for one in found]
    expect(made.handle not in listed, f"list_volume_health shows {made.handle!r}, a new volume")
    same(len(listed), len(set(listed)), "list_volume_health: how many volumes it shows, against how many there are")
    by_one = [one.handle for one in pages(_bounded(t, 1), 1)]
    same(by_one, listed, "list_volume_health, one per page, against all at once")


def _bounded(t: CheckContext, most: int) -> object:
    def read(cursor: str, limit: int) -> object:
        page = t.client.list_health(cursor, limit)
        expect(len(page.items) <= most, f"list_volume_health gave {len(page.items)} items, asked for was {most}")
        return page

    return read


@check(b.VolumeHealthLister)
def the_health_listing_agrees_with_volume_health(t: CheckContext) -> None:
    for one in pages(t.client.list_health)[:10]:
        try:
            asked = t.client.health(one.handle)
        except NotFound:
            continue  # gone meanwhile, and somebody else's
        same(set(asked), set(one.entries), f"volume_health of {one.handle!r}, against list_volume_health")


@check(b.VolumeHealthLister, target=Target.BACKEND)
def an_unknown_health_cursor_is_refused(t: CheckContext) -> None:
    for odd in (FOREIGN, " ", FOREIGN * 6):
        with t.refused(InvalidToken, what=f"list_volume_health after cursor {odd!r}, which nobody issued"):
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
    opened(t, made)

    found = t.backend.node_volume_health(made.handle)
    well_told(found, "node_volume_health of a new volume that is open")
    same(found, (), "node_volume_health of a new volume that is open")


@check(b.NodeHealthReporter, target=Target.BACKEND)
def storage_problems_have_a_reason_and_a_message(t: CheckContext) -> None:
    """Something may be: a filesystem that is nearly full, for example."""
    found = t.backend.node_storage_health(t.storage.secrets)

    expect(isinstance(found, tuple), f"node_storage_health: {found!r} is not a tuple of StorageHealthEntry")
    well_told(found, "node_storage_health")
