"""What was just seen is used once, while it is fresh."""

from __future__ import annotations

import pytest
from csi_multi_ebs import ec2_cache
from csi_multi_ebs.ec2_cache import SingleUseCache


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(ec2_cache, "time", clock)
    return clock


def test_what_was_seen_is_taken_once(clock: Clock) -> None:
    seen: SingleUseCache[str] = SingleUseCache(60, 10)
    seen.put("a", "row")

    assert (seen.take("a"), seen.take("a")) == ("row", None)


def test_what_was_seen_too_long_ago_is_not_used(clock: Clock) -> None:
    seen: SingleUseCache[str] = SingleUseCache(60, 10)
    seen.put("a", "row")
    clock.now += 60

    assert seen.take("a") is None


def test_the_latest_are_kept_when_there_are_too_many(clock: Clock) -> None:
    seen: SingleUseCache[int] = SingleUseCache(60, 2)
    for number, key in enumerate(["a", "b", "a", "c"]):
        seen.put(key, number)

    assert [seen.take(key) for key in "abc"] == [2, None, 3]
