"""Snapshots by Nomad's commands: create, list, restore, delete."""

from __future__ import annotations

from typing import Any

from . import jobs
from .agents import Agents
from .nomad import Nomad


def snapshots(nomad: Nomad) -> list[Any]:
    found: list[Any] = nomad.api("volumes/snapshot?plugin_id=csi-multi")["Snapshots"] or []
    return found


def test_a_snapshot_is_listed_restored_and_deleted(nomad: Nomad, agents: Agents) -> None:
    nomad.run("volume", "create", "volume-loop.hcl")
    nomad.start(jobs.app(nomad.job("app.nomad.hcl")))
    log = agents.published("node-1", nomad.allocation("app")["ID"], "scratch") / "log"
    kept = log.read_text()
    nomad.stop("app")
    nomad.released("scratch", agents)

    nomad.run("volume", "snapshot", "create", "scratch", "before")

    (snapshot,) = snapshots(nomad)
    assert snapshot["ExternalSourceVolumeID"] == nomad.api("volume/csi/scratch")["ExternalID"]
    assert snapshot["IsReady"]
    source = "parameters {"
    text = jobs.volume("restored", lambda text: text.replace(source, f'snapshot_id = "{snapshot["ID"]}"\n\n{source}'))
    nomad.run("volume", "create", "-", given=text)
    nomad.start(jobs.claim(jobs.app(nomad.job("app.nomad.hcl")), "app", "restored"))
    restored = agents.published("node-1", nomad.allocation("app")["ID"], "restored") / "log"
    assert restored.read_text().startswith(kept)

    nomad.run("volume", "snapshot", "delete", "csi-multi", snapshot["ID"])

    assert snapshots(nomad) == []
    assert len(agents.images("node-1")) == 2
