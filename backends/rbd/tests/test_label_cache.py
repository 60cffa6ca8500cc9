"""Labels in memory: only of the image they were read from, and only so many."""

from __future__ import annotations

import pytest
from csi_multi_rbd import labels
from csi_multi_rbd.backend import RbdBackend
from csi_multi_rbd.label_cache import LabelCache
from csi_multi_rbd.labels import Label

from csi_multi.contract import FailedPrecondition, NotFound, Stamp, Volume

from .fake_cluster import FakeCluster, FakeImage
from .volumes import SIZE, create, delete, expand, image, volume_request

STAMP = Stamp(driver="d", cluster="c", name="v", digest="")


def label(image: str) -> Label:
    return Label(image=image, stamp=STAMP)


def test_a_label_is_of_the_image_with_its_id_and_name_only() -> None:
    cache = LabelCache()
    cache.put("1", label("a"))

    assert cache.get("a", "1") == label("a")
    assert cache.get("a", "2") is cache.get("b", "1") is None


def test_what_is_forgotten_is_not_seen_any_more() -> None:
    cache = LabelCache()
    cache.put("1", label("a"))
    cache.note_created("b")
    assert cache.seen("a")
    assert cache.seen("b")
    for name in "ab":
        cache.forget(name)

    assert not cache.seen("a")
    assert not cache.seen("b")
    assert cache.get("a", "1") is None


def test_the_labels_used_last_are_kept() -> None:
    cache = LabelCache(most=2)
    cache.put("1", label("a"))
    cache.put("2", label("b"))
    assert cache.get("a", "1")
    cache.put("3", label("c"))

    assert [cache.get(name, id) is not None for name, id in (("a", "1"), ("b", "2"), ("c", "3"))] == [True, False, True]
    cache.note_created("d")
    assert not cache.seen("b")


@pytest.fixture
def pool() -> FakeCluster:
    return FakeCluster()


def made_anew(pool: FakeCluster, backend: RbdBackend, **meta: str) -> FakeImage:
    """Let another image take the name of the volume `v`, which was read."""
    create(backend, "v")
    backend.get_volume("v")
    name = image(backend, "v")
    pool.images[name] = FakeImage(name=name, id="another", size=SIZE, meta=meta)
    return pool.images[name]


def test_another_drivers_image_under_the_name_of_a_known_volume_is_refused(pool: FakeCluster) -> None:
    backend = pool.backend()
    theirs = labels.encode(Label(image=image(backend, "v"), stamp=STAMP))
    made_anew(pool, backend, **{labels.KEY: theirs})

    for act in (lambda: backend.delete_volume("v", {}), lambda: backend.get_volume("v")):
        with pytest.raises(FailedPrecondition, match="belongs to driver 'd'"):
            act()
    assert image(backend, "v") in pool.images
    backend.close()


def test_an_unlabelled_image_under_the_name_of_a_known_volume_is_no_volume(pool: FakeCluster) -> None:
    backend = pool.backend()
    made_anew(pool, backend)

    with pytest.raises(NotFound):
        backend.get_volume("v")
    with pytest.raises(NotFound):
        expand(backend, Volume(handle="v", size=SIZE, stamp=STAMP), 2 * SIZE)
    backend.close()


def test_an_image_that_is_cut_short_is_no_volume_whatever_was_read(pool: FakeCluster) -> None:
    backend = pool.backend()
    create(backend, "v")
    backend.get_volume("v")
    pool.images[image(backend, "v")].size = 200

    with pytest.raises(NotFound):
        backend.get_volume("v")
    backend.close()


def test_a_volume_that_is_deleted_and_created_anew_is_read_anew(pool: FakeCluster) -> None:
    backend = pool.backend()
    backend.check()
    create(backend, "v")
    delete(backend, backend.get_volume("v"))
    request = volume_request(backend, "v", 2 * SIZE)
    with pool.counted() as seen:
        backend.create_volume(request)

    assert seen == ["rbd import"]
    assert backend.get_volume("v").size == 2 * SIZE
    backend.close()


def test_a_volume_that_another_process_deleted_is_created_anew(pool: FakeCluster) -> None:
    backend, other = pool.backend(), pool.backend()
    create(backend, "v")
    other.delete_volume("v", {})

    assert create(backend, "v").handle == "v"
    for one in (backend, other):
        one.close()
