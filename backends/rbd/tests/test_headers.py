"""What the objects of an image say, read without opening it, is what rbd says where it opens it."""

from __future__ import annotations

import pytest
from csi_multi_rbd import headers, labels
from csi_multi_rbd.backend import RbdBackend
from csi_multi_rbd.errors import ObjectNotFound

from .ceph import Cluster
from .volumes import create, held, image, info, write

LAST = 15 * 2**20


def test_the_objects_of_an_image_say_what_rbd_says(cluster: Cluster, backend: RbdBackend) -> None:
    volume = create(backend, "v")
    name = image(backend, volume)
    empty = headers.read(backend.main.client, name)
    write(cluster, backend, volume, b"x", LAST)
    with held(cluster, backend, volume) as address:
        filled = headers.read(backend.main.client, name)

    assert empty.id == filled.id == info(cluster, backend, volume)["id"]
    assert empty.metadata == {labels.KEY: backend.main.client.metadata(name)[labels.KEY]}
    assert (empty.has_data, filled.has_data) == (False, True)
    assert empty.watchers == ()
    assert [address.split("/")[0] in one for one in filled.watchers] == [True]


def test_without_an_object_map_it_is_not_known_whether_there_is_data(backend: RbdBackend) -> None:
    volume = create(backend, "v", image_features="layering")
    found = headers.read(backend.main.client, image(backend, volume))

    assert found.has_data is None
    assert found.may_hold_data


def test_an_image_that_is_not_there_is_not_found(backend: RbdBackend) -> None:
    with pytest.raises(ObjectNotFound):
        headers.read(backend.main.client, "no-such-image")


@pytest.mark.parametrize("raw", [b"", b"\x0e\0\0\0", b"\x0e\0\0\0" + bytes(6) + b"\x08" + bytes(7)])
def test_an_object_map_that_is_cut_short_counts_as_data(raw: bytes) -> None:
    assert headers._any_object(raw)
