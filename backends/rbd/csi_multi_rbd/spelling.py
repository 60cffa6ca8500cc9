"""How Ceph spells the address of a monitor, the name of a pool, namespace or user, and the id of a cluster.

A spec is pool/namespace/image@snapshot, and a word that begins with a dash is an option of the command.
"""

from __future__ import annotations

import re

_NAME = re.compile(r"[^-/@\s\x00-\x1f\x7f][^/@\s\x00-\x1f\x7f]{0,127}")  # blanks: Ceph takes them, kernels do not
_V6 = r"\[[0-9A-Fa-f:.]+\]"
_BARE = rf"(?:[A-Za-z0-9](?:[-.A-Za-z0-9_]*[A-Za-z0-9])?|{_V6})(?::[0-9]{{1,5}})?"
_EXACT = rf"v[12]:(?:[0-9.]+|{_V6}):[0-9]{{1,5}}(?:/[0-9]+)?"  # here Ceph asks no name server
_MONITOR = re.compile(rf"{_BARE}|{_EXACT}|\[{_EXACT}(?:,{_EXACT})*\]")
_FSID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_USER = re.compile(r"(?!client\.)[A-Za-z0-9_][-_.@A-Za-z0-9]{0,127}")
_SEGMENT = re.compile(r"[A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?")


def monitor(text: str) -> str:
    """Why this is not the address of one monitor; "" if it is. So with all functions here."""
    if _MONITOR.fullmatch(text):
        return ""
    return (
        f"{text!r} is not the address of a monitor: host, host:port, v2:IP:port or [v2:IP:port,v1:IP:port], an IPv6 "
        "address in brackets, and one monitor per item of the list"
    )


def fsid(text: str) -> str:
    return "" if _FSID.fullmatch(text) else f"{text!r} is not the id of a cluster, a UUID; `ceph fsid` shows it"


def user(text: str) -> str:
    if _USER.fullmatch(text):
        return ""
    return f"{text!r} is not the name of a user: letters, digits, '-', '_', '.' and '@', without 'client.' before it"


def place(text: str) -> str:
    """A pool or namespace; none is fine."""
    if not text or _NAME.fullmatch(text):
        return ""
    return f"{text!r} is not a name: up to 128 characters without '/', '@' and blanks, and no '-' at its beginning"


def segment(key: str, value: str) -> str:
    """A segment of a topology."""
    if all(map(_SEGMENT.fullmatch, (key, value))) and key == key.lower() and key != "node":
        return ""
    return (
        f"{key}={value!r} is not a segment: keys and values have 1 to 63 of letters, digits, '-', '_' and '.', with a "
        "letter or digit at both ends; keys are in lower case, and 'node' is the core's"
    )
