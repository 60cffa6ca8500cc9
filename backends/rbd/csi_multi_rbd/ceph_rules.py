"""Ceph's own rules: names and addresses, features of images, striping, and options of mapping and unmapping.

A function that checks a value returns why it cannot be used, "" if it can.

Options have the syntax of ceph-csi, "krbd:a,b=c;nbd:d": without a mounter they are for the kernel. Options that change
which image is mapped, who may write to it or which key reads it are refused; the kernel or rbd-nbd judges all others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from csi_multi.contract import InvalidArgument

Feature = Literal["layering", "exclusive-lock", "object-map", "fast-diff", "deep-flatten", "journaling"]
Mounter = Literal["rbd", "rbd-nbd"]

FEATURES: tuple[str, ...] = get_args(Feature)
REQUIRED_FEATURES = {"object-map": "exclusive-lock", "fast-diff": "object-map", "journaling": "exclusive-lock"}
NOT_IN_KERNELS = frozenset({"journaling"})  # no version has it so far
OBJECT_SIZE = 4 * 2**20  # bytes, Ceph's default
SMALLEST_UNIT = 512  # bytes: a sector

_NAME = re.compile(r"[^-/@\s\x00-\x1f\x7f][^/@\s\x00-\x1f\x7f]{0,127}")  # Ceph accepts blanks, kernels do not
_V6 = r"\[[0-9A-Fa-f:.]+\]"
_BARE = rf"(?:[A-Za-z0-9](?:[-.A-Za-z0-9_]*[A-Za-z0-9])?|{_V6})(?::[0-9]{{1,5}})?"
_EXACT = rf"v[12]:(?:[0-9.]+|{_V6}):[0-9]{{1,5}}(?:/[0-9]+)?"  # Ceph resolves no host names here
_MONITOR = re.compile(rf"{_BARE}|{_EXACT}|\[{_EXACT}(?:,{_EXACT})*\]")
_FSID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_USER = re.compile(r"(?!client\.)[A-Za-z0-9_][-_.@A-Za-z0-9]{0,127}")
_SEGMENT = re.compile(r"[A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?")

_LOCATION = re.compile(r"[A-Za-z0-9][-_.A-Za-z0-9]*:[A-Za-z0-9][-_.A-Za-z0-9]*")  # bucket type and name
_OPTION = re.compile(r"[A-Za-z_][-A-Za-z0-9_]*(=[^,;\s]+)?")
_DRIVER_SETS = "the driver sets it"
_KEYS = "the key comes from the instance's keyring or from the CSI secrets"
_LOSS = "it loses data that was not written yet"

REFUSED_OPTIONS: dict[str, dict[str, str]] = {
    "krbd": {
        "exclusive": "an image that the kernel locks exclusively cannot be resized or snapshotted; the driver itself "
        "lets only one node map a volume",
        **dict.fromkeys(("ro", "read_only", "read-only", "rw"), "the access mode and the readOnly flag decide that"),
        **dict.fromkeys(("noudev", "udev"), _DRIVER_SETS),
        **dict.fromkeys(("name", "secret", "key", "fsid", "_pool_ns"), _KEYS),
        "force": _LOSS,
    },
    "nbd": {
        **dict.fromkeys(("exclusive", "read-only"), "the access mode and the readOnly flag decide that"),
        **dict.fromkeys(("device", "cookie", "show-cookie", "try-netlink", "snap-id"), _DRIVER_SETS),
        **dict.fromkeys(("encryption-format", "encryption-passphrase-file"), "the driver does not encrypt volumes"),
        **dict.fromkeys(("quiesce", "quiesce-hook"), "it would run a program on the node"),
        "force": _LOSS,
    },
}

ALREADY_SET = ("nbd", "try-netlink")  # by the driver, always; the example of ceph-csi has it, so it is ignored


def monitor_problem(text: str) -> str:
    """Check the address of one monitor."""
    if _MONITOR.fullmatch(text):
        return ""
    return (
        f"{text!r} is not the address of a monitor: host, host:port, v2:IP:port or [v2:IP:port,v1:IP:port], an IPv6 "
        "address in brackets, and one monitor per item of the list"
    )


def fsid_problem(text: str) -> str:
    return (
        "" if _FSID.fullmatch(text) else f"{text!r} is not the id of a cluster, which is a UUID; `ceph fsid` prints it"
    )


def user_problem(text: str) -> str:
    if _USER.fullmatch(text):
        return ""
    return f"{text!r} is not the name of a user: letters, digits, '-', '_', '.' and '@', without the prefix 'client.'"


def name_problem(text: str) -> str:
    """Check the name of a pool or namespace, which may be empty."""
    if not text or _NAME.fullmatch(text):
        return ""
    return f"{text!r} is not a name: up to 128 characters without '/', '@' and blanks, and without '-' at the beginning"


def segment_problem(key: str, value: str) -> str:
    """Check a topology segment."""
    if all(map(_SEGMENT.fullmatch, (key, value))) and key == key.lower() and key != "node":
        return ""
    return (
        f"{key}={value!r} is not a segment: keys and values have 1 to 63 of letters, digits, '-', '_' and '.', with a "
        "letter or digit at both ends; keys are in lower case, and the key 'node' belongs to the core"
    )


def location_problem(node: str, location: str) -> str:
    """Check the CRUSH location of a node."""
    if all(map(_LOCATION.fullmatch, location.split("|"))):
        return ""
    return (
        f"{location!r} of {node!r} is not a CRUSH location; write zone:a or zone:a|rack:b, as `ceph osd tree` has them"
    )


def split_features(text: str) -> tuple[str, ...]:
    """Return the features in a comma-separated list, each once, in order."""
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def features_problem(features: Iterable[str], mounter: str) -> str:
    """Check whether an image can have these features and be mapped by this mounter."""
    given = tuple(features)
    if strange := [one for one in given if one not in FEATURES]:
        return f"{strange[0]!r} is not an image feature; the features are: {', '.join(FEATURES)}"
    if "layering" not in given:
        return "'layering' is missing, which snapshots and clones need; add it"
    for feature in given:
        if (needed := REQUIRED_FEATURES.get(feature)) and needed not in given:
            return f"{feature!r} needs {needed!r}; add it, or leave {feature!r} out"
    if mounter == "rbd" and (strange := [one for one in given if one in NOT_IN_KERNELS]):
        return f"no kernel can map an image with {strange[0]!r}; leave it out, or choose the mounter rbd-nbd"
    return ""


def striping_problem(*, object_size: int, unit: int, count: int) -> str:
    """Check how data is to be striped (0: not given)."""
    if object_size & (object_size - 1):
        return f"'objectSize' {object_size} is not a power of two; the next lower one is {_nearest(object_size)}"
    if bool(unit) != bool(count):
        given, missing = ("stripeUnit", "stripeCount") if unit else ("stripeCount", "stripeUnit")
        return f"'{given}' needs {missing}; give both, or neither"
    if not unit:
        return ""
    if unit < SMALLEST_UNIT or (object_size or OBJECT_SIZE) % unit:
        default = "" if object_size else ", Ceph's default; give objectSize for another size"
        return (
            f"'stripeUnit' {unit} is not allowed: it has to be a power of two from {SMALLEST_UNIT} to the object size, "
            f"{object_size or OBJECT_SIZE} bytes{default}"
        )
    return ""


def _nearest(size: int) -> int:
    """Return the next lower power of two."""
    return 1 << (size.bit_length() - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class MapOptions:
    """Options of mapping or unmapping, by mounter."""

    krbd: tuple[str, ...] = ()
    nbd: tuple[str, ...] = ()


def parse_options(text: str) -> MapOptions:
    """Raises InvalidArgument."""
    if reason := options_problem(text):
        raise InvalidArgument(f"options {text!r}: {reason}")
    found: dict[str, list[str]] = {"krbd": [], "nbd": []}
    for mounter, options in _parts(text):
        found[mounter] += options
    return MapOptions(krbd=tuple(found["krbd"]), nbd=tuple(found["nbd"]))


def options_problem(text: str) -> str:
    """Check options of mapping or unmapping."""
    for mounter, options in _parts(text):
        if mounter not in REFUSED_OPTIONS:
            return f"{mounter!r} is not a mounter; write krbd:... or nbd:..., separated by ';'"
        for option in options:
            if not _OPTION.fullmatch(option):
                return f"{option!r} is not an option; write a,b=c"
            name = option.partition("=")[0]
            if reason := REFUSED_OPTIONS[mounter].get(name.lower()):
                return f"leave out {name!r}: {reason}"
    return ""


def merge_options(defaults: tuple[str, ...], given: tuple[str, ...]) -> tuple[str, ...]:
    """Return the driver's options and the given ones; of two for the same thing, the given one."""
    names = {option.partition("=")[0] for option in given}
    return (*(option for option in defaults if option.partition("=")[0] not in names), *given)


def _parts(text: str) -> list[tuple[str, list[str]]]:
    parts = []
    for part in filter(None, (part.strip() for part in text.split(";"))):
        mounter, colon, options = part.partition(":")
        if not colon:
            mounter, options = "krbd", part
        kind = mounter.strip().lower()
        given = [option.strip() for option in options.split(",") if option.strip()]
        parts.append((kind, [option for option in given if (kind, option) != ALREADY_SET]))
    return parts
