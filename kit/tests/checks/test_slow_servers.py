"""Servers that are right as long as they are quick, and the check that finds it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from csi_multi_testing.check import CheckState
from csi_multi_testing.checks import races, slow_servers
from csi_multi_testing.disk_changes import STRACE
from csi_multi_testing.operations import effects

from csi_multi.contract import ExpandRequest, Expansion

from .file_backend import VOLUMES
from .file_server import served
from .whole_files import WholeFiles

TRIES = 6

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not shutil.which(STRACE), reason="needs strace")]


class WritesBack(WholeFiles):
    """Reads the record, makes room, and writes all of it back: also a limit that was changed meanwhile."""

    def expand_volume(self, request: ExpandRequest) -> Expansion:
        entry = self._entry(VOLUMES, request.handle)
        volume = self.get_volume(request.handle)
        before = (entry / "iops").read_text() if (entry / "iops").exists() else None
        size = request.size.choose(granularity=4096, minimum=volume.size)
        os.truncate(entry / "data", size)
        self._write(entry / "record", replace(volume, size=size))
        if before is None:
            (entry / "iops").unlink(missing_ok=True)
        return Expansion(size=size)


BROKEN = [
    (
        slow_servers.races_have_the_same_outcome_where_the_disk_of_the_server_is_slow,
        served(WritesBack),
        "a concurrent expansion and modification both take effect, where each change to the disk of the server takes",
    ),
]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effects, "LIMIT", 0.5)
    monkeypatch.setattr(races, "ROUNDS", 1)
    monkeypatch.setattr(races, "CONCURRENT", 3)


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(judged: Callable[..., Any], check: Any, backend: Any, words: str) -> None:
    """The two calls need not meet the first time: a busy machine runs one after the other."""
    outcomes = (judged(check, backend) for _ in range(TRIES))
    failed = next((one for one in outcomes if one.state is CheckState.FAILED), None)

    assert failed, f"none of {TRIES} runs found it"
    assert words in failed.text


def test_a_server_with_locks_passes(judged: Callable[..., Any]) -> None:
    outcome = judged(slow_servers.races_have_the_same_outcome_where_the_disk_of_the_server_is_slow, served())

    assert outcome.state is CheckState.PASSED, outcome.text
