"""Start a Kubernetes on this machine, install the driver with its chart, run the tests, and take everything away.

    python -m tests.orchestrators.kubernetes.run [--nodes=2] [-- ARGUMENTS OF PYTEST]

With --existing the tests run on the cluster that KUBECONFIG names, in which the driver is installed with
config/helm/values/loop.yaml and snapshots; tests that need this machine are skipped. See docs/testing.md.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from . import suite
from .build import TOOLS, BuildError, build
from .cluster import Cluster
from .images import archives
from .install import install
from .node import NodeError

TESTS = Path(__file__).parent
PYTEST = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "--durations=8", "--durations-min=10")


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    if options.existing:
        return test(options.pytest, {f"KUBERNETES_{name.upper()}": json.dumps([name]) for name in ("kubectl", "helm")})
    if os.geteuid():
        print("kubernetes: namespaces, mounts and loop devices take root", file=sys.stderr)
        return 1
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _frame: sys.exit(128 + number))
    TOOLS.mkdir(parents=True, exist_ok=True)
    with (TOOLS / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            return run(options)
        except (BuildError, NodeError) as error:
            print(f"kubernetes: {error}", file=sys.stderr)
            return 1


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1, help="(default: %(default)s)")
    parser.add_argument("--existing", action="store_true", help="test the cluster that KUBECONFIG names")
    parser.add_argument("--suite", action="store_true", help="run Kubernetes' own tests of storage, instead of ours")
    parser.add_argument("--all", action="store_true", help="of these also the slow, serial and disruptive ones")
    parser.add_argument("--focus", default=suite.FOCUS, help="of these only those with such names")
    parser.add_argument("--shell", action="store_true", help="start a shell beside the cluster, instead of the tests")
    parser.add_argument("pytest", nargs="*", help="after --")
    return parser.parse_args(arguments)


def run(options: argparse.Namespace) -> int:
    step = Steps()
    build()
    images = archives() + (suite.archives() if options.suite else [])
    step.done("programs and images")
    with Cluster(TOOLS / "run", nodes=options.nodes) as cluster:
        cluster.start(images)
        step.done("start")
        helm = install(cluster)
        step.done("installation")
        place = {"directory": str(cluster.directory), "nodes": len(cluster.nodes)}
        known = {"KUBECTL": cluster.kubectl_words, "HELM": helm, "CLUSTER": place}
        environment = {f"KUBERNETES_{name}": json.dumps(fact) for name, fact in known.items()}
        if options.shell:
            words = " ".join(cluster.kubectl_words)
            print(f"kubectl is: {words}", flush=True)
            status = subprocess.run(
                [os.environ.get("SHELL", "sh")], env=os.environ | environment, check=False
            ).returncode
        elif options.suite:
            status = suite.run(cluster, quick=not options.all, focus=options.focus)
        else:
            status = test(options.pytest, environment)
        step.done("tests")
    step.done("end")
    for what in cluster.machine.leftovers():
        print(f"kubernetes: left behind: {what}", file=sys.stderr)
        status = status or 1
    return status


def test(arguments: list[str], environment: dict[str, str]) -> int:
    return subprocess.run([*PYTEST, *(arguments or [str(TESTS)])], env=os.environ | environment, check=False).returncode


class Steps:
    """Prints what each step took."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def done(self, what: str) -> None:
        now = time.monotonic()
        print(f"kubernetes: {what} took {now - self._began:.1f} s", flush=True)
        self._began = now


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
