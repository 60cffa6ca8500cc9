"""The command line: what each verb needs is imported when it runs, because every node pays for imports."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from ..config.cluster import CONTROLLER, NODE
from ..config.document import ConfigError
from ..rpc.endpoint import EndpointError
from .explain import arguments as explain_words
from .importing import arguments as import_words

VERBS = "csi_multi.verbs"  # entry point group: verbs of other packages, each a function that adds its parser
VERB_PACKAGES = {"conformance": "csi-multi-testing"}  # verbs of this project that are in packages of their own


def main(arguments: list[str] | None = None) -> int:
    """Run one verb; return the exit code: 0 done, 1 found something wrong, 2 bad usage or configuration."""
    words = sys.argv[1:] if arguments is None else arguments
    if package := _missing_package(words):
        print(
            f"csi-multi: verb {words[0]!r} is in package {package}, which is not installed: pip install {package}",
            file=sys.stderr,
        )
        return 2
    options = parser(words).parse_args(words)
    try:
        return int(options.run(options) or 0)
    except (ConfigError, EndpointError) as error:
        print(f"csi-multi: {error}", file=sys.stderr)
        return 2


def parser(words: Sequence[str] = ()) -> argparse.ArgumentParser:
    """Return the parser; verbs of other packages are in it unless the words begin with one of ours."""
    top = argparse.ArgumentParser(
        prog="csi-multi",
        description="One CSI driver, many storage backends.",
        epilog="; ".join(f"verb {verb}: needs package {package}" for verb, package in VERB_PACKAGES.items()),
    )
    verbs = top.add_subparsers(required=True, metavar="VERB")

    serve = verbs.add_parser("serve", help="run the driver on the socket that CSI_ENDPOINT names")
    serve.add_argument("--config", type=Path, required=True, metavar="FILE", help="the driver's YAML file")
    serve.add_argument("--mode", choices=["all", "controller", "node"], default="all", help="services to serve")
    serve.add_argument(
        "--node", default="", metavar="NAME", help="this node's name, in place of the file's driver.node"
    )
    serve.set_defaults(run=_serve)

    check = verbs.add_parser("check", help="validate a configuration and print what it would advertise")
    check.add_argument("config", type=Path, metavar="FILE")
    check.set_defaults(run=_check)

    backends = verbs.add_parser("backends", help="list the installed backends, and what is wrong with a broken one")
    backends.add_argument("--json", action="store_true", help="for programs")
    backends.set_defaults(run=_backends)

    explain_words.add(verbs).set_defaults(run=_explain)
    import_words.add(verbs).set_defaults(run=_import)

    certificates = verbs.add_parser(
        "certificates", help="make a certificate authority for a cluster, and what it signs (needs openssl)"
    )
    certificates.add_argument("--directory", type=Path, required=True, metavar="DIR", help="where all files go")
    certificates.add_argument(
        "--node",
        action="append",
        default=[],
        metavar="NAME[=HOST:PORT]",
        help="a node to make a certificate for (again)",
    )
    certificates.add_argument(
        "--days", type=int, default=365, metavar="N", help="how long they are good; the CA: 10 years"
    )
    certificates.add_argument(
        "--controller-identity", default=CONTROLLER, metavar="NAME", help="as in the file's cluster"
    )
    certificates.add_argument("--node-identity", default=NODE, metavar="NAME", help="as in the file's cluster")
    certificates.set_defaults(run=_certificates)

    kubernetes = verbs.add_parser("kubernetes", help="what runs beside the driver on Kubernetes")
    parts = kubernetes.add_subparsers(required=True, metavar="PART")
    taint = parts.add_parser("startup-taint", help="take a taint off nodes once their kubelet knows the driver")
    taint.add_argument("--driver", required=True, metavar="NAME", help="driver.name of the configuration")
    taint.add_argument("--key", default="", metavar="KEY", help="the taint's key; default: NAME/starting")
    taint.set_defaults(run=_startup_taint)
    drain = parts.add_parser("drain", help="wait until a drained node has none of the driver's volumes")
    drain.add_argument("--driver", required=True, metavar="NAME", help="driver.name of the configuration")
    drain.add_argument("--node", default="", metavar="NAME", help="this node; default: NODE_NAME of the environment")
    drain.add_argument("--kubelet", type=Path, default=Path("/var/lib/kubelet"), metavar="DIR", help="its directory")
    drain.add_argument("--seconds", type=float, default=300, metavar="N", help="how long to wait at most")
    drain.set_defaults(run=_drain)

    demo = verbs.add_parser("demo", help="watch a volume's whole life on this machine (needs root)")
    demo.add_argument(
        "--filesystem", choices=["ext4", "xfs", "btrfs"], help="default: ext4 where it can grow online, else xfs"
    )
    demo.set_defaults(run=_demo)
    if not words or words[0] not in verbs.choices:
        _add_foreign_verbs(verbs)
    return top


def _missing_package(words: Sequence[str]) -> str:
    """Return the package that the verb needs and that is not installed; "" if it is installed, or none is needed."""
    package = VERB_PACKAGES.get(words[0], "") if words else ""
    return "" if not package or entry_points(group=VERBS, name=words[0]) else package


def _add_foreign_verbs(verbs: Any) -> None:
    """Add the verbs of installed packages; one that cannot be imported is named on stderr and left out."""
    for point in entry_points(group=VERBS):
        try:
            point.load()(verbs)
        except Exception as error:
            print(f"csi-multi: verb {point.name!r} is not available: {type(error).__name__}: {error}", file=sys.stderr)


def _serve(options: argparse.Namespace) -> None:
    from ..process.serve import serve
    from ..rpc.capabilities import Mode

    serve(options.config, Mode(options.mode), options.node)


def _check(options: argparse.Namespace) -> int:
    from .check import check

    return check(options.config)


def _backends(options: argparse.Namespace) -> int:
    from .list_backends import backends

    return backends(as_json=options.json)


def _explain(options: argparse.Namespace) -> int:
    from .explain.command import explain

    return explain(options)


def _import(options: argparse.Namespace) -> int:
    from .importing.command import run

    return run(options)


def _certificates(options: argparse.Namespace) -> int:
    from .certificates import certificates

    return certificates(options)


def _startup_taint(options: argparse.Namespace) -> int:
    from ..kubernetes.commands import startup_taint

    return startup_taint(options)


def _drain(options: argparse.Namespace) -> int:
    from ..kubernetes.commands import wait_for_drain

    return wait_for_drain(options)


def _demo(options: argparse.Namespace) -> int:
    from .demo import demo

    return demo(options.filesystem)
