"""The arguments of `csi-multi import`. Imports nothing of the driver, because every start of any verb needs them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

DESCRIPTION = """\
Prints the PersistentVolume of an existing logical volume, EBS volume, RBD image or image file, and the changes that
an import makes to it. Without --apply nothing is changed. An imported volume is never formatted, and the driver never
deletes it. Exit code: 0 done, 1 refused, 2 bad usage."""

ACCESS_MODES = ("ReadWriteOnce", "ReadWriteOncePod", "ReadOnlyMany", "ReadWriteMany")


def add(verbs: Any) -> argparse.ArgumentParser:
    """Add the verb; return its parser."""
    parser: argparse.ArgumentParser = verbs.add_parser(
        "import", help="take over a volume that was created by hand", description=DESCRIPTION
    )
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="the driver's YAML file")
    parser.add_argument("--instance", required=True, metavar="NAME", help="the backend that takes over the volume")
    parser.add_argument("--name", default="", metavar="PV", help="name of the PersistentVolume")
    parser.add_argument("--storageclass", default="", metavar="NAME", help="storageClassName of claims that may bind")
    parser.add_argument("--claim", default="", metavar="NAMESPACE/NAME", help="the only claim that may bind")
    parser.add_argument(
        "--fs-type", default="", metavar="TYPE", help="filesystem of the volume; default: the node detects it"
    )
    parser.add_argument("--block", action="store_true", help="volumeMode Block")
    parser.add_argument("--access-mode", choices=ACCESS_MODES, default="ReadWriteOnce", help="default: ReadWriteOnce")
    parser.add_argument("--node", default="", metavar="NAME", help="this node's name; default: driver.node")
    parser.add_argument("--release", action="store_true", help="undo an import; VOLUME is the volumeHandle")
    parser.add_argument("--apply", action="store_true", help="make the changes; default: only print them")
    parser.add_argument("volume", metavar="VOLUME", help="its name, id or path in the storage")
    return parser
