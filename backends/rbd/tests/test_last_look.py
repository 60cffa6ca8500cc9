"""The look of the core before a copy counts for that copy, and for nothing else."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from csi_multi_rbd import last_look
from csi_multi_rbd.backend import RbdBackend

from csi_multi.contract import NotFound, Source, SourceKind, Volume

from .fake_cluster import FakeCluster
from .volumes import MOUNTED, SIZE, copy, create, delete, expand, snapshot

LOOK = "rbd info"
SOURCE = Source(kind=SourceKind.VOLUME, handle="v")


@pytest.fixture
def pool() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
def backend(pool: FakeCluster) -> Iterator[RbdBackend]:
    backend = pool.backend()
    yield backend
    backend.close()


@pytest.fixture
def known(backend: RbdBackend) -> Volume:
    create(backend, "v")
    return backend.get_volume("v")


def looks(pool: FakeCluster, backend: RbdBackend, name: str, volume: Volume) -> int:
    with pool.counted() as seen:
        snapshot(backend, name, volume)
    return seen.count(LOOK)


def test_it_counts_once(pool: FakeCluster, backend: RbdBackend, known: Volume) -> None:
    backend.source_stamp(SOURCE)

    assert [looks(pool, backend, name, known) for name in ("s", "t")] == [0, 1]


def test_it_does_not_count_when_it_is_old(
    pool: FakeCluster, backend: RbdBackend, known: Volume, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(last_look, "SECONDS", 0.0)
    backend.source_stamp(SOURCE)

    assert looks(pool, backend, "s", known) == 1


def test_it_does_not_count_for_another_image_or_thread(pool: FakeCluster, backend: RbdBackend, known: Volume) -> None:
    other = create(backend, "w")
    backend.source_stamp(SOURCE)
    assert looks(pool, backend, "s", other) == 1

    thread = threading.Thread(target=backend.source_stamp, args=(SOURCE,))
    thread.start()
    thread.join()
    assert looks(pool, backend, "t", known) == 1


def test_it_does_not_count_for_a_raw_volume_whose_source_the_core_does_not_read(
    pool: FakeCluster, backend: RbdBackend, known: Volume
) -> None:
    other = pool.backend()
    backend.source_stamp(SOURCE)  # of an earlier request, which failed
    delete(other, known)
    create(other, "v", 2 * SIZE)

    assert copy(backend, "c", known).size == 2 * SIZE
    other.close()


def test_it_does_not_count_for_another_user(pool: FakeCluster, backend: RbdBackend, known: Volume) -> None:
    backend.source_stamp(SOURCE)
    with pool.counted() as seen:
        snapshot(backend, "s", known, secrets={"userID": "other", "userKey": "QVFBQUFBQUFBQUFBQUFBQQ=="})

    assert seen.count(LOOK) == 1


def test_a_source_that_another_process_deletes_after_it_is_not_found_and_nothing_stays(
    pool: FakeCluster, backend: RbdBackend, known: Volume
) -> None:
    other = pool.backend()
    backend.source_stamp(SOURCE)
    delete(other, known)

    with pytest.raises(NotFound):
        snapshot(backend, "s", known)
    assert list(pool.images) == []
    other.close()


def test_a_copy_of_what_another_process_enlarges_after_it_has_all_of_it(
    pool: FakeCluster, backend: RbdBackend, known: Volume
) -> None:
    other = pool.backend()
    backend.source_stamp(SOURCE)
    expand(other, known, 2 * SIZE)
    copied = copy(backend, "c", known, capabilities=MOUNTED)

    assert backend.get_volume(copied.handle).size == 2 * SIZE
    other.close()
