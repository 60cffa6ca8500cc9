"""Options of mapping and unmapping, in the syntax that ceph-csi gave them: "krbd:a,b=c;nbd:d".

What has no mounter before it is for the kernel. Options that would change which image is mapped, who may
write to it or by which key it is read are refused; all others are for the kernel or rbd-nbd to judge.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from csi_multi.contract import InvalidArgument

_OPTION = re.compile(r"[A-Za-z_][-A-Za-z0-9_]*(=[^,;\s]+)?")
_OURS = "the driver sees to it"
_KEYS = "keys are the instance's keyring, or come with the CSI secrets"
_LOSS = "what was not yet written would be lost"

REFUSED: dict[str, dict[str, str]] = {
    "krbd": {
        "exclusive": "an image that the kernel holds exclusively cannot grow or be snapshotted; the driver lets in one "
        "node at a time by itself",
        **dict.fromkeys(("ro", "read_only", "read-only", "rw"), "the access mode and the readOnly flag say that"),
        **dict.fromkeys(("noudev", "udev"), _OURS),
        **dict.fromkeys(("name", "secret", "key", "fsid", "_pool_ns"), _KEYS),
        "force": _LOSS,
    },
    "nbd": {
        **dict.fromkeys(("exclusive", "read-only"), "the access mode and the readOnly flag say that"),
        **dict.fromkeys(("device", "cookie", "show-cookie", "try-netlink", "snap-id"), _OURS),
        **dict.fromkeys(("encryption-format", "encryption-passphrase-file"), "the driver does not encrypt volumes"),
        **dict.fromkeys(("quiesce", "quiesce-hook"), "it would run a program on the node"),
        "force": _LOSS,
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    krbd: tuple[str, ...] = ()
    nbd: tuple[str, ...] = ()


def parse(text: str) -> Options:
    """Raises InvalidArgument."""
    if reason := objection(text):
        raise InvalidArgument(f"options {text!r}: {reason}")
    found: dict[str, list[str]] = {"krbd": [], "nbd": []}
    for mounter, options in _parts(text):
        found[mounter] += options
    return Options(krbd=tuple(found["krbd"]), nbd=tuple(found["nbd"]))


def objection(text: str) -> str:
    """Why these are not options; "" if they are."""
    for mounter, options in _parts(text):
        if mounter not in REFUSED:
            return f"{mounter!r} is no mounter; write krbd:... or nbd:..., with ';' between them"
        for option in options:
            if not _OPTION.fullmatch(option):
                return f"{option!r} is no option; write a,b=c"
            name = option.partition("=")[0]
            if reason := REFUSED[mounter].get(name.lower()):
                return f"leave out {name!r}: {reason}"
    return ""


def merged(ours: tuple[str, ...], theirs: tuple[str, ...]) -> tuple[str, ...]:
    """Return our options and theirs; where both have one, theirs."""
    names = {option.partition("=")[0] for option in theirs}
    return (*(option for option in ours if option.partition("=")[0] not in names), *theirs)


def _parts(text: str) -> list[tuple[str, list[str]]]:
    parts = []
    for part in filter(None, (part.strip() for part in text.split(";"))):
        mounter, colon, options = part.partition(":")
        if not colon:
            mounter, options = "krbd", part
        parts.append((mounter.strip().lower(), [option.strip() for option in options.split(",") if option.strip()]))
    return parts
