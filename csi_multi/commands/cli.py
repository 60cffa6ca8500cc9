"""The command line. Each verb imports its modules only when it runs, because every node pays for imports."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from ..config.cluster import CONTROLLER_IDENTITY, NODE_IDENTITY
from ..config.document import ConfigError
from ..rpc.endpoint import EndpointError
from ..rpc.threads import ThreadsMissing
from .explain import arguments as explain_arguments
from .importing import arguments as import_arguments

VERBS = "csi_multi.verbs"  # entry point group: verbs of other packages, each a function that adds its parser
# Verbs of this project that are in packages of their own.
VERB_PACKAGES = {"conformance": "csi-multi-testing", "new-backend": "csi-multi-testing"}


def main(arguments: list[str] | None = None) -> int:
    """Run one verb; return the exit code: 0 done, 1 a problem was found, 2 bad usage or configuration."""
    _open_standard_streams()
    os.umask(os.umask(0o077) | 0o002)  # what the driver makes (labels, notes, directories) is not for all to write
    given = sys.argv[1:] if arguments is None else arguments
    if given and given[0] in VERB_PACKAGES and (package := _missing_packages().get(given[0])):
        print(
            f"csi-multi: verb {given[0]!r} is in package {package}, which is not installed: pip install {package}",
            file=sys.stderr,
        )
        return 2
    options = parser(given).parse_args(given)
    try:
        return int(options.run(options) or 0)
    except (ConfigError, EndpointError, ThreadsMissing) as error:
        from ..logs.handlers import ESCAPES

        print(f"csi-multi: {error}".translate(ESCAPES), file=sys.stderr)  # the text may have keys of the file
        return 2


def _open_standard_streams() -> None:
    """Open those of descriptors 0 to 2 that are closed, so that no device gets their numbers: libraries write to 2."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def parser(arguments: Sequence[str] = ()) -> argparse.ArgumentParser:
    """Return the parser. It has the verbs of other packages only if the first argument is none of our own."""
    top = argparse.ArgumentParser(prog="csi-multi", description="One CSI driver, many storage backends.")
    verbs = top.add_subparsers(required=True, metavar="VERB")
    _add_serve(verbs)
    _add_check(verbs)
    _add_backends(verbs)
    _add_parameters(verbs)
    explain_arguments.add(verbs).set_defaults(run=_explain)
    import_arguments.add(verbs).set_defaults(run=_import)
    _add_trim(verbs)
    _add_certificates(verbs)
    _add_kubernetes(verbs)
    _add_demo(verbs)
    if not arguments or arguments[0] not in verbs.choices:
        _add_verbs_of_packages(verbs)
        missing = _missing_packages().items()
        top.epilog = "; ".join(f"verb {verb}: needs package {package}" for verb, package in missing)
    return top


def _missing_packages() -> dict[str, str]:
    """Return the package by verb, for the verbs of this project whose packages are not installed."""
    return {verb: package for verb, package in VERB_PACKAGES.items() if not entry_points(group=VERBS, name=verb)}


def _add_verbs_of_packages(verbs: Any) -> None:
    """Add the verbs of other packages; one that cannot be imported is reported on stderr and left out."""
    for point in entry_points(group=VERBS):
        try:
            point.load()(verbs)
        except Exception as error:
            print(f"csi-multi: verb {point.name!r} is not available: {type(error).__name__}: {error}", file=sys.stderr)


def _add_serve(verbs: Any) -> None:
    verb = verbs.add_parser("serve", help="run the driver on the socket in the environment variable CSI_ENDPOINT")
    verb.add_argument("--config", type=Path, required=True, metavar="FILE", help="the driver's YAML file")
    verb.add_argument("--mode", choices=["all", "controller", "node"], default="all", help="services to serve")
    verb.add_argument("--node", default="", metavar="NAME", help="this node's name; default: driver.node of the file")
    verb.set_defaults(run=_serve)


def _serve(options: argparse.Namespace) -> None:
    from ..process.serve import serve
    from ..rpc.capabilities import Mode

    serve(options.config, Mode(options.mode), options.node)


def _add_check(verbs: Any) -> None:
    verb = verbs.add_parser("check", help="validate a configuration and print what the driver would advertise")
    verb.add_argument("config", type=Path, metavar="FILE", help="the driver's YAML file; -: standard input")
    verb.set_defaults(run=_check)


