"""The server of a storage is killed with what it has started, stopped, and never mistaken for the kit itself."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from csi_multi_testing import StorageServer
from csi_multi_testing.assertions import CheckFailed
from csi_multi_testing.storage_server import family, is_running


@pytest.fixture
def process() -> Iterator[subprocess.Popen[str]]:
    """A shell that has started another process."""
    words = ["sh", "-c", "sleep 600 & echo started; wait"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        process.stdout.readline()
        yield process
        process.kill()


def test_it_is_killed_with_what_it_has_started(process: subprocess.Popen[str]) -> None:
    started = family(process.pid)
    server = StorageServer(pid=lambda: process.pid, start=lambda: None)

    server.kill()

    assert len(started) == 2
    assert [pid for pid in started if is_running(pid)] == []


def test_it_is_stopped_for_a_block(process: subprocess.Popen[str]) -> None:
    server = StorageServer(pid=lambda: process.pid, start=lambda: None)

    def states() -> set[str]:
        return {Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in family(process.pid)}

    with server.stopped():
        assert states() == {"T"}
    assert "T" not in states()


def test_the_kit_does_not_kill_itself() -> None:
    for pid in (os.getpid(), os.getppid()):
        with pytest.raises(CheckFailed, match="the kit itself, or what has started it"):
            StorageServer(pid=lambda pid=pid: pid, start=lambda: None).kill()
