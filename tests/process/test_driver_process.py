"""A driver in a child process: whoever starts it learns why it does not serve."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

from csi_multi.process import driver_process
from csi_multi.process.driver_process import DriverProcess, NotServing


def running(directory: Path, code: str) -> DriverProcess:
    return DriverProcess(directory, "", program=(sys.executable, "-c", code))


def test_a_driver_that_exits_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_process, "START_LIMIT", math.inf)
    driver = running(tmp_path, "import sys; print('bad option', file=sys.stderr); raise SystemExit(3)")

    with pytest.raises(NotServing, match=r"the driver exited with code 3:\nbad option"):
        driver.start()


def test_a_driver_that_does_not_listen_in_time_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_process, "START_LIMIT", 0.1)
    driver = running(tmp_path, "import time; time.sleep(600)")

    with pytest.raises(NotServing, match=r"did not listen within 0.1 s; its threads wait in"):
        driver.start()

    assert driver.process.poll() is not None
