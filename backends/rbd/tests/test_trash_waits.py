"""The trash of a cluster in memory: what clones need is tried ever more rarely, and at once when a clone goes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from csi_multi_rbd import trash
from csi_multi_rbd.backend import RbdBackend

from .fake_cluster import FakeCluster
from .volumes import copy, create, delete, image, snapshot

IDLE_SECONDS = 10.0


@pytest.fixture
def pool() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
def backend(pool: FakeCluster) -> Iterator[RbdBackend]:
    backend = pool.backend()
    yield backend
    backend.close()


class Clock:
    now = 10_000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(trash, "time", clock)
    return clock


def purges(pool: FakeCluster, backend: RbdBackend) -> list[str]:
    """Return the purges of one more sweep."""
    before = len(pool.background)
    backend.main.trash.sweep(now=True)
    assert backend.wait_until_idle(IDLE_SECONDS)
    return [one for one in pool.background[before:] if one.startswith("rbd trash rm")]


def test_an_image_that_a_clone_needs_is_tried_ever_more_rarely(
    pool: FakeCluster, backend: RbdBackend, clock: Clock
) -> None:
    volume = create(backend, "v")
    snapshot(backend, "s", volume)
    delete(backend, volume)
    assert backend.wait_until_idle(IDLE_SECONDS)

    for pause in (600, 1200, 2400, 3600, 3600):
        clock.now += pause - 1
        assert purges(pool, backend) == []
        clock.now += 1
        assert len(purges(pool, backend)) == 1


def test_an_image_goes_at_once_with_the_last_clone_that_needed_it(
    pool: FakeCluster, backend: RbdBackend, clock: Clock
) -> None:
    volume = create(backend, "v")
    cut = snapshot(backend, "s", volume)
    delete(backend, volume)
    assert backend.wait_until_idle(IDLE_SECONDS)
    delete(backend, cut)

    assert backend.wait_until_idle(IDLE_SECONDS)
    assert pool.trash == {}


def test_a_start_tries_no_image_whose_clone_it_sees(pool: FakeCluster, backend: RbdBackend, clock: Clock) -> None:
    volume = create(backend, "v")
    cut = snapshot(backend, "s", volume)
    restored = copy(backend, "r", cut)
    delete(backend, volume, cut)
    assert backend.wait_until_idle(IDLE_SECONDS)

    starting, before = pool.backend(), len(pool.background)
    starting.resume()
    assert starting.wait_until_idle(IDLE_SECONDS)
    tried = [one for one in pool.background[before:] if "trash rm" in one]
    assert tried == [
        f"rbd trash rm k8s/{next(id for id, one in pool.trash.items() if one.name == image(backend, 'v'))}"
    ]

    delete(starting, restored)
    assert starting.wait_until_idle(IDLE_SECONDS)
    assert pool.trash == {}
    starting.close()


def test_a_start_empties_a_chain_that_an_earlier_process_left_in_the_trash(pool: FakeCluster, clock: Clock) -> None:
    killed = pool.backend()
    volume = create(killed, "v")
    cut = snapshot(killed, "s", volume)
    restored = copy(killed, "r", cut)
    assert killed.wait_until_idle(IDLE_SECONDS)
    killed.close()  # its background does nothing any more
    delete(killed, volume, cut, restored)
    assert len(pool.trash) == 3

    starting = pool.backend()
    starting.resume()
    assert starting.wait_until_idle(IDLE_SECONDS)

    assert pool.trash == {}
    starting.close()


def test_a_listing_that_shows_no_clone_any_more_ends_the_wait(
    pool: FakeCluster, backend: RbdBackend, clock: Clock
) -> None:
    """As after `ceph rbd task add flatten`."""
    volume = create(backend, "v")
    cut = snapshot(backend, "s", volume)
    delete(backend, volume)
    assert backend.wait_until_idle(IDLE_SECONDS)
    (gone,) = pool.trash.values()
    pool.images[image(backend, cut)].parent = None
    gone.snapshots.clear()

    backend.resume()
    assert backend.wait_until_idle(IDLE_SECONDS)
    assert pool.trash == {}
