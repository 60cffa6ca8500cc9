"""Health: no entry for a healthy volume, one reason for each problem (csi-spec VolumeHealthEntry).

These checks break nothing, so they see entries only if the storage has some.
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
from .devices import open_device
from .sources import expect_success

CAMEL_CASE_WORD = re.compile(r"([A-Z][a-z0-9]*)+")
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
