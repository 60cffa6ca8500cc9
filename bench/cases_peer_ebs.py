"""The ebs backend beside aws-ebs-csi-driver, both with the same EC2: 500 volumes made at once, then all attached."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .cases_ebs import PACES, Round, controller, through_driver
from .ebs_cloud import Ec2Process, Pace, cloud
from .ebs_load import Dialect, ours
from .peers import Program
from .processes import Server, running
from .table import Row, Target, compared

THEIRS = Dialect(zone_key="topology.kubernetes.io/zone", node_id="{instance}")
REGION = "eu-west-1"
CALLS, WALL, CPU, MEMORY = Target(limit=0.75), Target(limit=1.0), Target(limit=3.0), Target(limit=1.0)


def beside_aws_ebs(directory: Path, *, program: Program, quick: bool) -> list[Row]:
    """Wall time, processor time, calls and memory, in interleaved rounds."""
    volumes, rounds = (50, 2) if quick else (500, 5)
    rows: list[Row] = []
    with cloud() as ec2, controller(directory, ec2, ["cloud"]) as our, _theirs(directory, ec2, program) as their:
        sides = ((our, ours("cloud")), (their, THEIRS))
        for pace in PACES:
            rows += _rounds(ec2, sides, pace, volumes, rounds)
        memory = [[server.memory()["Rss"]] for server, _ in sides]
    rows.append(compared("RSS after all rounds", "MiB", *memory, target=MEMORY))
    return rows


def _rounds(
    ec2: Ec2Process, sides: tuple[tuple[Server, Dialect], ...], pace: Pace, volumes: int, rounds: int
) -> list[Row]:
    took: tuple[list[Round], list[Round]] = ([], [])
    before = os.getloadavg()[0]
    for round_ in range(rounds + 1):
        for at in (0, 1) if round_ % 2 == 0 else (1, 0):
            server, dialect = sides[at]
            used = server.cpu(commands=True)
            found = through_driver(ec2, server, dialect, pace, volumes, f"{pace.call}-{round_}")
            if round_:  # the first one fills both drivers' caches
                calls = sum(count for name, count in found.items() if name[0].isupper())
                took[at].append({**found, "cpu": server.cpu(commands=True) - used, "calls": calls})
    refused = " and ".join(f"{sum(one['refused'] for one in side):.0f}" for side in took)
    note = f"load {before:.1f} before, {os.getloadavg()[0]:.1f} after; calls refused and sent again: {refused}"
    table = (("all", "s", WALL), ("create", "s", None), ("attach", "s", None), ("cpu", "s", CPU), ("calls", "", CALLS))
    names = {"all": "create, attach", "cpu": "processor", "calls": "calls per volume"}
    return [
        compared(
            f"{volumes} x {names.get(step, step)}, {pace.name}",
            unit or "calls",
            *([one[step] for one in side] for side in took),
            target=target,
            note=note if step == "all" else "",
        )
        for step, unit, target in table
    ]


@contextmanager
def _theirs(directory: Path, ec2: Ec2Process, program: Program) -> Iterator[Server]:
    """Their controller, with the settings of their chart."""
    variables = {**ec2.environment, "AWS_EC2_ENDPOINT": ec2.endpoint, "AWS_REGION": REGION}
    words = (
        *("env", *(f"{key}={value}" for key, value in variables.items())),
        *(str(program.path), "controller", "--batching=true", "--k8s-tag-cluster-id=bench", "-v=2"),
        f"--endpoint=unix://{directory}/theirs.sock",
    )
    with running(directory, "theirs", words) as server:
        yield server
