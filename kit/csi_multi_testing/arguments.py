"""The arguments of `csi-multi conformance`. The rest of the kit is imported when the verb runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

CONFORMANCE = """\
Creates and deletes volumes on the instance. Nothing else on the storage is changed, and the instance must list the
same volumes and snapshots afterwards. Stop a driver that serves the instance first. On a terminal the command asks for
confirmation; elsewhere it runs only if the instance lists nothing, or with --yes.
Exit code: 0 no check failed, 1 a check failed, 2 nothing was run."""


def add(verbs: Any) -> None:
    """Add the verb to the subparsers of `csi-multi`."""
    conformance = verbs.add_parser(
        "conformance", help="test a configured backend against the contract and CSI", description=CONFORMANCE
    )
    conformance.add_argument("--config", type=Path, metavar="FILE", help="the driver's configuration file")
    conformance.add_argument("--backend", metavar="NAME", help="the instance to test, as the file names it")
    conformance.add_argument(
        "--storage",
        type=Path,
        metavar="FILE",
        help="YAML file that describes the storage to the checks; --list shows its keys",
    )
    conformance.add_argument(
        "--only", default="", metavar="TEXT", help="run only the checks with this text in 'group: name'"
    )
    conformance.add_argument(
        "--list", action="store_true", help="print all checks, what each needs, and the keys of --storage; run nothing"
    )
    conformance.add_argument("--yes", action="store_true", help="do not ask for confirmation")
    conformance.add_argument("--json", type=Path, metavar="FILE", help="also write the report as JSON")
    conformance.add_argument("--junit", type=Path, metavar="FILE", help="also write the report as JUnit XML")
    conformance.add_argument(
        "--sanity",
        default="auto",
        metavar="PATH",
        help="path of csi-sanity, no (do not run it), or auto (CSI_SANITY or PATH; the default)",
    )
    conformance.set_defaults(run=_conformance)


def _conformance(options: argparse.Namespace) -> int:
    from .conformance import conformance

    return conformance(options)
