"""The arguments of `csi-multi explain`. Imports nothing of the driver, because every start of any verb needs them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

EXAMPLE = "pvc-00000000-0000-4000-8000-000000000000"  # as long as a real one
DESCRIPTION = """\
Goes through the creation of a volume with the driver's own code and changes nothing: steps that only read are done,
steps that change something are printed. Exit code: 0 a volume can be created, 1 it is refused, 2 bad usage."""

# What external-provisioner sends to a driver that advertises SINGLE_NODE_MULTI_WRITER, as this one does.
ACCESS_MODES = {
    "ReadWriteOnce": "SINGLE_NODE_MULTI_WRITER",
    "ReadWriteOncePod": "SINGLE_NODE_SINGLE_WRITER",
    "ReadOnlyMany": "MULTI_NODE_READER_ONLY",
    "ReadWriteMany": "MULTI_NODE_MULTI_WRITER",
}


def add(verbs: Any) -> argparse.ArgumentParser:
    """Add the verb; return its parser."""
    parser: argparse.ArgumentParser = verbs.add_parser(
        "explain", help="show what the driver would do for a StorageClass, and why", description=DESCRIPTION
    )
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="the driver's YAML file")
    parser.add_argument(
        "--storageclass",
        type=Path,
        required=True,
        metavar="FILE",
        help="manifest with StorageClasses; -: standard input",
    )
    parser.add_argument(
        "--class", dest="name", default="", metavar="NAME", help="explain only this class; default: all"
    )
    parser.add_argument("--size", default="", metavar="QUANTITY", help="size of the claim, for example 10Gi")
    parser.add_argument("--block", action="store_true", help="volumeMode Block")
    parser.add_argument("--access-mode", choices=ACCESS_MODES, default="ReadWriteOnce", help="default: ReadWriteOnce")
    parser.add_argument("--topology", default="", metavar="KEY=VALUE,...", help="where the pod will run")
    parser.add_argument("--node", default="", metavar="NAME", help="the node that the pod will run on")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--from-snapshot", default="", metavar="ID", help="a snapshotHandle to restore")
    source.add_argument("--from-volume", default="", metavar="ID", help="a volumeHandle to clone")
    parser.add_argument("--volume-name", default=EXAMPLE, metavar="NAME", help="the PersistentVolume's name")
    parser.add_argument("--claim", default="default/example", metavar="NAMESPACE/NAME", help="used in tags")
    parser.add_argument(
        "--offline", action="store_true", help="do not read the storage; explain what is known without it"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser
