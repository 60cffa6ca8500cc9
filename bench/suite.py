"""Run the cases one after the other; write a table and a JSON file."""

from __future__ import annotations

import argparse
import datetime
import os
import sys
from collections.abc import Callable
from pathlib import Path

import grpc
import msgspec

from . import table
from .cases_cluster import cluster
from .cases_ebs import ebs
from .cases_imports import imports
from .cases_listing import listing
from .cases_lvm import lvm
from .cases_node import node
from .cases_rbd import rbd
from .cases_rpc import rpc
from .cases_start import startup
from .cases_telemetry import telemetry
from .facts import facts
from .processes import Unmeasurable
from .workspace import interruptible, workspace

RESULTS = Path(__file__).with_name("results")
CASES: dict[str, Callable[..., list[table.Row]]] = {
    "rpc": rpc,
    "node": node,
    "start": startup,
    "imports": imports,
    "listing": listing,
    "cluster": cluster,
    "lvm": lvm,
    "ebs": ebs,
    "rbd": rbd,
    "telemetry": telemetry,
}


def main(arguments: list[str] | None = None) -> int:
    """Return 0 if all cases were measured (targets met or not), 1 if a case could not be measured, 2 for bad usage."""
    options = _parser().parse_args(arguments)
    if os.geteuid() != 0:
        print("the benchmarks need root: they create loop devices and mounts", file=sys.stderr)
        return 2
    started = datetime.datetime.now(datetime.UTC)
    about, rows = facts(started), []
    try:
        with interruptible():
            for name in options.only or CASES:
                print(f"measuring {name} ...", file=sys.stderr, flush=True)
                with workspace() as directory:
                    rows += CASES[name](directory, quick=options.quick)
    except (Unmeasurable, grpc.RpcError, OSError, RuntimeError) as error:
        print(f"could not measure {name}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    print(table.text(rows))
    print(f"written to {_write(started, {**about, 'quick': options.quick, 'rows': [row.facts() for row in rows]})}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench/run.py", description="Speed as ratios against the bare operation.")
    parser.add_argument(
        "--only", choices=CASES, action="append", metavar="NAME", help=f"of {', '.join(CASES)}; may be repeated"
    )
    parser.add_argument(
        "--quick", action="store_true", help="few rounds, to test the benchmark itself; the figures are not meaningful"
    )
    return parser


def _write(started: datetime.datetime, result: dict[str, object]) -> Path:
    RESULTS.mkdir(exist_ok=True)
    file = RESULTS / f"{started:%Y%m%dT%H%M%SZ}.json"
    file.write_bytes(msgspec.json.format(msgspec.json.encode(result)) + b"\n")
    return file
