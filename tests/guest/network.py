"""The network of a guest in user mode: a pair of virtual interfaces, one end for the guest, one for this machine."""

from __future__ import annotations

import ipaddress
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

RANGE = ipaddress.ip_network("203.0.113.0/24")  # RFC 5737: nobody's
NAME = "csi-guest{}"


class NetworkError(Exception):
    """The guest cannot have a network."""


@dataclass(frozen=True, slots=True)
class Link:
    """The end of the guest, and the addresses of both."""

    interface: str
    guest: str
    gateway: str


@contextmanager
def linked() -> Iterator[Link]:
    """Make a pair of interfaces; it is gone after the block. Raises NetworkError."""
    ours, theirs, (gateway, guest) = _pair()
    try:
        for interface in ours, theirs:  # the guest reads packets as this machine's programs left them
            _call("ethtool", "--offload", interface, "tx", "off", "gro", "off")
            _call("ip", "link", "set", interface, "up")
        _call("ip", "link", "set", theirs, "promisc", "on")
        _call("ip", "address", "add", f"{gateway}/31", "dev", ours)
        yield Link(theirs, guest, gateway)
    finally:
        _ip("link", "delete", ours)


def _pair() -> tuple[str, str, tuple[str, str]]:
    """Make a pair of interfaces that nobody has; return their names, and two addresses that belong to the names."""
    for number, subnet in enumerate(RANGE.subnets(new_prefix=31)):
        ours, theirs = NAME.format(number), NAME.format(f"{number}-in")
        if _ip("link", "add", ours, "type", "veth", "peer", "name", theirs):
            return ours, theirs, (str(subnet[0]), str(subnet[1]))
    raise NetworkError(f"{NAME.format(0)} and all others exist: left by guests that were killed?")


def _ip(*words: str) -> bool:
    """Run ip(8). Return False for an interface that exists already, or exists no more."""
    done = subprocess.run(("ip", *words), capture_output=True, text=True, check=False)
    if done.returncode and "exist" not in done.stderr and "Cannot find device" not in done.stderr:
        raise NetworkError(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done.returncode == 0


def _call(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NetworkError(f"{' '.join(words)}: {done.stderr.strip()}")
