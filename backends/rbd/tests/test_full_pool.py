"""A full pool is noticed while a command waits for it, and looked at once for all that wait."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from csi_multi_rbd import connection
from csi_multi_rbd.client import Client
from csi_multi_rbd.command import CommandRunner
from csi_multi_rbd.config import Config
from csi_multi_rbd.errors import PoolFull
from csi_multi_rbd.full_pool import FRESH_SECONDS, FullPool

from csi_multi.contract import CommandTimedOut, Result, Unavailable

FSID = "01234567-89ab-cdef-0123-456789abcdef"


class Waiting(CommandRunner):
    """Every rbd waits for ever, and ceph says whether the pool is full."""

    def __init__(self, *, full: bool) -> None:
        super().__init__()
        self.flags = "hashpspool,full" if full else "hashpspool"
        self.looks = 0

    def execute(self, program: str, *words: str, timeout: float, **more: Any) -> Result:
        if program == "ceph":
            self.looks += 1
            return Result(0, json.dumps([{"pool_name": "k8s", "flags_names": self.flags}]), "")
        return super().execute("sleep", "600", timeout=timeout, **more)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "LOOK_SECONDS", 0.01)


def client(runner: CommandRunner, **values: Any) -> Client:
    given = {"connect_seconds": 1, "command_seconds": 5, "keyring": "/k", **values}
    return Client(Config(monitors=("10.0.0.1",), fsid=FSID, pool="k8s", user="csi", **given), runner)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A time limit that is soon reached."""
    monkeypatch.setattr(connection.Connection, "_limit", 0.1)


def test_a_command_that_waits_for_a_full_pool_is_ended_and_says_so() -> None:
    with pytest.raises(PoolFull, match="pool 'k8s' is full"):
        client(Waiting(full=True), command_seconds=3600).remove("a")


def test_a_command_that_waits_for_another_reason_is_given_its_time(short: None) -> None:
    runner = Waiting(full=False)
    with pytest.raises(CommandTimedOut, match=r"0\.1"):
        client(runner).remove("a")

    assert runner.looks == 1


def test_a_look_that_fails_ends_nothing(short: None) -> None:
    class Silent(Waiting):
        def execute(self, program: str, *words: str, timeout: float, **more: Any) -> Result:
            if program == "ceph":
                raise Unavailable("no monitor")
            return super().execute(program, *words, timeout=timeout, **more)

    with pytest.raises(CommandTimedOut):
        client(Silent(full=True)).remove("a")


def test_commands_that_wait_at_the_same_time_look_once() -> None:
    runner = Waiting(full=True)
    rbd = client(runner)

    def tried(_: int) -> bool:
        with pytest.raises(PoolFull):
            rbd.remove("a")
        return True

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(tried, range(8)))
    assert runner.looks == 1


def test_what_a_look_has_found_is_believed_for_seconds_only() -> None:
    now, looks = [1000.0], list[PoolFull | None]([PoolFull("full"), None])
    pool = FullPool(clock=lambda: now[0])

    assert str(pool.look(lambda: looks.pop(0))) == str(pool.look(lambda: looks.pop(0))) == "full"
    now[0] += FRESH_SECONDS
    assert pool.look(lambda: looks.pop(0)) is None


def test_work_that_takes_hours_is_not_looked_after() -> None:
    class Quick(CommandRunner):
        def execute(self, program: str, *words: str, timeout: float, **more: Any) -> Result:
            assert more.get("doubt") is None
            return Result(0, "", "")

    client(Quick()).delete_from_trash("id")
