"""Run a command in a guest whose kernel maps images of two real Ceph clusters, which run here.

    python -m backends.rbd.tests.guest -- COMMAND...

Both listen on an address of a documentation range that this machine's loopback has for the time. The guest reaches it
through this machine. In the guest CSI_RBD_CLUSTERS says where they are (ceph_remote.py), for the fixture `cluster`.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType

from .ceph import Cluster
from .ceph_remote import VARIABLE, served

PROJECT = Path(__file__).resolve().parents[3]
TOOL = PROJECT / "tests" / "guest" / "run.py"
RANGE = "198.51.100.{}"  # RFC 5737: nobody's
MODULES = ("loop", "rbd", "nbd", "dm-crypt")
ENDED = 30.0  # seconds for the guest's tool to clean up


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memory", default="3G", help="of the guest (default: %(default)s)")
    parser.add_argument("--timeout", default="3600", help="seconds, boot included (default: %(default)s)")
    parser.add_argument("command", nargs="+", help="after --")
    options = parser.parse_args(arguments)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    with ExitStack() as undo:
        directory = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="csi-multi-ceph-")))
        clusters = []
        for number in range(2):
            address = undo.enter_context(_address())
            clusters.append(undo.enter_context(Cluster(directory / str(number), address=address, store="bluestore")))
        coordinates = undo.enter_context(served(clusters, clusters[0].address, directory))
        words = ["--user-mode", "--network", "--memory", options.memory, "--timeout", options.timeout]
        words += ["--modules", ",".join(MODULES)]
        return _guest([*words, "--", *options.command], {VARIABLE: coordinates})


@contextmanager
def _address() -> Iterator[str]:
    """Give loopback an address that it does not have, and take it away again."""
    for last in range(1, 255):
        address = RANGE.format(last)
        command = ("ip", "address", "add", f"{address}/32", "dev", "lo")
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            break
        if "exists" not in done.stderr and "assigned" not in done.stderr:
            raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
    else:
        raise OSError(f"loopback has all of {RANGE.format('0/24')}: left by runs that were killed?")
    try:
        yield address
    finally:
        subprocess.run(("ip", "address", "delete", f"{address}/32", "dev", "lo"), check=True)


def _guest(words: list[str], environment: dict[str, str]) -> int:
    """Run the guest's tool to its end; end it if we are ended."""
    process = subprocess.Popen((sys.executable, str(TOOL), *words), env={**os.environ, **environment})
    try:
        return process.wait()
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(ENDED)


def _leave(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
