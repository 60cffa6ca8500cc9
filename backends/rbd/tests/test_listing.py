"""Listings: pages in a stable order, of complete images of this driver; each label is read once."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import TypeVar

import pytest
from csi_multi_rbd import labels
from csi_multi_rbd.backend import RbdBackend

from csi_multi.contract import AlreadyExists, InvalidToken, Page, PageRequest, Snapshot, SnapshotRequest, Volume
from csi_multi.core import idempotent

from .ceph import Cluster
from .commands import watched
from .test_volumes import half_made, tear
from .volumes import copy, create, delete, info, snapshot, spec, stamp

T = TypeVar("T")
ALL = PageRequest()
MANY = 60


def pages(listing: Callable[[PageRequest], Page[T]], limit: int) -> list[tuple[T, ...]]:
    """Follow the cursors to the end."""
    found, cursor = [], ""
    while not found or cursor:
        page = listing(PageRequest(cursor=cursor, limit=limit))
        found.append(page.items)
        cursor = page.cursor
    return found


def handles(backend: RbdBackend) -> list[str]:
    return [volume.handle for volume in backend.list_volumes(ALL).items]


def of_images(commands: list[str]) -> list[str]:
    """Return the verbs of rbd; on a busy machine the background asks for the state of the cluster meanwhile."""
    return [command.split()[1] for command in commands if command.startswith("rbd ")]


def test_sixty_volumes_are_listed_in_pages_and_each_label_is_read_once(backend: RbdBackend) -> None:
    with ThreadPoolExecutor(4) as threads:
        made = list(threads.map(lambda number: create(backend, f"v{number:02}"), range(MANY)))
    with watched() as first:
        found = pages(backend.list_volumes, 25)
    with watched() as second:
        again = backend.list_volumes(ALL)

    assert [len(page) for page in found] == [25, 25, 10]
    assert [one for page in found for one in page] == list(again.items) == made
    assert sorted(of_images(first)) == ["image-meta"] * MANY + ["ls"]
    assert of_images(second) == ["ls"]


def test_a_page_goes_on_after_a_volume_that_is_gone_by_then(backend: RbdBackend) -> None:
    made = [create(backend, f"v{number}") for number in range(4)]
    page = backend.list_volumes(PageRequest(limit=2))
    delete(backend, made[1], made[2])
    create(backend, "v0b")

    rest = backend.list_volumes(PageRequest(cursor=page.cursor, limit=2))  # of what is known from the first page
    assert (page.items, rest.items, rest.cursor) == (tuple(made[:2]), (made[3],), "")


def test_a_cursor_that_was_never_given_out_is_refused(backend: RbdBackend) -> None:
    for cursor in ("../x", "no such/cursor", "A", "x" * 100):
        with pytest.raises(InvalidToken):
            backend.list_volumes(PageRequest(cursor=cursor))


def test_what_vanishes_while_it_is_listed_is_left_out(cluster: Cluster, backend: RbdBackend) -> None:
    made = [create(backend, f"v{number}") for number in range(3)]

    gone: list[str] = []

    def vanish(command: str) -> None:
        if command.startswith("rbd ls") and not gone:
            gone.append(cluster.rbd("rm", "--no-progress", spec(backend, made[1])))

    with watched(after=vanish):
        assert handles(backend) == ["v0", "v2"]
    assert gone


def test_only_finished_images_of_ours_are_listed(cluster: Cluster, backend: RbdBackend) -> None:
    create(backend, "v")
    for name in ("half", "torn"):
        half_made(cluster, backend, name)
    half_made(cluster, backend, "blank", labelled=False)
    tear(cluster, backend, "torn")
    create(backend, "damaged")
    cluster.rbd("image-meta", "set", spec(backend, "damaged"), labels.KEY, "{")
    cluster.rbd("create", "--size", "1M", f"{cluster.pool}/{backend.config.namespace}/by-hand")

    assert handles(backend) == ["v"]


def test_a_damaged_label_of_a_snapshot_does_not_hide_the_others(cluster: Cluster, backend: RbdBackend) -> None:
    volume = create(backend, "v")
    old, new = snapshot(backend, "old", volume), snapshot(backend, "new", volume)
    image = spec(backend, "old").replace("-vol-", "-snap-")
    label = json.loads(cluster.rbd("image-meta", "get", image, labels.KEY))
    for damage in ({"cut": 1e300}, {"source": ""}, {"source": "a\0"}):
        cluster.rbd("image-meta", "set", image, labels.KEY, json.dumps(label | damage))
        with closing(RbdBackend(backend.config, backend.setting)) as again:  # which has read no label yet
            found = again.list_snapshots(ALL)
        assert [one.handle for one in found.items] == [new.handle]
    cluster.rbd("image-meta", "set", image, labels.KEY, json.dumps(label))
    assert [one.handle for one in backend.list_snapshots(ALL).items] == [new.handle, old.handle]


def test_a_name_without_an_image_does_not_hide_the_others(cluster: Cluster, backend: RbdBackend) -> None:
    """`rbd ls --long` ends with an error when it cannot open the last image."""
    for name in ("a", "m", "z"):
        create(backend, name)
        if name != "m":
            tear(cluster, backend, name)

    assert handles(backend) == ["m"]


def test_a_half_made_volume_is_listed_once_it_is_finished(cluster: Cluster, backend: RbdBackend) -> None:
    half_made(cluster, backend, "v")
    assert handles(backend) == []
    create(backend, "v")

    assert handles(backend) == ["v"]


def test_a_volume_made_anew_under_an_old_name_is_listed_as_it_is_now(backend: RbdBackend) -> None:
    volume = create(backend, "v")
    assert backend.list_volumes(ALL).items == (volume,)
    delete(backend, volume)
    cut = snapshot(backend, "s", create(backend, "w"))
    again = copy(backend, "v", cut)

    assert next(one for one in backend.list_volumes(ALL).items if one.handle == "v") == again


def test_a_volume_that_has_grown_is_listed_with_its_size(cluster: Cluster, backend: RbdBackend) -> None:
    volume = create(backend, "v")
    assert backend.list_volumes(ALL).items[0].size == volume.size
    cluster.rbd("resize", "--no-progress", "--size", "32M", spec(backend, volume))

    assert backend.list_volumes(ALL).items[0].size == 2 * volume.size


def test_snapshots_are_listed_by_themselves_and_by_their_volume(backend: RbdBackend) -> None:
    one, two = create(backend, "v"), create(backend, "w")
    cuts = [snapshot(backend, f"s{number}", volume) for number, volume in enumerate((one, two, one))]
    delete(backend, two)

    assert backend.list_snapshots(ALL).items == tuple(cuts)
    assert pages(lambda page: backend.list_snapshots(page, one.handle), 1) == [
        (cuts[0],),
        (cuts[2],),
    ]
    assert backend.list_snapshots(ALL, two.handle).items == (cuts[1],)
    assert backend.list_snapshots(ALL, "nothing").items == ()
    assert handles(backend) == ["v"]


def test_a_volume_made_anew_does_not_inherit_the_snapshots_of_the_one_before(backend: RbdBackend) -> None:
    old = create(backend, "v")
    cut = snapshot(backend, "of-old", old)
    delete(backend, old)
    assert backend.list_snapshots(ALL, old.handle).items == (cut,)

    new = create(backend, "v")
    assert new.handle == old.handle
    assert backend.list_snapshots(ALL, new.handle).items == ()
    (listed,) = backend.list_snapshots(ALL).items
    assert listed == backend.get_snapshot(cut.handle) == replace(cut, source=listed.source)
    assert listed.source != new.handle
    assert backend.list_snapshots(ALL, listed.source).items == (listed,)

    own = snapshot(backend, "of-new", new)
    assert backend.list_snapshots(ALL, new.handle).items == (own,)
    delete(backend, new)
    assert {one.source for one in backend.list_snapshots(ALL).items} == {old.handle}


def test_a_snapshot_of_an_earlier_volume_is_not_given_for_one_of_the_volume_made_anew(
    cluster: Cluster, backend: RbdBackend
) -> None:
    def taken(volume: Volume) -> Snapshot:
        request = SnapshotRequest(stamp=stamp(backend, "s"), source=volume.handle)
        return idempotent.create_snapshot(backend, request)

    old = create(backend, "v")
    cut = taken(old)
    assert taken(old) == cut
    cluster.rbd("mv", spec(backend, old), spec(backend, "aside"))
    new = create(backend, "v")

    with pytest.raises(AlreadyExists, match="its source is volume"):
        taken(new)
    delete(backend, new)
    cluster.rbd("mv", spec(backend, "aside"), spec(backend, old))
    assert taken(old) == cut


def test_a_snapshot_that_does_not_say_which_image_it_is_of_is_listed(cluster: Cluster, backend: RbdBackend) -> None:
    """Earlier versions did not record it."""
    volume = create(backend, "v")
    cut = snapshot(backend, "s", volume)
    label = json.loads(cluster.rbd("image-meta", "get", spec(backend, cut), labels.KEY))
    assert label.pop("source_id") == info(cluster, backend, volume)["id"]
    cluster.rbd("image-meta", "set", spec(backend, cut), labels.KEY, json.dumps(label))

    assert backend.list_snapshots(ALL, volume.handle).items == (cut,)
