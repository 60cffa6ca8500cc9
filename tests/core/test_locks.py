"""A second operation on the same object is refused at once, with the name of the first."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from csi_multi.contract import Busy
from csi_multi.core.locks import Locks

V = ("volume", "fast/v")
W = ("volume", "fast/w")


@pytest.fixture
def locks() -> Locks:
    return Locks()


def test_a_second_operation_on_an_object_is_refused(locks: Locks) -> None:
    with locks.hold("DeleteVolume", [V]), pytest.raises(Busy), locks.hold("ControllerExpandVolume", [V]):
        pytest.fail("both hold it")


def test_the_refusal_says_who_holds_it_and_since_when(locks: Locks) -> None:
    with (
        locks.hold("DeleteVolume", [V]),
        pytest.raises(Busy, match=r"DeleteVolume has held volume 'fast/v' for 0\.\d s; try again"),
        locks.hold("ControllerExpandVolume", [V]),
    ):
        pass


def test_other_objects_are_free(locks: Locks) -> None:
    with locks.hold("DeleteVolume", [V]), locks.hold("DeleteVolume", [W]), locks.hold("Make", [("new volume", V[1])]):
        assert len(locks.held()) == 3


def test_readers_share_and_keep_a_writer_out(locks: Locks) -> None:
    with locks.hold("CreateVolume", [], [V]), locks.hold("CreateVolume", [], [V]):
        with pytest.raises(Busy), locks.hold("DeleteVolume", [V]):
            pass
        assert len(locks.held()) == 2


def test_a_writer_keeps_readers_out(locks: Locks) -> None:
    with locks.hold("DeleteVolume", [V]), pytest.raises(Busy), locks.hold("CreateVolume", [], [V]):
        pass


def test_a_writer_waits_for_the_last_reader(locks: Locks) -> None:
    with locks.hold("CreateVolume", [], [V]):
        with locks.hold("CreateVolume", [], [V]):
            pass
        with pytest.raises(Busy), locks.hold("DeleteVolume", [V]):
            pass
    with locks.hold("DeleteVolume", [V]):
        assert [key for key, _, _ in locks.held()] == [V]


def test_one_operation_may_name_an_object_twice(locks: Locks) -> None:
    with locks.hold("CreateVolumeGroupSnapshot", [V, V], [V, W, W]):
        assert sorted(key for key, _, _ in locks.held()) == [V, W]
    assert not locks.held()


def test_nothing_is_taken_when_one_of_several_is_held(locks: Locks) -> None:
    with locks.hold("DeleteVolume", [W]):
        with pytest.raises(Busy), locks.hold("CreateVolumeGroupSnapshot", [V, W]):
            pass
        with locks.hold("DeleteVolume", [V]):
            pass


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, GeneratorExit])
def test_a_failing_operation_lets_go(error: type[BaseException], locks: Locks) -> None:
    with pytest.raises(error), locks.hold("DeleteVolume", [V], [W]):
        raise error
    assert not locks.held()


def test_what_is_held_is_listed_oldest_first(locks: Locks) -> None:
    with locks.hold("First", [V]), locks.hold("Second", [W]):
        rows = locks.held()

    assert [operation for _, operation, _ in rows] == ["First", "Second"]
    assert all(age >= 0 for *_, age in rows)


def test_never_two_writers_among_many_threads(locks: Locks) -> None:
    inside, seen, start = [], Counter(), threading.Barrier(16)

    def work() -> None:
        start.wait()
        for _ in range(300):
            try:
                with locks.hold("DeleteVolume", [V]):
                    inside.append(1)
                    seen[len(inside)] += 1
                    inside.pop()
            except Busy:
                seen["refused"] += 1

    with ThreadPoolExecutor(16) as pool:
        for future in [pool.submit(work) for _ in range(16)]:
            future.result()

    assert set(seen) <= {1, "refused"}
    assert seen[1] + seen["refused"] == 16 * 300
    assert not locks.held()
