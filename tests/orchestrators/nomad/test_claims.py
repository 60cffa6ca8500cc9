"""Two groups use one volume on one node: Nomad stages it once for each kind of use."""

from __future__ import annotations

from . import jobs
from .agents import Agents
from .nomad import Nomad


def test_a_reader_and_a_writer_share_a_volume(nomad: Nomad, agents: Agents) -> None:
    nomad.run("volume", "create", "volume-loop.hcl")
    # Nomad admits a second claim on a volume of one writer only if the reader came first.
    reads = "touch /data/no && exit 1; until cat /data/log; do sleep 0.1; done; sleep infinity"
    nomad.start(jobs.claim(jobs.app(nomad.job("app.nomad.hcl")), "reader", "scratch", read_only=True, command=reads))
    reader = nomad.allocation("reader")  # two stages at once are ABORTED for one of them, and Nomad gives that one up
    nomad.start(jobs.claim(jobs.app(nomad.job("app.nomad.hcl")), "writer", "scratch"))

    writer = nomad.allocation("writer")
    staged = [mount for mount in agents.mounts() if "/staging/" in mount]
    assert sorted(path.rsplit("/", 1)[1][:3] for path in staged) == ["ro-", "rw-"]
    written = (agents.published("node-1", writer["ID"], "scratch") / "log").read_text()
    assert written
    assert (agents.published("node-1", reader["ID"], "scratch") / "log").read_text() == written

    nomad.stop("reader")

    path = agents.published("node-1", writer["ID"], "scratch")
    assert (path / "log").read_text() == written
    (path / "more").write_text("still mounted")
