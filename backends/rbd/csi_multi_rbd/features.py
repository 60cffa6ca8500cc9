"""Ceph's own rules for an image: which features go together and can be mapped, and how data may be striped."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

Feature = Literal["layering", "exclusive-lock", "object-map", "fast-diff", "deep-flatten", "journaling"]
Mounter = Literal["rbd", "rbd-nbd"]

KNOWN: tuple[str, ...] = get_args(Feature)
NEEDS = {"object-map": "exclusive-lock", "fast-diff": "object-map", "journaling": "exclusive-lock"}
NOT_IN_KERNELS = frozenset({"journaling"})  # of no version so far
OBJECT_SIZE = 4 * 2**20  # bytes, Ceph's default
LEAST_UNIT = 512  # bytes: a sector


def split(text: str) -> tuple[str, ...]:
    """Return the features in a comma-separated list, each once, in order."""
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def objection(features: Iterable[str], mounter: str) -> str:
    """Why no image can have just these features and be mapped like this; "" if nothing is against it."""
    given = tuple(features)
    if strange := [one for one in given if one not in KNOWN]:
        return f"{strange[0]!r} is not a feature of images; there are: {', '.join(KNOWN)}"
    if "layering" not in given:
        return "'layering' is missing, without which there are neither snapshots nor clones; add it"
    for feature in given:
        if (needed := NEEDS.get(feature)) and needed not in given:
            return f"{feature!r} needs {needed!r}; add it, or leave {feature!r} out"
    if mounter == "rbd" and (strange := [one for one in given if one in NOT_IN_KERNELS]):
        return f"no kernel can map an image with {strange[0]!r}; leave it out, or choose the mounter rbd-nbd"
    return ""


def misfit(*, object_size: int, unit: int, count: int) -> str:
    """Why data cannot be striped like this (0: not said); "" if it can."""
    if object_size & (object_size - 1):
        return f"'objectSize' {object_size} is not a power of two; {_nearest(object_size)} is"
    if bool(unit) != bool(count):
        given, missing = ("stripeUnit", "stripeCount") if unit else ("stripeCount", "stripeUnit")
        return f"'{given}' has a meaning only together with {missing}; give both, or none"
    if not unit:
        return ""
    if unit < LEAST_UNIT or (object_size or OBJECT_SIZE) % unit:
        said = "" if object_size else ", Ceph's default; give objectSize if it is to be another"
        return (
            f"'stripeUnit' {unit} does not fit: it is a power of two from {LEAST_UNIT} to the size of an object, "
            f"{object_size or OBJECT_SIZE} bytes{said}"
        )
    return ""


def _nearest(size: int) -> int:
    """Return the next power of two below."""
    return 1 << (size.bit_length() - 1)
