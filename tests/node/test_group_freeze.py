"""The filesystems of several volumes are frozen together, and thawed together. Needs root."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from csi_multi.contract import Busy, Unavailable
from csi_multi.node import freeze, freeze_notes, group_freeze
from csi_multi.node.group_freeze import VolumeUse
from tests.node.freezing import is_frozen

pytestmark = pytest.mark.root

MIB = 1 << 20
LONG = 60.0


@pytest.fixture(autouse=True)
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory for notes that no other driver on this machine looks at."""
    monkeypatch.setattr(freeze_notes, "NOTES", tmp_path / "notes")
    return tmp_path / "notes"


def use(world: Any, handle: str) -> VolumeUse:
    return group_freeze.use_of(world.backend, f"test/{handle}", handle, {})


@pytest.fixture
def staged(world: Any) -> Iterator[list[Path]]:
    """Two mounted volumes, v1 and v2."""
    paths = []
    for handle in ("v1", "v2"):
        world.volume(handle)
        paths.append(world.stage(handle))
    yield paths
    for handle in ("v1", "v2"):
        world.unstage(handle)


class Observed:
    """Which volumes are reported as frozen now, and which were."""

    def __init__(self) -> None:
        self.now: set[str] = set()
        self.ever: list[str] = []

    @contextmanager
    def __call__(self, volume: str) -> Iterator[None]:
        self.now.add(volume)
        self.ever.append(volume)
        try:
            yield
        finally:
            self.now.discard(volume)


def test_a_volume_that_is_not_open_needs_no_freeze(world: Any) -> None:
    world.volume()

    assert use(world, "v1") == VolumeUse("test/v1")
    assert use(world, "absent") == VolumeUse("test/absent")


def test_a_raw_block_volume_cannot_be_frozen_whether_published_or_not(world: Any) -> None:
    world.volume()
    world.stage(fs=None)
    staged = use(world, "v1")
    world.publish(fs=None)
    published = use(world, "v1")
    world.unpublish()
    world.unstage()

    assert (staged.raw, published.raw) == (True, True)
    assert published.frozen_device is None


def test_all_stand_still_for_the_block_and_each_is_reported(world: Any, staged: list[Path], notes: Path) -> None:
    uses, observed = [use(world, "v1"), use(world, "v2"), VolumeUse("test/idle")], Observed()

    with group_freeze.frozen_together(uses, LONG, observed) as require_time:
        assert [is_frozen(path) for path in staged] == [True, True]
        assert observed.now == {"test/v1", "test/v2"}
        require_time()

    assert [is_frozen(path) for path in staged] == [False, False]
    assert (observed.now, observed.ever) == (set(), ["test/v1", "test/v2"])
    assert os.listdir(notes) == []


def test_a_backend_that_freezes_a_member_for_its_cut_gets_no_freeze_of_its_own(world: Any, staged: list[Path]) -> None:
    device = world.device("v1").path

    with group_freeze.frozen_together([use(world, "v1")], LONG, Observed()):
        with freeze.frozen(device):
            assert is_frozen(staged[0])
        assert is_frozen(staged[0]), "the end of the inner block thaws nothing"
    with freeze.frozen(device):
        assert is_frozen(staged[0])
    assert not is_frozen(staged[0])


def test_the_copy_of_another_thread_does_not_count_on_the_freeze_of_a_group(world: Any, staged: list[Path]) -> None:
    def copy() -> None:
        with freeze.frozen(world.device("v1").path):
            pass

    with group_freeze.frozen_together([use(world, "v1")], LONG, Observed()), ThreadPoolExecutor(1) as other:
        error = other.submit(copy).exception(LONG)

    assert isinstance(error, Busy)
    assert "frozen for another copy" in str(error)


def test_all_are_thawed_when_the_time_is_over_and_the_group_is_given_up(world: Any, staged: list[Path]) -> None:
    uses = [use(world, "v1"), use(world, "v2")]

    def hold() -> None:
        with group_freeze.frozen_together(uses, 5, Observed()) as require_time:
            ends = time.monotonic() + LONG
            while any(is_frozen(path) for path in staged):
                assert time.monotonic() < ends
                time.sleep(0.05)
            with contextlib.suppress(Unavailable):
                require_time()
                pytest.fail("the time is over")

    with pytest.raises(Unavailable, match="was thawed after"):
        hold()
