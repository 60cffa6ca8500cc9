"""The words of `csi-multi import` on the command line. Imports nothing of the driver: every start reads them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

DESCRIPTION = """\
Prints the PersistentVolume for a logical volume, EBS volume, RBD image or image file that is there already, and what
would be changed on it. Nothing is changed without --apply. An imported volume is never formatted, and never deleted
by the driver. Exit code: 0 done, 1 refused, 2 bad usage."""

ACCESS_MODES = ("ReadWriteOnce", "ReadWriteOncePod", "ReadOnlyMany", "ReadWriteMany")


def add(verbs: Any) -> argparse.ArgumentParser:
    """Add the verb to a parser's verbs, and return its own parser."""
    parser: argparse.ArgumentParser = verbs.add_parser(
        "import", help="take over a volume that was made by hand", description=DESCRIPTION
    )
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="the driver's YAML file")
    parser.add_argument("--instance", required=True, metavar="NAME", help="the backend that is to have it")
    parser.add_argument("--name", default="", metavar="PV", help="name of the PersistentVolume")
    parser.add_argument("--storageclass", default="", metavar="NAME", help="class of claims that may have it")
    parser.add_argument("--claim", default="", metavar="NAMESPACE/NAME", help="the one claim that may have it")
    parser.add_argument("--fs-type", default="", metavar="TYPE", help="filesystem on it; default: what is found there")
    parser.add_argument("--block", action="store_true", help="volumeMode Block")
    parser.add_argument("--access-mode", choices=ACCESS_MODES, default="ReadWriteOnce", help="default: ReadWriteOnce")
    parser.add_argument("--node", default="", metavar="NAME", help="this node's name, in place of driver.node")
    parser.add_argument("--release", action="store_true", help="take the stamp off again; VOLUME is the volumeHandle")
    parser.add_argument("--apply", action="store_true", help="do it, and do not only say what would be done")
    parser.add_argument("volume", metavar="VOLUME", help="a name, id or path in the storage")
    return parser
