"""One Nomad for all tests, with the driver's jobs running; after each test nothing of it is left."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from . import jobs
from .agents import Agents
from .nomad import Nomad, NomadFailed

LIMIT = 120.0
VARIABLES = {
    "csi-multi-controller": {"ca": "ca.pem", "certificate": "controller/certificate.pem", "key": "controller/key.pem"},
    "csi-multi-node": {"ca": "ca.pem", "certificate": "nodes/all/certificate.pem", "key": "nodes/all/key.pem"},
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.nomad)


@pytest.fixture(scope="session")
def agents() -> Iterator[Agents]:
    """Server and clients without a job. They end with the session, and with them all that they mounted.

    Their directory has a short name: Nomad adds 70 characters to it for the driver's socket, which may have 107.
    """
    directory = Path(tempfile.mkdtemp(prefix="nomad-"))
    agents = Agents(directory, os.environ["NOMAD"])
    try:
        agents.up()
        yield agents
    finally:
        agents.down()
    assert agents.left() == []
    subprocess.run(["umount", directory], check=True)  # nothing is mounted in it any more, so nothing else is removed
    shutil.rmtree(directory)


@pytest.fixture(scope="session")
def idle_nomad(agents: Agents) -> Nomad:
    """Nomad with two clients that are ready, and a copy of config/nomad."""
    nomad = Nomad(os.environ["NOMAD"], jobs.copy(agents.directory / "config"))
    reach(lambda: nomad.run("operator", "api", "/v1/status/leader"))
    nomad.until("nodes", lambda found: sum(one["Status"] == "ready" for one in found) == 2, "two clients are ready")
    return nomad


@pytest.fixture(scope="session")
def deployed(idle_nomad: Nomad, agents: Agents) -> Iterator[Nomad]:
    """Nomad with the driver's jobs, installed with the commands of docs/deploy.md, until they are stopped."""
    nomad = idle_nomad
    certificates(nomad.directory)
    (nomad.directory / "csi.keyring").write_text("[client.csi]\n")
    for job, files in VARIABLES.items():
        words = [f"{key}=@ca/{file}" for key, file in files.items()]
        words += ["keyring=@csi.keyring"] if job == "csi-multi-controller" else []
        nomad.run("var", "put", f"nomad/jobs/{job}", *words)
    nomad.start(jobs.driver(nomad.job("controller.nomad.hcl")))
    nomad.start(jobs.driver(nomad.job("node.nomad.hcl")))
    healthy(nomad)
    yield nomad
    for job in ("csi-multi-node", "csi-multi-controller"):
        nomad.stop(job)
    for job in nomad.api("jobs"):
        nomad.run("job", "stop", "-purge", "-detach", job["ID"])
    nomad.run("system", "gc")
    nomad.until("allocations", lambda _: not agents.mounts(), "the clients have removed what ended")


@pytest.fixture
def nomad(deployed: Nomad, agents: Agents) -> Iterator[Nomad]:
    """Nomad with the driver, for one test. It stops its jobs and deletes its volumes; then all is as before."""
    yield deployed
    for job in deployed.api("jobs"):
        if job["Status"] != "dead" and not job["ID"].startswith("csi-multi-"):
            deployed.stop(job["ID"])
    for volume in deployed.api("volumes?type=csi"):
        deployed.released(volume["ID"], agents)
        deployed.run("volume", "delete", volume["ID"])
    assert [agents.images(node) for node in jobs.NODES] == [[], []]
    assert [mount for mount in agents.mounts() if "/csi/node/" in mount] == []
    assert devices(agents) == []


def certificates(directory: Path) -> None:
    program = Path(jobs.sys.executable).parent / "csi-multi"
    words = ("certificates", "--directory", "ca", "--node", "all", "--node-identity", "node.csi-multi")
    subprocess.run([program, *words], cwd=directory, check=True, capture_output=True)


def healthy(nomad: Nomad) -> None:
    nomad.until(
        "plugin/csi/csi-multi",
        lambda found: found and (found["ControllersHealthy"], found["NodesHealthy"]) == (2, 2),
        "two controllers and two nodes are healthy",
    )


def devices(agents: Agents) -> list[str]:
    """Return the files of the nodes that loop devices have open. The kernel names them as they are in the container."""
    done = subprocess.run(["losetup", "--list", "--noheadings", "-O", "BACK-FILE"], check=True, capture_output=True)
    return [file for file in done.stdout.decode().split() if str(agents.directory) in file]


def reach(what: Callable[[], object]) -> None:
    """Repeat a command until Nomad's server answers it."""
    ends = time.monotonic() + LIMIT
    while True:
        try:
            what()
        except NomadFailed:
            if time.monotonic() > ends:
                raise
            time.sleep(0.2)
        else:
            return
