"""Run the cases one after the other; write a table and a JSON file."""

from __future__ import annotations

import argparse
import datetime
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import grpc
import msgspec

from . import kept, table
from .cases_cluster import cluster
from .cases_ebs import ebs
from .cases_imports import imports
from .cases_listing import listing
from .cases_lvm import lvm
from .cases_node import node
from .cases_peer_ebs import beside_aws_ebs
from .cases_peer_lvm import beside_csi_driver_lvm
from .cases_peer_node import beside_host_path
from .cases_peer_rawfile import beside_rawfile
from .cases_peer_rbd import beside_ceph_csi
from .cases_rbd import rbd
from .cases_rpc import rpc
from .cases_start import startup
from .cases_telemetry import telemetry
from .facts import facts
from .peers import PEERS, PeerMissing
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


BESIDE: dict[str, Callable[..., list[table.Row]]] = {
    "csi-driver-host-path": beside_host_path,
    "rawfile-localpv": beside_rawfile,
    "csi-driver-lvm": beside_csi_driver_lvm,
    "aws-ebs-csi-driver": beside_aws_ebs,
    "ceph-csi": beside_ceph_csi,
}


NAMES = ", ".join(PEERS)


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    run: Callable[..., list[table.Row]]
    other: str = "bare"  # what it is compared with: a column of the table


def main(arguments: list[str] | None = None) -> int:
    """Return 0 if all cases were measured (targets met or not), 1 if a case could not be measured, 2 for bad usage.

    A peer that cannot be built here is no failure: a line says why.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.keep and options.quick:
        parser.error("--keep keeps no figures of --quick: they are not meaningful")
    if os.geteuid() != 0:
        print("the benchmarks need root: they create loop devices and mounts", file=sys.stderr)
        return 2
    started = datetime.datetime.now(datetime.UTC)
    about, name = {**facts(started), "quick": options.quick}, ""
    measured: dict[str, kept.Measured] = {}
    try:
        with interruptible():
            for case in _chosen(options):
                name = case.name
                print(f"measuring {name} ...", file=sys.stderr, flush=True)
                with workspace() as directory:
                    rows = case.run(directory, quick=options.quick)
                print(f"\n{name}\n{table.text(rows, other=case.other)}", flush=True)
                measured[name] = {"about": about, "other": case.other, "rows": [row.facts() for row in rows]}
                if options.keep:
                    kept.keep({name: measured[name]})
    except (Unmeasurable, grpc.RpcError, OSError, RuntimeError) as error:
        print(f"could not measure {name}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    print(f"written to {_write(started, {**about, 'cases': measured})}")
    return 0


def _chosen(options: argparse.Namespace) -> Iterator[Case]:
    """Yield the cases to measure. Peers are built first: then nothing else runs while a case is measured."""
    only = options.only or ([] if options.peers else CASES)
    peers = BESIDE if options.peers else [name for name in only if name in BESIDE]
    built = list(_peers(peers, dict(options.peer)))
    yield from [Case(name, CASES[name]) for name in only if name in CASES]
    yield from built


def _peers(names: Iterable[str], given: Mapping[str, Path]) -> Iterator[Case]:
    for name, measure in ((name, BESIDE[name]) for name in names):
        print(f"preparing {name} ...", file=sys.stderr, flush=True)
        try:
            program = PEERS[name].build(given.get(name))
        except PeerMissing as error:
            print(f"not measured: {name}: {error}", file=sys.stderr)
        else:
            yield Case(name, partial(measure, program=program), other=f"{name} {program.version}")


def _given(text: str) -> tuple[str, Path]:
    name, _, place = text.partition("=")
    if name not in PEERS or not place or not Path(place).exists():
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=DIRECTORY or NAME=PROGRAM, with a NAME of {NAMES}")
    return name, Path(place).resolve()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench/run.py", description="Speed as ratios against the bare operation.")
    parser.add_argument(
        "--only", choices=[*CASES, *BESIDE], action="append", metavar="NAME",
        help=f"of {', '.join([*CASES, *BESIDE])}; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--quick", action="store_true", help="few rounds, to test the benchmark itself; the figures are not meaningful"
    )
    parser.add_argument(
        "--peers", action="store_true", help=f"measure beside other drivers instead: {', '.join(BESIDE)}"
    )
    parser.add_argument(
        "--peer", type=_given, action="append", default=[], metavar="NAME=PLACE",
        help="the program of this peer; of one in Python a directory with `venv` and `sources`",
    )  # fmt: skip
    parser.add_argument(
        "--keep", action="store_true", help="replace the figures of docs/performance.md: bench/kept.json"
    )
    return parser


def _write(started: datetime.datetime, result: dict[str, object]) -> Path:
    RESULTS.mkdir(exist_ok=True)
    file = RESULTS / f"{started:%Y%m%dT%H%M%SZ}.json"
    file.write_bytes(msgspec.json.format(msgspec.json.encode(result)) + b"\n")
    return file
