"""Driver and client are killed while a volume is mounted: the job that uses it does not notice."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from . import jobs
from .agents import Agents
from .nomad import Nomad

LIMIT = 60.0  # seconds for a process to start
RESTARTS = 4  # more than Nomad's default for a system job, after which it gives up


def process(*words: str) -> int:
    """Return the id of the one process of the driver that has these words in its command line; wait until it has.

    Nomad calls a task running when it has begun to start it.
    """
    ends = time.monotonic() + LIMIT
    while not (found := _processes(*words)) and time.monotonic() < ends:
        time.sleep(0.05)
    (one,) = found
    return one


def _processes(*words: str) -> list[int]:
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            command = (directory / "cmdline").read_bytes().decode().split("\0")
        except OSError:  # it has ended
            continue
        if command[1:2] and command[1].endswith("bin/csi-multi") and set(words) <= set(command):
            found.append(int(directory.name))
    return found


def kill_driver(nomad: Nomad, node: str) -> None:
    """Kill the node's driver, and wait until Nomad has started it again."""
    allocation = nomad.allocation("csi-multi-node", node)
    before = allocation["TaskStates"]["driver"]["Restarts"]
    os.kill(process("--mode=node", f"--node={node}"), signal.SIGKILL)

    def started(found: object) -> bool:
        assert isinstance(found, dict)
        state = found["TaskStates"]["driver"]
        assert not state["Failed"], f"Nomad has given up the driver after {before} restarts"
        return bool(state["Restarts"] > before and state["State"] == "running")

    nomad.until(f"allocation/{allocation['ID']}", started, f"the driver runs again on {node}")


@pytest.fixture
def log(nomad: Nomad, agents: Agents) -> Path:
    """A file that a job on node-1 writes to ten times a second, on its volume."""
    nomad.run("volume", "create", "volume-loop.hcl")
    writes = "while date >>/data/log; do sleep 0.1; done"
    nomad.start(jobs.claim(jobs.app(nomad.job("app.nomad.hcl")), "app", "scratch", command=writes))
    return agents.published("node-1", nomad.allocation("app")["ID"], "scratch") / "log"


def writes_on(nomad: Nomad, log: Path) -> bool:
    """Return whether the job, never restarted, writes more."""
    before = log.stat().st_size
    nomad.until("job/app/allocations", lambda _: log.stat().st_size > before, "the job writes")
    return not nomad.allocation("app")["TaskStates"]["app"]["Restarts"]


def test_a_job_writes_on_however_often_the_driver_is_killed(nomad: Nomad, log: Path) -> None:
    for _ in range(RESTARTS):
        kill_driver(nomad, "node-1")
        assert writes_on(nomad, log)


def test_a_job_writes_on_when_the_client_is_killed(nomad: Nomad, agents: Agents, log: Path) -> None:
    agents.kill("node-1")
    agents.start("node-1")

    assert writes_on(nomad, log)


def test_a_volume_is_unmounted_when_its_job_stops_while_the_driver_starts(
    nomad: Nomad, agents: Agents, log: Path
) -> None:
    kill_driver(nomad, "node-1")

    nomad.stop("app")
    nomad.released("scratch", agents)

    assert [mount for mount in agents.mounts() if "/csi/node/" in mount] == []
