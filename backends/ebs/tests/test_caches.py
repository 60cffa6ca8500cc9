"""A cached value is believed for its time, and the last one when there is no other."""

from __future__ import annotations

import pytest
from csi_multi_ebs import caches
from csi_multi_ebs.caches import SingleUseCache, TtlCache

from csi_multi.contract import Unavailable


def test_an_answer_is_believed_for_a_while_and_on_when_there_is_no_other() -> None:
    answers: list[int | None] = [1, None, 2]

    def fetch() -> int:
        if (answer := answers.pop(0)) is None:
            raise Unavailable("no answer")
        return answer

    for_long, not_at_all = TtlCache(fetch, 60), TtlCache(fetch, 0)
    assert [for_long.get(), for_long.get()] == [1, 1]
    with pytest.raises(Unavailable):
        not_at_all.get()
    answers += [None]
    assert [not_at_all.get(), not_at_all.get()] == [2, 2]


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(caches, "time", clock)
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
