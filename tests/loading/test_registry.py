"""Instances are found by name, checked in the background, and closed; a broken one is known with its reason."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from csi_multi_testing.memory import MemoryBackend

from csi_multi.contract import InvalidArgument, NotFound, Unavailable
from csi_multi.loading.instance import Instance
from csi_multi.loading.registry import Registry


@pytest.fixture
def registry(make: Any) -> Registry:
    return Registry([make("fast"), make("slow")], {"bad": "no library"}, default="slow")


def test_the_default_is_taken_when_nothing_is_named(registry: Registry) -> None:
    assert registry.choose(None).name == "slow"
    assert registry.choose("fast").name == "fast"


def test_an_unknown_instance_is_refused_with_the_nearest(registry: Registry, make: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"unknown instance 'fsat'; did you mean 'fast'\?"):
        registry.choose("fsat")
    with pytest.raises(InvalidArgument, match="'monkey'; valid instances: bad, fast, slow"):
        registry.choose("monkey")
    with pytest.raises(InvalidArgument, match="'backend' is required"):
        registry.choose("")
    with pytest.raises(InvalidArgument, match=r"driver\.default_backend is not set"):
        Registry([make("fast")]).choose(None)
    with pytest.raises(NotFound):
        registry.get("absent")


class Moody(MemoryBackend):
    mood: BaseException | None = None

    def check(self) -> None:
        if self.mood:
            raise self.mood


@pytest.mark.parametrize(("error", "reason"), [(Unavailable("no route"), "no route"), (OSError("x"), "unexpected")])
def test_a_failed_check_degrades_one_instance_until_it_recovers(
    error: Any, reason: str, make: Any, stream: Any
) -> None:
    instance: Instance = make("fast", Moody)
    registry = Registry([instance, make("slow")])
    for mood in (error, error, None):
        instance.backend.mood = mood  # type: ignore[attr-defined]
        instance.check()
        assert (reason in registry.degraded().get("fast", "")) == bool(mood)

    told = [line for line in stream.getvalue().splitlines() if "backend fast is" in line]
    assert len(told) == 2, "said once when it changes"


def test_checks_run_in_the_background_and_survive_a_failing_resume(make: Any) -> None:
    class Slow(Moody):
        def resume(self) -> None:
            raise RuntimeError("half-done work")

    instance = make("fast", Slow)
    instance.backend.mood = Unavailable("down")
    registry = Registry([instance])
    registry.start(0.01)
    _until(lambda: bool(registry.degraded()))
    instance.backend.mood = None
    _until(lambda: not registry.degraded())
    registry.close()


def test_closing_one_instance_badly_still_closes_the_others(make: Any) -> None:
    closed: list[str] = []

    class Closing(MemoryBackend):
        def close(self) -> None:
            closed.append(self.setting.instance)
            raise RuntimeError("late")

    Registry([make("fast", Closing), make("slow", Closing)]).close()

    assert sorted(closed) == ["fast", "slow"]


def _until(happens: Callable[[], bool]) -> None:
    end = time.monotonic() + 5
    while not happens():
        assert time.monotonic() < end
        time.sleep(0.005)
