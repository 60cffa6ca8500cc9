"""To grow a volume, its file is created again with more capacity."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from . import jobs
from .agents import Agents
from .nomad import Nomad

GIB = 1 << 30


def sized(name: str, gibibytes: int) -> str:
    """Return volume-loop.hcl with another size, and a filesystem that grows on every machine while it is mounted."""
    return jobs.volume(name, lambda text: text.replace("1GiB", f"{gibibytes}GiB").replace('"ext4"', '"xfs"'))


def size(path: Path) -> int:
    found = os.statvfs(path)
    return found.f_blocks * found.f_frsize


@pytest.mark.parametrize("used", [True, False], ids=["while a job uses it", "while no job uses it"])
def test_a_volume_grows_with_its_filesystem(nomad: Nomad, agents: Agents, used: bool) -> None:
    nomad.run("volume", "create", "-", given=sized("grows", 1))
    job = jobs.claim(jobs.app(nomad.job("app.nomad.hcl")), "app", "grows")
    if used:
        nomad.start(job)
        assert size(agents.published("node-1", nomad.allocation("app")["ID"], "grows")) < GIB

    nomad.run("volume", "create", "-", given=sized("grows", 2))

    if not used:
        nomad.start(job)
    assert nomad.api("volume/csi/grows")["Capacity"] == 2 * GIB
    assert size(agents.published("node-1", nomad.allocation("app")["ID"], "grows")) > GIB
