"""The network of the tests: one namespace for each node, tied to a bridge in the namespace of the tests themselves."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable

HUB = "198.51.100.1"


def address(number: int) -> str:
    return f"198.51.100.{10 + number}"


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def up(nodes: Iterable[str]) -> None:
    """Make it. The names of the namespaces are in a directory of this mount namespace, and go with it."""
    subprocess.run(["mkdir", "-p", "/run/netns"], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "netns", "/run/netns"], check=True)
    ip("link", "set", "lo", "up")
    ip("link", "add", "hub", "type", "bridge")
    ip("address", "add", f"{HUB}/24", "dev", "hub")
    ip("link", "set", "hub", "up")
    for number, node in enumerate(nodes, 1):
        ip("netns", "add", node)
        ip("-n", node, "link", "set", "lo", "up")
        ip("link", "add", f"to-{node}", "type", "veth", "peer", "name", "eth0", "netns", node)
        ip("link", "set", f"to-{node}", "master", "hub", "up")
        ip("-n", node, "address", "add", f"{address(number)}/24", "dev", "eth0")
        ip("-n", node, "link", "set", "eth0", "up")
