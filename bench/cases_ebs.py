"""The ebs backend beside boto3 alone, both with the same EC2: 500 volumes made at once, then all attached.

EC2 is the simulation of the backend's tests, in a process of its own: once it answers as fast as it can, so that only
the work of both sides counts, and once it takes the time that EC2 takes, so that their waiting counts too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from . import ebs_load
from .ebs_cloud import Ec2Process, Pace, cloud
from .ebs_load import Dialect
from .processes import Server, Unmeasurable, running
from .table import Row, Target, alone, compared

PROJECT = Path(__file__).resolve().parent.parent
TARGET = Target(limit=1.3)
PACES = (Pace("instant EC2"), Pace("EC2 as it is", call=0.1, state=1.0))
PER_NODE = 25  # volumes attached to one instance
BARE_THREADS = 64
LIMIT = 900  # seconds for one side of one round
CONFIG = """\
driver:
  {name: bench.csi-multi.example, node: bench-node, log_style: json, workers: 1024, check_seconds: 86400}
backends:
"""
INSTANCE = """\
  %s: {kind: ebs, region: eu-west-1, endpoint: "%s"}
"""
Round = dict[str, float]  # seconds by step, and calls per volume by their name


def ebs(directory: Path, *, quick: bool) -> list[Row]:
    """Wall time and calls per volume against boto3, and memory with one and with three instances."""
    volumes, rounds = (50, 1) if quick else (500, 5)
    rows: list[Row] = []
    with cloud() as ec2:
        with controller(directory, ec2, ["cloud"]) as server:
            for pace in PACES:
                rows += _rounds(ec2, server, pace, volumes, rounds)
        one, three = (_memory(directory, ec2, names, volumes) for names in (["first"], ["first", "second", "third"]))
    rows.append(alone("RSS after one round, one instance", "MiB", [one]))
    return [*rows, compared("RSS, three instances beside one", "MiB", [three], [one], note="a round for each")]


def _memory(directory: Path, ec2: Ec2Process, instances: Sequence[str], volumes: int) -> float:
    """Return what a driver takes that has made and attached this many volumes in each of its instances, in MiB."""
    with controller(directory, ec2, instances) as server:
        for name in instances:
            _ours(ec2, server, PACES[0], volumes, name, backend=name)
        return server.memory()["Rss"]


def _rounds(ec2: Ec2Process, server: Server, pace: Pace, volumes: int, rounds: int) -> list[Row]:
    sides: tuple[list[Round], list[Round]] = ([], [])
    before = os.getloadavg()[0]
    for round_ in range(rounds):
        name = f"{pace.call}-{round_}"
        for side in (0, 1) if round_ % 2 == 0 else (1, 0):
            took = _bare(ec2, pace, volumes, name) if side else _ours(ec2, server, pace, volumes, name)
            sides[side].append(took)
    ours, bare = sides
    about = (
        f"load {before:.1f} before, {os.getloadavg()[0]:.1f} after; {ours[-1]['refused']:.0f} calls refused, sent again"
    )
    rows = [
        compared(
            f"{volumes} x {name}, {pace.name}",
            "s",
            [one[step] for one in ours],
            [one[step] for one in bare],
            target=TARGET if step == "all" else None,
            note=about if step == "all" else "",
        )
        for step, name in (("create", "create"), ("attach", "attach"), ("all", "create, attach"))
    ]
    return rows + _calls(pace, ours, bare)


def _calls(pace: Pace, ours: Sequence[Round], bare: Sequence[Round]) -> list[Row]:
    """Say how many calls each volume cost, by name."""
    names = sorted({name for one in (*ours, *bare) for name in one if name[0].isupper()})
    return [
        Row(
            name=f"{name} per volume, {pace.name}",
            unit="calls",
            ours=sum(one.get(name, 0.0) for one in ours) / len(ours),
            bare=sum(one.get(name, 0.0) for one in bare) / len(bare),
        )
        for name in names
    ]


def _ours(ec2: Ec2Process, server: Server, pace: Pace, volumes: int, name: str, backend: str = "cloud") -> Round:
    return through_driver(ec2, server, ebs_load.ours(backend), pace, volumes, name)


def through_driver(ec2: Ec2Process, server: Server, dialect: Dialect, pace: Pace, volumes: int, name: str) -> Round:
    """Let a driver make volumes and attach them, in an empty EC2."""
    nodes = ec2.begin(pace, -(-volumes // PER_NODE))
    said = msgspec.json.encode(dialect).decode()
    return _run(ec2, volumes, "bench.ebs_load", server.endpoint, said, str(volumes), name, *nodes)


def _bare(ec2: Ec2Process, pace: Pace, volumes: int, name: str) -> Round:
    nodes = ec2.begin(pace, -(-volumes // PER_NODE))
    return _run(ec2, volumes, "bench.ebs_bare", ec2.endpoint, str(volumes), str(BARE_THREADS), name, *nodes)


def _run(ec2: Ec2Process, volumes: int, module: str, *words: str) -> Round:
    """Run one side; return what it measured, with the calls that EC2 saw."""
    command = (sys.executable, "-m", module, *words)
    environment = {**os.environ, **ec2.environment}
    process = subprocess.Popen(
        command, cwd=PROJECT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        said, trouble = process.communicate(timeout=LIMIT)
    finally:
        process.kill()  # when interrupted
        process.wait()
    if process.returncode:
        raise Unmeasurable(f"{module} exited with status {process.returncode}:\n{trouble[-2000:]}")
    took: Round = json.loads(said)
    made: Mapping[str, float] = {call: count / volumes for call, count in ec2.calls().items()}
    return {"all": took["create"] + took["attach"], **took, **made}


@contextmanager
def controller(directory: Path, ec2: Ec2Process, instances: Sequence[str]) -> Iterator[Server]:
    """A controller with these instances for the block."""
    name = f"driver-{len(instances)}"
    file = directory / f"{name}.yaml"
    file.write_text(CONFIG + "".join(INSTANCE % (instance, ec2.endpoint) for instance in instances))
    variables = [f"{key}={value}" for key, value in ec2.environment.items()]
    serve = (sys.executable, "-m", "csi_multi", "serve", "--mode", "controller", "--config", str(file))
    with running(directory, name, ("env", *variables, *serve)) as server:
        yield server
