"""A volume of config/nomad and a job that uses it, from its creation to its end."""

from __future__ import annotations

import pytest

from . import jobs
from .agents import Agents
from .nomad import Nomad, NomadFailed


def test_data_of_a_job_are_there_for_the_next_one(nomad: Nomad, agents: Agents) -> None:
    nomad.run("volume", "create", "volume-loop.hcl")
    nomad.start(jobs.app(nomad.job("app.nomad.hcl")))
    first = nomad.allocation("app")
    log = agents.published("node-1", first["ID"], "scratch") / "log"
    assert len(log.read_text().splitlines()) == 1
    nomad.stop("app")
    nomad.released("scratch", agents)

    nomad.start(jobs.app(nomad.job("app.nomad.hcl")))

    second = nomad.allocation("app")
    assert second["NodeName"] == "node-1"
    assert len((agents.published("node-1", second["ID"], "scratch") / "log").read_text().splitlines()) == 2


def test_a_volume_is_where_its_file_says(nomad: Nomad, agents: Agents) -> None:
    text = jobs.volume("second", lambda text: text.replace('"node-1"', '"node-2"'))
    nomad.run("volume", "create", "-", given=text)
    nomad.start(jobs.claim(jobs.app(nomad.job("app.nomad.hcl")), "second", "second"))

    assert nomad.allocation("second")["NodeName"] == "node-2"
    assert (agents.images("node-1"), len(agents.images("node-2"))) == ([], 1)


def test_a_volume_that_nomad_forgets_keeps_its_data_and_can_be_registered(nomad: Nomad, agents: Agents) -> None:
    nomad.run("volume", "create", "volume-loop.hcl")
    handle = nomad.api("volume/csi/scratch")["ExternalID"]

    nomad.run("volume", "deregister", "scratch")

    assert nomad.api("volume/csi/scratch") is None
    assert agents.images("node-1") == ["scratch"]
    known = jobs.volume("known", lambda text: f'external_id = "{handle}"\n{text}')
    nomad.run("volume", "register", "-", given=known)
    nomad.start(jobs.claim(jobs.app(nomad.job("app.nomad.hcl")), "app", "known"))
    assert (agents.published("node-1", nomad.allocation("app")["ID"], "known") / "log").read_text()


def test_a_volume_in_use_is_not_deleted(nomad: Nomad, agents: Agents) -> None:
    """Nomad itself sends the deletion of a volume that has claims."""
    nomad.run("volume", "create", "volume-loop.hcl")
    nomad.start(jobs.app(nomad.job("app.nomad.hcl")))
    nomad.allocation("app")

    with pytest.raises(NomadFailed, match="is in use"):
        nomad.run("volume", "delete", "scratch")

    assert len(agents.images("node-1")) == 1


def test_a_wrong_parameter_is_named_to_the_user(nomad: Nomad) -> None:
    text = jobs.volume("wrong", lambda text: text.replace('backend = "scratch"', 'backend = "scratch"\n  kind = "ssd"'))

    with pytest.raises(NomadFailed, match="kind"):
        nomad.run("volume", "create", "-", given=text)
