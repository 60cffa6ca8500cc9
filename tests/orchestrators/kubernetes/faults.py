"""What befalls a node of a cluster on this machine: programs that are killed, a link that is cut. All of it ends."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from .on_node import OnNode

_started: list[subprocess.Popen[bytes]] = []  # they end with their node


@contextmanager
def without(node: OnNode, *programs: str) -> Iterator[None]:
    """kill -9 programs of a node; start them again at the end, as they were started."""
    with ExitStack() as stack:
        for program in programs:
            pid = _find(node, program)
            words = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
            environment = Path(f"/proc/{pid}/environ").read_bytes().rstrip(b"\0").split(b"\0")
            kill(pid)
            stack.callback(_start, node, program, [*map(os.fsdecode, words)], [*map(os.fsdecode, environment)])
        yield


@contextmanager
def cut_off(node: OnNode, first: OnNode) -> Iterator[None]:
    """Cut the link between a node and the first one, which has the control plane: at that one's end."""
    link = ("ip", "link", "set", f"to-{node.name}")
    first.run(*link, "down")
    try:
        yield
    finally:
        first.run(*link, "up")


def _find(node: OnNode, program: str) -> int:
    """Return the process of a program in the node's own namespace: its containers have namespaces of their own."""
    space = Path(f"/proc/{node.pid}/ns/pid").readlink()
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if (place / "ns/pid").readlink() == space and (place / "exe").readlink().name == program:
                return int(place.name)
        except OSError:  # it has ended, or is one of the kernel
            continue
    raise AssertionError(f"{program} does not run on {node.name}")


def kill(pid: int) -> None:
    """kill -9, and return when the process has ended."""
    process = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(process, signal.SIGKILL)
        select.select([process], [], [])
    finally:
        os.close(process)


def _start(node: OnNode, program: str, words: list[str], environment: list[str]) -> None:
    with (node.home / f"{program}.log").open("ab") as log:
        _started.append(
            subprocess.Popen(
                node.words("env", "-C", str(node.home), *words),
                env=dict(one.partition("=")[::2] for one in environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        )