def _check(options: argparse.Namespace) -> int:
    from .check import check

    return check(options.config)


def _add_backends(verbs: Any) -> None:
    verb = verbs.add_parser("backends", help="list the installed backends, and the problem of each broken one")
    verb.add_argument("--json", action="store_true", help="print JSON")
    verb.set_defaults(run=_backends)


def _backends(options: argparse.Namespace) -> int:
    from .list_backends import backends

    return backends(as_json=options.json)


def _add_parameters(verbs: Any) -> None:
    verb = verbs.add_parser("parameters", help="print the reference of an installed backend's parameters, in Markdown")
    verb.add_argument("kind", metavar="KIND")
    verb.set_defaults(run=_parameters)


def _parameters(options: argparse.Namespace) -> int:
    from .parameters import parameters

    return parameters(options.kind)


def _explain(options: argparse.Namespace) -> int:
    from .explain.command import explain

    return explain(options)


def _import(options: argparse.Namespace) -> int:
    from .importing.command import run

    return run(options)


def _add_trim(verbs: Any) -> None:
    verb = verbs.add_parser("trim", help="give unused blocks of a volume that is mounted here back to its storage")
    verb.add_argument("volume", metavar="VOLUME", help="the volume's id")
    verb.set_defaults(run=_trim)


def _trim(options: argparse.Namespace) -> int:
    from .trim import trim_volume

    return trim_volume(options.volume)


def _add_certificates(verbs: Any) -> None:
    verb = verbs.add_parser(
        "certificates", help="create a certificate authority and the certificates of a cluster (needs openssl)"
    )
    verb.add_argument("--directory", type=Path, required=True, metavar="DIR", help="directory for all files")
    verb.add_argument(
        "--node",
        action="append",
        default=[],
        metavar="NAME[=HOST:PORT]",
        help="a node to create a (new) certificate for; may be repeated",
    )
    verb.add_argument(
        "--days", type=int, default=365, metavar="N", help="validity of the certificates; the CA: 10 years"
    )
    verb.add_argument(
        "--controller-identity", default=CONTROLLER_IDENTITY, metavar="NAME", help="cluster.controller_identity"
    )
    verb.add_argument("--node-identity", default=NODE_IDENTITY, metavar="NAME", help="cluster.node_identity")
    verb.set_defaults(run=_certificates)


def _certificates(options: argparse.Namespace) -> int:
    from .certificates import certificates

    return certificates(options)


def _add_kubernetes(verbs: Any) -> None:
    verb = verbs.add_parser("kubernetes", help="helpers that run beside the driver on Kubernetes")
    helpers = verb.add_subparsers(required=True, metavar="HELPER")
    taint = helpers.add_parser("startup-taint", help="remove a taint from nodes on which the driver is registered")
    taint.add_argument("--driver", required=True, metavar="NAME", help="driver.name of the configuration")
    taint.add_argument("--key", default="", metavar="KEY", help="the taint's key; default: NAME/starting")
    taint.set_defaults(run=_startup_taint)
    drain = helpers.add_parser("drain", help="wait until a drained node has no volumes of the driver")
    drain.add_argument("--driver", required=True, metavar="NAME", help="driver.name of the configuration")
    drain.add_argument("--node", default="", metavar="NAME", help="this node; default: NODE_NAME of the environment")
    drain.add_argument("--kubelet", type=Path, default=Path("/var/lib/kubelet"), metavar="DIR", help="its directory")
    drain.add_argument("--seconds", type=float, default=300, metavar="N", help="how long to wait at most")
    drain.set_defaults(run=_drain)


def _startup_taint(options: argparse.Namespace) -> int:
    from ..kubernetes.commands import startup_taint

    return startup_taint(options)


def _drain(options: argparse.Namespace) -> int:
    from ..kubernetes.commands import wait_for_drain

    return wait_for_drain(options)


def _add_demo(verbs: Any) -> None:
    verb = verbs.add_parser("demo", help="run through a volume's life cycle on this machine (needs root)")
    verb.add_argument(
        "--filesystem", choices=["ext4", "xfs", "btrfs"], help="default: ext4 where it can be expanded online, else xfs"
    )
    verb.set_defaults(run=_demo)


def _demo(options: argparse.Namespace) -> int:
    from .demo import demo

    return demo(options.filesystem)
