"""The client of tests, demo and benchmarks waits for a driver."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from csi_multi.rpc.client import Client


def test_waiting_leaves_no_thread_that_a_closed_channel_would_surprise(both: Any) -> None:
    before = set(threading.enumerate())
    client = Client(both.endpoint)

    client.wait()

    assert [one.name for one in threading.enumerate() if one not in before] == []
    client.close()


def test_waiting_for_a_driver_that_is_not_there_ends_with_the_time(tmp_path: Path) -> None:
    client = Client(f"unix:{tmp_path}/csi.sock")

    with pytest.raises(TimeoutError, match=r"no answer within 0\.1 s"):
        client.wait(0.1)
    client.close()
