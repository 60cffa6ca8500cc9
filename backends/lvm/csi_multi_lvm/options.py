"""The options of lvcreate that a StorageClass may give, and the values they may have.

Whatever is not listed is refused: with lvcreate's other options a user could reach other volumes' space,
devices or the host's configuration, or contradict what the driver itself says. Each is listed with the
types that lvcreate takes it for, and was tried with them (LVM 2.03.16).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from csi_multi.contract import InvalidArgument, unknown

from .config import Type

WHERE = "parameters: 'lvcreateOptions'"
PAGE = 4096  # bytes: regions are multiples of it
SECTORS = 8  # of 512 bytes per page: so is what is read ahead

RAID: tuple[Type, ...] = ("raid1", "raid5", "raid6", "raid10")
THICK: tuple[Type, ...] = ("linear", "striped", *RAID)
ONE_DISK = ("contiguous", "cling", "cling_by_tags")  # policies that keep an image together


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """`value` is a pattern; `takes` says it in words."""

    types: tuple[Type, ...]
    value: str
    takes: str


OPTIONS: dict[str, Option] = {
    "--alloc": Option(
        types=THICK,
        value="contiguous|cling|cling_by_tags|normal|anywhere",
        takes="contiguous, cling, cling_by_tags, normal or anywhere",
    ),
    "--contiguous": Option(types=THICK, value="y|n", takes="y or n"),
    "--readahead": Option(
        types=("thin", *THICK), value="auto|none|[0-9]{1,7}", takes="auto, none or a number of sectors"
    ),
    "--regionsize": Option(types=RAID, value="[1-9][0-9]{0,6}[kKmM]?", takes="a number of MiB, or one with k or m"),
    "--minrecoveryrate": Option(types=RAID, value="[0-9]{1,9}", takes="a number of KiB per second and disk"),
    "--maxrecoveryrate": Option(types=RAID, value="[0-9]{1,9}", takes="a number of KiB per second and disk"),
}


def parse(text: str, kind: Type) -> tuple[str, ...]:
    """Return options, separated by blanks, as words for lvcreate. Raises InvalidArgument."""
    given: dict[str, str] = {}
    for name, value in _pairs(text.split()):
        if name in given:
            raise InvalidArgument(f"{WHERE}: {name} is given twice; leave one out")
        given[name] = _checked(name, value, kind)
    _refuse_contradictions(given, kind)
    return tuple(word for name, value in given.items() for word in (name, value) if word)


def _pairs(words: list[str]) -> Iterator[tuple[str, str | None]]:
    """Take apart "--name value" and "--name=value"."""
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        if name not in OPTIONS:
            raise InvalidArgument(unknown(WHERE, name, OPTIONS, "option"))
        yield name, value if equals else next(rest, None)


def _checked(name: str, value: str | None, kind: Type) -> str:
    option = OPTIONS[name]
    if kind not in option.types:
        raise InvalidArgument(
            f"{WHERE}: {name} is not for type {kind}; leave it out, or choose one of {', '.join(option.types)}"
        )
    if value is None or not re.fullmatch(option.value, value, re.ASCII):
        raise InvalidArgument(
            f"{WHERE}: {name} takes {option.takes}, not {'nothing' if value is None else repr(value)}"
        )
    return value


def _refuse_contradictions(given: Mapping[str, str], kind: Type) -> None:
    if "--alloc" in given and "--contiguous" in given:
        raise InvalidArgument(f"{WHERE}: --alloc and --contiguous say the same twice; leave one out")
    if given.get("--alloc") == "anywhere" and kind in RAID:
        raise InvalidArgument(
            f"{WHERE}: --alloc anywhere lets images of a {kind} volume share a disk, whose loss would then be the "
            "volume's; leave it out"
        )
    if not _power_of_two_pages(given.get("--regionsize", "1")):
        raise InvalidArgument(
            f"{WHERE}: --regionsize {given['--regionsize']} is not a power of two of at least 4k; choose 512k or 2m"
        )
    readahead = given.get("--readahead", "")
    if readahead.isdecimal() and int(readahead) % SECTORS:  # lvcreate would make it less
        raise InvalidArgument(f"{WHERE}: --readahead {readahead} is no multiple of {SECTORS} sectors; choose one")
    least, most = (int(given.get(name, 0)) for name in ("--minrecoveryrate", "--maxrecoveryrate"))
    if least > most:
        raise InvalidArgument(
            f"{WHERE}: --minrecoveryrate {least} needs a --maxrecoveryrate of at least that; add it, or leave both out"
        )


def _power_of_two_pages(text: str) -> bool:
    size = int(text.rstrip("kKmM")) * (2**10 if text[-1] in "kK" else 2**20)
    return size >= PAGE and size & (size - 1) == 0


def keeps_together(words: Iterable[str]) -> bool:
    """Whether lvcreate's words let an image have only one disk."""
    known = _by_name(words)
    return known.get("alloc") in ONE_DISK or known.get("contiguous") == "y"


def joined(words: Iterable[str]) -> list[str]:
    """Return options as name=value, for a tag."""
    return [f"{name}={value}" if value else name for name, value in _by_name(words).items()]


def apart(facts: Mapping[str, str]) -> Iterator[str]:
    """Return the options of a tag as words again."""
    for name, value in facts.items():
        yield from (f"--{name}", value) if value else (f"--{name}",)


def _by_name(words: Iterable[str]) -> dict[str, str]:
    known: dict[str, str] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            name = word.removeprefix("--")
            known[name] = ""
        else:
            known[name] = word
    return known
