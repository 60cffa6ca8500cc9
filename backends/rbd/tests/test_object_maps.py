"""What an image's header and object maps say, read without rbd: as rbd says, and never too little."""

from __future__ import annotations

import json

import pytest
from csi_multi_rbd import object_maps
from csi_multi_rbd.backend import RbdBackend
from csi_multi_rbd.errors import CephCommandFailed, ObjectNotFound

from .ceph import Cluster
from .volumes import create, info, snapshot, spec, write

MIB = 2**20
NONE, WRITTEN, PENDING, CLEAN = 0, 1, 2, 3  # states of an object


def packed(*states: int) -> bytes:
    """Return a map of objects in these states."""
    whole = [*states, *[NONE] * (-len(states) % 4)]
    return bytes(a << 6 | b << 4 | c << 2 | d for a, b, c, d in zip(*[iter(whole)] * 4, strict=True))


def numbers(entries: bytes) -> list[int]:
    return list(object_maps.marked(entries, 0))


@pytest.mark.parametrize(
    ("maps", "wanted"),
    [
        ([[CLEAN], [CLEAN]], []),
        ([[WRITTEN], [CLEAN]], []),
        ([[NONE], [NONE]], []),
        ([[NONE], [WRITTEN]], [0]),
        ([[CLEAN], [WRITTEN]], [0]),
        ([[CLEAN], [PENDING]], [0]),
        ([[WRITTEN], [NONE]], [0]),
        ([[NONE], [CLEAN]], [0]),
        ([[CLEAN], [WRITTEN], [CLEAN]], [0]),
        ([[WRITTEN], [NONE], [NONE]], [0]),
        ([[WRITTEN]], []),
        ([[CLEAN], [CLEAN, NONE, NONE, NONE, NONE, WRITTEN]], [5]),
        ([[CLEAN] * 6, [CLEAN] * 6, [WRITTEN, CLEAN, CLEAN, PENDING, CLEAN, NONE]], [0, 3, 5]),
    ],
)
def test_an_object_has_changed_unless_every_map_says_that_it_has_not(maps: list[list[int]], wanted: list[int]) -> None:
    assert numbers(object_maps.changed([packed(*one) for one in maps])) == wanted


def test_every_object_in_any_state_exists() -> None:
    assert numbers(object_maps.existing(packed(NONE, WRITTEN, PENDING, CLEAN, NONE, CLEAN))) == [1, 2, 3, 5]


@pytest.mark.parametrize("start", range(7))
def test_marks_are_read_from_any_object_on(start: int) -> None:
    entries = object_maps.existing(packed(WRITTEN, NONE, WRITTEN, WRITTEN, NONE, WRITTEN))

    assert list(object_maps.marked(entries, start)) == [one for one in (0, 2, 3, 5) if one >= start]


def test_the_header_of_an_image_has_what_rbd_says(cluster: Cluster, backend: RbdBackend) -> None:
    volume = create(backend, "v", object_size=MIB)
    for name in ("one", "two"):
        snapshot(backend, name, volume)
    assert backend.wait_until_idle(90)
    cluster.rbd("snap", "create", f"{spec(backend, volume)}@by-hand")
    told = json.loads(cluster.rbd("snap", "ls", "--all", "--format", "json", spec(backend, volume)))

    record = object_maps.read_record(backend.main.client, info(cluster, backend, volume)["id"])
    found = [(one.id, one.name, one.size, one.flags) for one in record.snapshots]
    assert found == [(one["id"], one["name"], one["size"], 0) for one in told]
    assert len(found) == 3
    assert (record.object_size, record.stripe_count) == (MIB, 1)
    assert record.features & object_maps.OBJECT_MAP
    assert record.features & object_maps.FAST_DIFF


def test_the_header_tells_of_stripes_and_of_maps_that_are_not_valid(cluster: Cluster, backend: RbdBackend) -> None:
    volume = create(backend, "v", object_size=MIB, stripe_unit=MIB // 4, stripe_count=2, image_features="layering")
    cluster.rbd("snap", "create", f"{spec(backend, volume)}@old")
    cluster.rbd("feature", "enable", spec(backend, volume), "exclusive-lock", "object-map", "fast-diff")

    record = object_maps.read_record(backend.main.client, info(cluster, backend, volume)["id"])
    assert record.stripe_count == 2
    [old] = record.snapshots
    assert old.flags & object_maps.OBJECT_MAP_INVALID


def test_the_map_of_an_image_says_which_objects_it_has(cluster: Cluster, backend: RbdBackend) -> None:
    volume = create(backend, "v", object_size=MIB)
    for at in (0, 5 * MIB, 15 * MIB):
        write(cluster, backend, volume, b"x", at)

    entries = object_maps.read_map(backend.main.client, info(cluster, backend, volume)["id"])
    assert numbers(object_maps.existing(entries)) == [0, 5, 15]


def test_what_is_not_there_is_not_found(cluster: Cluster, backend: RbdBackend) -> None:
    volume = create(backend, "v", image_features="layering")
    client, id = backend.main.client, info(cluster, backend, volume)["id"]

    with pytest.raises(ObjectNotFound):
        object_maps.read_map(client, id)
    with pytest.raises(ObjectNotFound):
        object_maps.read_map(client, id, 4)
    with pytest.raises((ObjectNotFound, CephCommandFailed)):
        object_maps.read_record(client, "no-such-id")
