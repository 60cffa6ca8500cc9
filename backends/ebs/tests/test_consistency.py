"""A process that takes over counts the time from its first request, not from its start."""

from __future__ import annotations

import time

import pytest
from csi_multi_ebs.consistency import ConsistencyWindow


def test_the_time_begins_with_the_first_request_and_passes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    window = ConsistencyWindow(15)

    now = 1000.0  # a standby until then
    assert window.left() == 15
    now = 1010.0
    assert window.left() == 5
    now = 1015.0
    assert window.left() == 0
    now = 5000.0
    assert window.left() < 0


def test_where_lookups_are_never_late_there_is_nothing_to_wait_for() -> None:
    assert ConsistencyWindow(0).left() <= 0
