"""Names in the pool, and the handles that stand for them."""

from __future__ import annotations

import pytest
from csi_multi_rbd import names
from csi_multi_rbd.shelf import Shelf

from csi_multi.contract import NotFound, Setting
from csi_multi.host.command import LocalHost

NAMES = ["pvc-0a1b2c3d", "Pvc", "a/b", "v\t\N{ROCKET}", "x" * 128, "-", "x-looks-hashed"]


def shelf(driver: str = "d.example", cluster: str = "c", kind: str = names.VOLUME) -> Shelf:
    return Shelf(kind, Setting(instance="i", driver=driver, cluster=cluster, node="n", host=LocalHost()))


@pytest.mark.parametrize("name", NAMES)
def test_an_image_has_a_name_that_rbd_takes_and_leads_back_to_its_handle(name: str) -> None:
    leaf = names.leaf_for(name)

    image = shelf().name(leaf)
    assert not set(image) & set("/@ \t")
    assert image.isascii()
    assert len(image) <= 64
    assert shelf().leaf_of(image) == names.leaf("volume", leaf) == leaf


def test_names_of_different_requests_differ() -> None:
    assert len({names.leaf_for(name) for name in NAMES}) == len(NAMES)


def test_drivers_and_clusters_that_share_a_pool_have_names_of_their_own() -> None:
    found = {shelf(*who).name("v") for who in (("d", "c"), ("d", "e"), ("f", "c"), ("dc", ""))}
    found.add(shelf("d", "c", names.SNAPSHOT).name("v"))

    assert len(found) == 5


@pytest.mark.parametrize("image", ["", "csi-vol-", "v", "csi-vol-v", "csi-snap-00000000-v"])
def test_an_image_of_others_has_no_handle(image: str) -> None:
    assert shelf().leaf_of(image) == ""
    assert shelf().leaf_of(shelf().prefix + image.upper() + "/") == ""


@pytest.mark.parametrize("handle", ["", "a/b", "a@b", "UPPER", "-a", "a" * 44, "../x"])
def test_a_handle_of_another_shape_is_not_found(handle: str) -> None:
    with pytest.raises(NotFound):
        names.leaf("volume", handle)


def test_cuts_of_one_volume_for_copies_of_one_name_differ() -> None:
    both = {names.temporary(kind, "a") for kind in (names.VOLUME, names.SNAPSHOT)}

    assert len(both) == 2
    assert all(map(names.is_temporary, both))
    assert not names.is_temporary(names.BASE)
