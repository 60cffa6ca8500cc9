"""What a name may hide: snapshots that were created a moment ago, here or by the process before."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
from csi_multi_ebs.named_snapshots import RECENT_SECONDS, NamedSnapshots

from csi_multi.contract import Unavailable


class Lookup:
    """Shows what a test puts here, from the look with this number on."""

    def __init__(self) -> None:
        self.found: list[Any] = []
        self.first = 0

    def get(self, name: str, deadline: float) -> list[Any]:
        self.first -= 1
        return self.found if self.first < 0 else []


@pytest.fixture
def lookup() -> Lookup:
    return Lookup()


def names(lookup: Lookup, seconds: float = 0.0, wait: float = 1.0) -> NamedSnapshots:
    cache: Any = SimpleNamespace(
        config=SimpleNamespace(consistency_seconds=seconds, poll_seconds=0.001),
        wait_deadline=lambda _deadline: time.monotonic() + wait,
        was_deleted=lambda id: id == "snap-gone",
    )
    return NamedSnapshots(cache, "snapshot", lookup)  # type: ignore[arg-type]


def test_what_was_created_and_is_not_shown_is_not_absent(lookup: Lookup, monkeypatch: pytest.MonkeyPatch) -> None:
    known = names(lookup)
    known.created("s", "snap-1")

    with pytest.raises(Unavailable, match="was created as 'snap-1'"):
        known.named("s")
    assert known.named("other") == []
    later = time.monotonic() + RECENT_SECONDS + 1
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert known.named("s") == []


def test_what_may_have_been_created_is_not_absent(lookup: Lookup) -> None:
    known = names(lookup, seconds=60)
    known.unclear("s", Unavailable("no answer"))

    with pytest.raises(Unavailable, match="may have been created"):
        known.named("s")


def test_what_was_deleted_is_neither_shown_nor_expected(lookup: Lookup) -> None:
    known = names(lookup)
    known.created("s", "snap-1")
    known.deleted("snap-1")
    lookup.found = [SimpleNamespace(id="snap-gone")]

    assert known.named("s") == []
    assert known.unreported("s") == ""


def test_an_id_is_unreported_until_the_caller_gets_it(lookup: Lookup) -> None:
    known = names(lookup)
    known.created("s", "snap-1")

    assert known.unreported("s") == "snap-1"
    known.reported("s")
    assert known.unreported("s") == ""


def test_the_first_requests_look_until_the_work_of_the_process_before_shows(lookup: Lookup) -> None:
    lookup.found, lookup.first = [SimpleNamespace(id="snap-1")], 3

    assert [one.id for one in names(lookup, seconds=30, wait=30).named_before("s", None)] == ["snap-1"]


def test_the_first_requests_do_not_look_beyond_their_deadline(lookup: Lookup) -> None:
    with pytest.raises(Unavailable, match="by another process"):
        names(lookup, seconds=30, wait=0.0).named_before("s", None)
