"""The rbd backend compared with rbd itself, both on a real Ceph cluster that is started here.

A command of rbd is mostly its own start, so what counts is how many of them an RPC takes.
"""

from __future__ import annotations

import os
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

from csi_multi.host.command import LocalHost
from csi_multi.rpc.client import Client

from .rbd_driver import Life, Log, driver, patiently, volume_request
from .rbd_rounds import Bare, Figures, Rounds, at_once
from .table import Row, Target, alone, compared

TOGETHER = 64  # creations at once
CREATE = Target(limit=2.3)
BUDGET = Target(limit=2, absolute=True)
CALLS = {
    "create": "CreateVolume",
    "snapshot": "CreateSnapshot",
    "restore": "CreateVolume, restore",
    "clone": "CreateVolume, clone",
    "grow": "ControllerExpandVolume",
    "delete": "DeleteVolume",
}


def rbd(directory: Path, *, quick: bool) -> list[Row]:
    """Compare times with the same commands by hand, one by one and 64 at once; commands per RPC; memory."""
    cluster_of = import_module("backends.rbd.tests.ceph").Cluster
    with cluster_of(directory / "ceph") as cluster:
        for namespace in ("bench", "bare"):
            cluster.add(namespace)
        bare = Bare(_connection(cluster), f"{cluster.pool}/bare")
        with driver(directory, "counted", instance(cluster), level="debug") as (_, client):
            commands = Life(client, Log(directory / "counted.log")).live()
        with driver(directory, "driver", instance(cluster)) as (server, client):
            before = os.getloadavg()[0]
            times = Rounds(client, bare).run(3 if quick else 25)
            together = _together(client, bare, 1 if quick else 7)
            about = f"{ceph_version()}; load {before:.1f} before, {os.getloadavg()[0]:.1f} after"
            memory = server.memory()["Rss"]
    return [
        *_times(times, about),
        together,
        *_commands(commands),
        alone("RSS after that", "MiB", [memory]),
    ]


def instance(cluster: Any, namespace: str = "bench") -> dict[str, Any]:
    """Return the values of an instance that is this namespace."""
    return {
        "monitors": list(cluster.monitors),
        "fsid": cluster.fsid,
        "pool": cluster.pool,
        "namespace": namespace,
        "user": cluster.user,
        "keyring": str(cluster.keyring),
    }


def _connection(cluster: Any) -> tuple[str, ...]:
    monitors = ",".join(cluster.monitors)
    return ("--conf", "/dev/null", "-m", monitors, "--id", cluster.user, "--keyring", str(cluster.keyring))


def _together(client: Client, bare: Bare, rounds: int) -> Row:
    """Create 64 volumes at once: one command each; the bare side writes no label."""
    took: tuple[list[float], list[float]] = ([], [])

    def ours(name: str) -> None:
        patiently(client, "CreateVolume", **volume_request(name))

    for round_ in range(rounds):
        names = [f"together-{round_}-{number}" for number in range(TOGETHER)]
        for side in (0, 1) if round_ % 2 == 0 else (1, 0):
            took[side].append(at_once((ours, bare.create)[side], names))
    return compared(f"{TOGETHER} x CreateVolume at once", "s", *took, note=f"bare: {TOGETHER} x rbd create at once")


def _times(times: Figures, about: str) -> list[Row]:
    rows = []
    for what, rpc in CALLS.items():
        target = CREATE if what == "create" else None
        note = f"bare: one rbd create; {about}" if what == "create" else ""
        rows.append(compared(rpc, "ms", times[what], times[f"bare {what}"], target=target, note=note))
    return rows


def _commands(made: dict[str, list[str]]) -> list[Row]:
    return [
        Row(
            name=f"{rpc}, commands",
            unit="rbd",
            ours=len(commands),
            target=BUDGET if rpc == "CreateVolume" else None,
            note=", ".join(name if count == 1 else f"{count} {name}" for name, count in Counter(commands).items()),
        )
        for rpc, commands in made.items()
    ]


def ceph_version() -> str:
    return LocalHost().run("ceph", "--version").stdout.split("(")[0].strip().capitalize()
