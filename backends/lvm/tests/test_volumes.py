"""Every type of volume on real LVM: it has the requested layout and size, and keeps its layout when it grows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from csi_multi_lvm.backend import LvmBackend
from csi_multi_lvm.config import Parameters

from csi_multi.contract import CapacityRequest, NotFound, PageRequest, ResourceExhausted, Setting

from .group import EXTENT, MIB, Group
from .matrix import FULL, once
from .volume_steps import (
    Died,
    DyingHost,
    create,
    delete,
    expand,
    fill,
    lv_fields,
    lv_name,
    opened,
    raid_images,
    read,
    size_of,
    stamp,
    zeros,
)

pytestmark = pytest.mark.devicemapper

BackendOn = Callable[..., LvmBackend]
FIELDS = ("segtype", "stripes", "data_stripes", "data_copies", "stripe_size", "raidintegritymode", "lv_size")
# The StorageClass's parameters, the extents of a row, and what lvs reports as FIELDS.
TYPES: dict[str, tuple[dict[str, Any], int, tuple[str, ...]]] = {
    "thin": ({}, 1, ("thin", "0", "0", "1", "0", "")),
    "linear": ({}, 1, ("linear", "1", "1", "1", "0", "")),
    "striped": ({"stripes": 3, "stripe_size": 8192}, 3, ("striped", "3", "3", "1", "8192", "")),
    "raid1": ({"mirrors": 2}, 1, ("raid1", "3", "3", "3", "0", "")),
    "raid5": ({"stripe_size": 16384}, 2, ("raid5", "3", "2", "2", "16384", "")),
    "raid6": ({}, 3, ("raid6", "5", "3", "3", "65536", "")),
    "raid10": ({"stripes": 2, "mirrors": 1}, 2, ("raid10", "4", "2", "2", "65536", "")),
}


@pytest.mark.parametrize("kind", TYPES)
def test_a_volume_has_its_type_and_keeps_it_while_it_grows_open_and_closed(
    kind: str, five: Group, backend_on: BackendOn
) -> None:
    parameters, row, wanted = TYPES[kind]
    backend = backend_on(five)
    volume = create(backend, "v", 3 * EXTENT + 1, type=kind, **parameters)
    rows = -(-4 // row)
    assert volume.size == rows * row * EXTENT

    with opened(backend, volume, block=False) as device:
        assert size_of(device) == volume.size
        grown = expand(backend, volume, volume.size + 1)
        assert grown == size_of(device) == (rows + 1) * row * EXTENT
        fill(device.path, grown - MIB)
    assert expand(backend, volume, grown) == grown
    larger = expand(backend, volume, grown + row * EXTENT)
    with opened(backend, volume, block=False) as device:
        assert size_of(device) == larger == (rows + 2) * row * EXTENT
        assert not zeros(device.path, grown - MIB, grown)

    said = lv_fields(five, volume, *FIELDS)
    assert tuple(said.values()) == (*wanted, str(larger))
    if kind.startswith("raid"):
        disks = raid_images(five, lv_name(volume))
        assert len(disks) == int(said["stripes"])
        assert sum(map(len, disks)) == len(set.union(*disks)), f"images share disks: {disks}"
    delete(backend, volume)


@pytest.mark.parametrize("kind", TYPES if FULL else ("thin", "linear", "raid10"))
def test_the_capacity_can_be_created_and_a_row_of_extents_more_cannot(
    kind: str, five: Group, backend_on: BackendOn
) -> None:
    parameters, row, _ = TYPES[kind]
    backend = backend_on(five, overprovision=1)
    report = backend.capacity(CapacityRequest(parameters=Parameters(type=kind, **parameters)))
    largest = report.maximum or 0
    assert largest % (row * EXTENT) == 0

    with pytest.raises(ResourceExhausted, match=str(largest)):
        create(backend, "more", largest + row * EXTENT, type=kind, **parameters)
    volume = create(backend, "most", largest, type=kind, **parameters)

    assert volume.size == largest
    assert int(lv_fields(five, volume, "lv_size")["lv_size"]) == largest
    delete(backend, volume)
    if kind != "thin":  # LVM itself cannot create more either
        words = volume_words(kind, parameters, largest + row * EXTENT)
        answer = five.lvm.host.run("lvcreate", "-qq", "-an", "-Zn", "-Wn", *words, "-n", "more", five.name, ok=(0, 5))
        if answer.status == 0:
            five.lvm.run("lvremove", "-qq", "-y", f"{five.name}/more")
        assert answer.status == 5, "lvcreate makes a larger one"


def volume_words(kind: str, parameters: dict[str, Any], size: int) -> list[str]:
    """Return the arguments that a person would give to lvcreate."""
    names = {"stripes": "--stripes", "mirrors": "--mirrors"}
    least = {"raid5": {"stripes": 2}, "raid6": {"stripes": 3}}.get(kind, {})
    counts = {**least, **{key: value for key, value in parameters.items() if key in names}}
    return ["--type", kind, "-L", f"{size}b", *(w for key, value in counts.items() for w in (names[key], str(value)))]


@pytest.mark.parametrize("attempt", once(0, 1, 2))
def test_a_raid1_volume_with_integrity_works_and_grows(attempt: int, five: Group, backend_on: BackendOn) -> None:
    """In the matrix three times, because kernels sometimes deadlock when lvcreate adds integrity."""
    backend = backend_on(five)
    volume = create(backend, f"v{attempt}", 2 * EXTENT, type="raid1", integrity=True)
    assert backend.find_device(volume.handle) is None  # lvconvert has activated it
    with opened(backend, volume, block=False) as device:
        fill(device.path)
        data = read(device.path)
        assert expand(backend, volume, 3 * EXTENT) == size_of(device) == 3 * EXTENT

    with opened(backend, volume, block=False) as device:
        assert read(device.path)[: len(data)] == data
        said = lv_fields(five, volume, "segtype", "raidintegritymode", "integritymismatches", "lv_health_status")
        assert tuple(said.values()) == ("raid1", "journal", "0", "")
    delete(backend, volume)


def test_the_capacity_with_integrity_can_be_created(five: Group, backend_on: BackendOn) -> None:
    backend = backend_on(five)
    wanted = Parameters(type="raid1", integrity=True)
    largest = backend.capacity(CapacityRequest(parameters=wanted)).maximum or 0

    volume = create(backend, "most", largest, type="raid1", integrity=True)
    said = lv_fields(five, volume, "lv_size", "raidintegritymode")
    assert tuple(said.values()) == (str(largest), "journal")
    delete(backend, volume)


def test_a_volume_without_its_requested_integrity_is_not_found_until_a_retry_completes_it(
    five: Group, backend_on: BackendOn, setting: Setting
) -> None:
    dying = backend_on(five, setting=replace(setting, host=DyingHost("lvconvert")))
    with pytest.raises(Died):
        create(dying, "v", 2 * EXTENT, type="raid1", integrity=True)
    assert five.left() != []

    backend = backend_on(five)
    with pytest.raises(NotFound):
        backend.find_volume("v")
    assert backend.list_volumes(PageRequest()).items == ()
    volume = create(backend, "v", 2 * EXTENT, type="raid1", integrity=True)
    assert lv_fields(five, volume, "raidintegritymode") == {"raidintegritymode": "journal"}
    assert backend.find_volume("v").stamp == stamp(backend, "v")
    delete(backend, volume)
