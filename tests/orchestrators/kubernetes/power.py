"""A node is switched off, and on again: everything in it ends at once, and its directories stay as they were.

Devices, mounts and what lies in memory are gone then, as after a boot; only the kernel is still the machine's.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .cluster import Cluster
from .faults import kill
from .machine import devices_of, empty_cgroup, files_of
from .on_node import OnNode

LIMIT = 30.0  # seconds until the kernel has taken the devices of a node away
HOLDER = ".filer.open"  # of the backend filer: names the node that has an image of the share open


@contextmanager
def switched_off(node: OnNode, cluster: Cluster) -> Iterator[None]:
    """Switch a node off that is not the first one; switch it on at the end, and return when it is ready."""
    switch_off(node, cluster)
    try:
        yield
    finally:
        switch_on(node, cluster)


def switch_off(node: OnNode, cluster: Cluster) -> None:
    (found,) = (one for one in cluster.nodes if one.name == node.name)
    cluster.nodes[0].run("ip", "link", "delete", f"to-{node.name}")
    kill(node.pid)  # the kernel ends all others of the node before it
    deadline = time.monotonic() + LIMIT
    while devices := devices_of(_files(node, cluster.share)):
        for device in devices:
            subprocess.run(["losetup", "--detach", device], capture_output=True, check=False)
        assert time.monotonic() < deadline, f"devices of {node.name} that do not go: {devices}"
        time.sleep(0.1)
    empty_cgroup(found.cgroup)  # a kubelet that starts would look at each for a while


def switch_on(node: OnNode, cluster: Cluster) -> None:
    (found,) = (one for one in cluster.nodes if one.name == node.name)
    cluster.start_again(found)
    cluster.kubectl("wait", "--for=condition=Ready", "node", node.name, "--timeout=180s")


def _files(node: OnNode, share: Path) -> Iterator[Path]:
    """Yield the files of which the node may have devices: its own, and what it has open of the share."""
    yield from files_of(node.home)
    for holder in share.glob(f"*{HOLDER}"):
        if holder.read_text() == node.name:
            yield holder.with_suffix("")
