"""A client is drained: its volumes are unmounted before the driver leaves, and mounted again afterwards."""

from __future__ import annotations

from . import jobs
from .agents import Agents
from .nomad import Nomad


def drained(nomad: Nomad, node: str, *words: str) -> None:
    (found,) = (one for one in nomad.api("nodes") if one["Name"] == node)
    nomad.run("node", "drain", *words, "-yes", found["ID"])


def test_a_drain_unmounts_volumes_and_its_end_mounts_them_again(nomad: Nomad, agents: Agents) -> None:
    nomad.run("volume", "create", "volume-loop.hcl")
    nomad.start(jobs.app(nomad.job("app.nomad.hcl")))
    log = agents.published("node-1", nomad.allocation("app")["ID"], "scratch") / "log"
    written = log.read_text()

    drained(nomad, "node-1", "-enable", "-ignore-system", "-deadline=2m")

    nomad.released("scratch", agents)
    assert [mount for mount in agents.mounts() if "/csi/node/" in mount] == []
    assert nomad.allocation("csi-multi-node", "node-1")

    drained(nomad, "node-1", "-disable")

    again = agents.published("node-1", nomad.allocation("app")["ID"], "scratch") / "log"
    assert again.read_text().startswith(written)
