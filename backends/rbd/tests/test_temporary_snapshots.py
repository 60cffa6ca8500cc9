"""Temporary snapshots of copies: removed after the answer, by the next start, or before their volume."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from csi_multi_rbd import background, temporary_snapshots
from csi_multi_rbd.backend import RbdBackend

from csi_multi.contract import Unavailable

from .commands import Died
from .fake_cluster import FakeCluster, Refused
from .volumes import copy, create, delete, image, snapshot

IDLE_SECONDS = 10.0
EIO = 5


@pytest.fixture
def pool() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
def backend(pool: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[RbdBackend]:
    monkeypatch.setattr(background.BackgroundWorker.__init__, "__kwdefaults__", {"pause": 0.01})
    backend = pool.backend()
    yield backend
    backend.close()


def visible(pool: FakeCluster) -> list[str]:
    return [one.name for image in pool.images.values() for one in image.snapshots if one.namespace == "user"]


def at(pool: FakeCluster, words: str, act: type[BaseException]) -> None:
    """Raise at the first command that begins with these words."""

    def before(command: str) -> None:
        if command.startswith(words):
            pool.before = lambda _: None
            raise act(EIO) if act is Refused else act(command)

    pool.before = before


def test_a_driver_that_dies_right_after_the_answer_leaves_the_removal_to_the_next(pool: FakeCluster) -> None:
    killed = pool.backend()
    killed.close()  # nothing runs in the background any more
    cut = snapshot(killed, "s", create(killed, "v"))
    assert visible(pool) == ["csi-tmp-snap-s"]

    following = pool.backend()
    following.resume()

    assert visible(pool) == []
    assert following.get_snapshot("s") == cut
    following.close()


def test_a_removal_that_fails_is_repeated(pool: FakeCluster, backend: RbdBackend) -> None:
    volume = create(backend, "v")
    failed: list[str] = []

    def before(command: str) -> None:
        if command.startswith("rbd snap rm") and len(failed) < 2:
            failed.append(command)
            raise Unavailable("not now")

    pool.before = before
    snapshot(backend, "s", volume)

    assert backend.wait_until_idle(IDLE_SECONDS)
    assert visible(pool) == []
    assert len(failed) == 2


def test_a_volume_can_be_deleted_before_the_snapshot_is_removed(pool: FakeCluster) -> None:
    backend = pool.backend()
    backend.main.temporaries.close()
    volume = create(backend, "v")
    cut, clone = snapshot(backend, "s", volume), copy(backend, "c", volume)
    delete(backend, volume)
    assert visible(pool) == []
    delete(backend, cut, clone)
    assert backend.main.trash.wait_until_idle(IDLE_SECONDS)

    assert (pool.images, pool.trash) == ({}, {})
    backend.close()


def test_the_removal_for_an_earlier_copy_does_not_take_the_snapshot_of_one_that_is_being_made(
    pool: FakeCluster, backend: RbdBackend
) -> None:
    volume = create(backend, "v")

    def before(command: str) -> None:
        if command.startswith("rbd clone"):
            backend.main.temporaries.remove_later(image(backend, volume), "csi-tmp-snap-s", copied=True)
            tried.wait(0.2)  # with nobody in its way it would be tried at once
        if command.startswith("rbd snap rm"):
            tried.set()

    tried = threading.Event()
    pool.before = before
    cut = snapshot(backend, "s", volume)

    assert backend.wait_until_idle(IDLE_SECONDS)
    assert backend.get_snapshot("s") == cut
    assert visible(pool) == []


def test_what_a_failed_copy_leaves_is_removed_when_nobody_repeats_it(
    pool: FakeCluster, backend: RbdBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(temporary_snapshots, "ABANDONED_SECONDS", 0.0)
    volume = create(backend, "v")
    at(pool, "rbd image-meta set", Unavailable)
    with pytest.raises(Unavailable):
        snapshot(backend, "s", volume)

    assert backend.wait_until_idle(IDLE_SECONDS)
    assert visible(pool) == []
    assert list(pool.images) == [image(backend, volume)]


def test_nothing_waits_for_a_snapshot_that_went_with_its_volume(pool: FakeCluster, backend: RbdBackend) -> None:
    volume = create(backend, "v")
    at(pool, "rbd image-meta set", Unavailable)
    with pytest.raises(Unavailable):
        snapshot(backend, "s", volume)
    delete(backend, volume)

    assert backend.main.temporaries.wait_until_idle(0)
    assert pool.images == {}


def test_a_copy_whose_driver_died_is_made_anew_by_the_retry(pool: FakeCluster, backend: RbdBackend) -> None:
    volume = create(backend, "v")
    at(pool, "rbd image-meta set", Died)
    with pytest.raises(Died):
        snapshot(backend, "s", volume)
    left = next(one.id for one in pool.images.values() if "snap" in one.name)

    cut = snapshot(backend, "s", volume)

    assert backend.wait_until_idle(IDLE_SECONDS)
    assert visible(pool) == []
    assert pool.images[image(backend, cut)].id != left


def test_without_a_key_for_later_the_snapshot_is_removed_before_the_answer(pool: FakeCluster) -> None:
    backend = pool.backend(keyring="")
    secrets = {"userID": "csi", "userKey": "QUJDREVGR0hJSktMTU5PUA=="}
    volume = create(backend, "v", secrets=secrets)
    with pool.counted() as seen:
        snapshot(backend, "s", volume, secrets=secrets)

    assert seen[-2:] == ["rbd snap rm", "rbd image-meta set"]
    assert visible(pool) == []
    backend.close()
