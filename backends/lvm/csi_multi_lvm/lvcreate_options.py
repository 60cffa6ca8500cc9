"""The options of lvcreate that a StorageClass may set, and their valid values.

All others are refused: by them a user could reach other volumes' space, devices or the host's configuration, or
contradict the driver's own options. Each is listed with the types for which lvcreate accepts it, and was tested
with them (LVM 2.03.16).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from csi_multi.contract import InvalidArgument, unknown

from .config import Type

PREFIX = "parameters: 'lvcreateOptions'"
PAGE = 4096  # bytes: regions are multiples of it
SECTORS_PER_PAGE = 8  # of 512 bytes: readahead is a multiple of it

RAID: tuple[Type, ...] = ("raid1", "raid5", "raid6", "raid10")
THICK: tuple[Type, ...] = ("linear", "striped", *RAID)
ONE_DISK = ("contiguous", "cling", "cling_by_tags")  # policies that keep an image together


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """`pattern` matches a valid value; `valid` describes it in words."""

    types: tuple[Type, ...]
    pattern: str
    valid: str


OPTIONS: dict[str, Option] = {
    "--alloc": Option(
        types=THICK,
        pattern="contiguous|cling|cling_by_tags|normal|anywhere",
        valid="contiguous, cling, cling_by_tags, normal or anywhere",
    ),
    "--contiguous": Option(types=THICK, pattern="y|n", valid="y or n"),
    "--readahead": Option(
        types=("thin", *THICK), pattern="auto|none|[0-9]{1,7}", valid="auto, none or a number of sectors"
    ),
    "--regionsize": Option(types=RAID, pattern="[1-9][0-9]{0,6}[kKmM]?", valid="a number of MiB, or one with k or m"),
    "--minrecoveryrate": Option(types=RAID, pattern="[0-9]{1,9}", valid="a number of KiB per second and disk"),
    "--maxrecoveryrate": Option(types=RAID, pattern="[0-9]{1,9}", valid="a number of KiB per second and disk"),
}


def parse(text: str, kind: Type) -> tuple[str, ...]:
    """Return options that are separated by blanks as arguments for lvcreate. Raises InvalidArgument."""
    given: dict[str, str] = {}
    for name, value in _pairs(text.split()):
        if name in given:
            raise InvalidArgument(f"{PREFIX}: {name} is given twice; remove one of them")
        given[name] = _validated(name, value, kind)
    _refuse_contradictions(given, kind)
    return tuple(argument for name, value in given.items() for argument in (name, value) if argument)


def _pairs(words: list[str]) -> Iterator[tuple[str, str | None]]:
    """Split "--name value" and "--name=value"."""
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        if name not in OPTIONS:
            raise InvalidArgument(unknown(PREFIX, name, OPTIONS, "option"))
        yield name, value if equals else next(rest, None)


def _validated(name: str, value: str | None, kind: Type) -> str:
    option = OPTIONS[name]
    if kind not in option.types:
        raise InvalidArgument(
            f"{PREFIX}: {name} is not valid for type {kind}; remove it, or choose one of {', '.join(option.types)}"
        )
    if value is None or not re.fullmatch(option.pattern, value, re.ASCII):
        given = "but has no value" if value is None else f"not {value!r}"
        raise InvalidArgument(f"{PREFIX}: {name} must be {option.valid}, {given}")
    return value


def _refuse_contradictions(given: Mapping[str, str], kind: Type) -> None:
    if "--alloc" in given and "--contiguous" in given:
        raise InvalidArgument(f"{PREFIX}: --alloc and --contiguous set the same policy; remove one of them")
    if given.get("--alloc") == "anywhere" and kind in RAID:
        raise InvalidArgument(
            f"{PREFIX}: --alloc anywhere lets images of a {kind} volume share a disk, and the loss of that disk would "
            "destroy the volume; remove it"
        )
    if not _power_of_two_pages(given.get("--regionsize", "1")):
        raise InvalidArgument(
            f"{PREFIX}: --regionsize {given['--regionsize']} is not a power of two of at least 4k; choose 512k or 2m"
        )
    readahead = given.get("--readahead", "")
    if readahead.isdecimal() and int(readahead) % SECTORS_PER_PAGE:  # lvcreate would reduce it
        raise InvalidArgument(
            f"{PREFIX}: --readahead {readahead} is not a multiple of {SECTORS_PER_PAGE} sectors; choose one that is"
        )
    least, most = (int(given.get(name, 0)) for name in ("--minrecoveryrate", "--maxrecoveryrate"))
    if least > most:
        raise InvalidArgument(
            f"{PREFIX}: --minrecoveryrate {least} needs a --maxrecoveryrate of at least {least}; add it, or remove both"
        )


def _power_of_two_pages(text: str) -> bool:
    size = int(text.rstrip("kKmM")) * (2**10 if text[-1] in "kK" else 2**20)
    return size >= PAGE and size & (size - 1) == 0


def keep_images_together(arguments: Iterable[str]) -> bool:
    """Return whether these arguments keep an image on one disk."""
    values = _by_name(arguments)
    return values.get("alloc") in ONE_DISK or values.get("contiguous") == "y"


def to_fields(arguments: Iterable[str]) -> list[str]:
    """Return options as name=value, for the layout's tag."""
    return [f"{name}={value}" if value else name for name, value in _by_name(arguments).items()]


def from_fields(fields: Mapping[str, str]) -> Iterator[str]:
    """Return the options in a layout's tag as arguments for lvcreate."""
    for name, value in fields.items():
        yield from (f"--{name}", value) if value else (f"--{name}",)


def _by_name(arguments: Iterable[str]) -> dict[str, str]:
    values: dict[str, str] = {}
    name = ""
    for argument in arguments:
        if argument.startswith("--"):
            name = argument.removeprefix("--")
            values[name] = ""
        else:
            values[name] = argument
    return values
