"""Which images a start flattens: counted in one listing, and by their labels where that does not show them all."""

from __future__ import annotations

import pytest
from csi_multi_rbd.backend import RbdBackend
from csi_multi_rbd.flatten import Flattener

from .fake_cluster import FakeCluster
from .volumes import copy, create, delete, image, snapshot

IDLE_SECONDS = 10.0


@pytest.fixture
def flattened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Instead of flattening, collect what is left to flatten."""
    found: list[str] = []

    def flatten(self: Flattener, name: str) -> None:
        if name not in self._unsure or self._has_too_many(name):
            found.append(name)
        self._unsure.discard(name)

    monkeypatch.setattr(Flattener, "_flatten", flatten)
    return found


def chain(pool: FakeCluster) -> RbdBackend:
    """v <- s <- r, of which `r` has as many ancestors as an image may have."""
    backend = pool.backend(flatten_depth=15, max_depth=15)
    volume = create(backend, "v")
    cut = snapshot(backend, "s", volume)
    copy(backend, "r", cut)
    assert backend.wait_until_idle(IDLE_SECONDS)
    return backend


def started(pool: FakeCluster) -> RbdBackend:
    starting = pool.backend(flatten_depth=2, max_depth=4)
    starting.resume()
    assert starting.main._flattener._worker.wait_until_idle(IDLE_SECONDS)
    return starting


def test_an_image_with_too_many_ancestors_is_found_in_the_listing(flattened: list[str]) -> None:
    pool = FakeCluster()
    backend = chain(pool)
    with pool.counted() as seen:
        started(pool)

    assert flattened == [image(backend, "r")]
    assert seen == ["rbd ls", "rbd group ls"]


def test_where_the_listing_ends_in_the_trash_the_label_says_how_many_there_are(flattened: list[str]) -> None:
    pool = FakeCluster()
    backend = chain(pool)
    create(backend, "plain")
    delete(backend, backend.get_snapshot("s"))
    started(pool)

    assert flattened == [image(backend, "r")]
    looks = [one for one in pool.background if one.startswith("rbd info")]
    assert looks == [f"rbd info k8s/{image(backend, 'r')}"]


def test_an_image_that_is_gone_or_damaged_by_then_is_left_alone(flattened: list[str]) -> None:
    pool = FakeCluster()
    backend = chain(pool)
    delete(backend, backend.get_snapshot("s"))
    pool.images[image(backend, "r")].meta["csi-multi"] = "{"
    started(pool)

    assert flattened == []
