"""The words of `csi-multi conformance` on the command line; the kit itself is imported when it runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

CONFORMANCE = """\
Makes and deletes volumes on the instance; everything else there is left alone, and the listing must be the
same afterwards. Stop a driver that serves the instance first. On a terminal it asks before it begins; elsewhere it
runs when the instance lists nothing, or with --yes. Exit code: 0 nothing failed, 1 something did, 2 not run."""


def add(verbs: Any) -> None:
    """Add the verb to the subparsers of `csi-multi`."""
    conformance = verbs.add_parser(
        "conformance", help="test a configured backend against the contract and CSI", description=CONFORMANCE
    )
    conformance.add_argument("--config", type=Path, metavar="FILE", help="the driver's YAML file")
    conformance.add_argument("--backend", metavar="NAME", help="the instance to test, as the file names it")
    conformance.add_argument(
        "--storage", type=Path, metavar="FILE", help="YAML: what may be asked of the storage; see --list"
    )
    conformance.add_argument("--only", default="", metavar="TEXT", help="checks with this in 'group: name' only")
    conformance.add_argument(
        "--list", action="store_true", help="print the checks, what each needs, and what --storage takes"
    )
    conformance.add_argument("--yes", action="store_true", help="do not ask")
    conformance.add_argument("--json", type=Path, metavar="FILE", help="also write the report for programs")
    conformance.add_argument("--junit", type=Path, metavar="FILE", help="also write the report for CI systems")
    conformance.add_argument(
        "--sanity", default="auto", metavar="PATH", help="csi-sanity: its path, no, or auto (CSI_SANITY, PATH)"
    )
    conformance.set_defaults(run=_conformance)


def _conformance(options: argparse.Namespace) -> int:
    from .conformance import conformance

    return conformance(options)
