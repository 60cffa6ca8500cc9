"""The arguments of the kit's verbs. The rest of the kit is imported when a verb runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

CONFORMANCE = """\
Creates and deletes volumes on the instance, and the instance must list the same volumes and snapshots afterwards.
Nothing else on the storage is changed, except by the commands away, damage and power_cut of the file of --storage: they
can interrupt or harm every volume of that storage. Stop a driver that serves the instance first. On a terminal the
command asks for confirmation; elsewhere it runs only with --yes, or if the instance lists nothing and none of these
commands is given.
Exit code: 0 no check failed, 1 a check failed, 2 nothing was run."""

NEW_BACKEND = """\
Writes a package with a small backend that works: pyproject.toml, the modules that every backend has, tests that run the
kit, a CI file, README and changelog. Replace its client.py with the calls to your storage system, and run the kit after
each change. docs/writing-a-backend.md leads through it.
Exit code: 0 written, 2 nothing was written."""


def add(verbs: Any) -> None:
    """Add the verb conformance to the subparsers of `csi-multi`."""
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


def add_new_backend(verbs: Any) -> None:
    """Add the verb new-backend to the subparsers of `csi-multi`."""
    new = verbs.add_parser(
        "new-backend",
        help="write a package with a backend of your own that works and passes the kit",
        description=NEW_BACKEND,
    )
    new.add_argument("name", metavar="NAME", help="the kind in the configuration file; the package is csi-multi-NAME")
    skeleton = new.add_mutually_exclusive_group()
    skeleton.add_argument(
        "--local",
        dest="skeleton",
        action="store_const",
        const="local",
        default="local",
        help="each volume is on one node (the default): reserved files in memory, as loop devices",
    )
    skeleton.add_argument(
        "--network",
        dest="skeleton",
        action="store_const",
        const="network",
        help="every node reaches all volumes: files in a shared directory, open on one node at a time",
    )
    new.add_argument("--dir", type=Path, metavar="DIR", help="a new or empty directory; default: csi-multi-NAME")
    new.set_defaults(run=_new_backend)


def _new_backend(options: argparse.Namespace) -> int:
    from .new_backend import new_backend

    return new_backend(options)


def _conformance(options: argparse.Namespace) -> int:
    from .conformance import conformance

    return conformance(options)
