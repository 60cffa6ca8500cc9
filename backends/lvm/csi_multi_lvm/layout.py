"""How a volume lies on the disks: what a StorageClass asks for, in lvcreate's words and in extents."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import get_args

from csi_multi.contract import FailedPrecondition, InvalidArgument

from . import options as lvcreate
from .config import Config, Parameters, Type, Wipe

MIB = 2**20
WHERE = "parameters"  # the first word of messages about what a StorageClass says


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What there is to say about a type. LVM 2.03.16 takes all of these numbers, and of raid1 even 63 mirrors."""

    stripes: tuple[int, int, int] | None = None  # least, default, most; None: it has none
    mirrors: int = 0  # most copies beside the first
    parity: int = 0

    @property
    def redundant(self) -> bool:
        return bool(self.mirrors or self.parity)


KINDS: dict[Type, Kind] = {
    "thin": Kind(),
    "linear": Kind(),
    "striped": Kind(stripes=(2, 2, 64)),
    "raid1": Kind(mirrors=9),
    "raid5": Kind(stripes=(2, 2, 63), parity=1),
    "raid6": Kind(stripes=(3, 3, 62), parity=2),
    "raid10": Kind(stripes=(2, 2, 32), mirrors=1),
}

# Integrity metadata beside an image: 4 MiB per 500 MiB of it, and a journal by the image's size.
JOURNALS = ((512 * MIB, 4 * MIB), (1024 * MIB, 8 * MIB), (4096 * MIB, 32 * MIB))
LARGEST_JOURNAL = 64 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    type: Type
    data: int = 1  # images that hold different data
    copies: int = 1  # of each
    parity: int = 0  # images beside them
    stripe_size: int | None = None  # bytes; None: LVM's default
    integrity: bool = False
    wipe: Wipe = "auto"
    options: tuple[str, ...] = ()  # words for lvcreate

    @property
    def images(self) -> int:
        """How many disks it needs at once."""
        return self.data * self.copies + self.parity

    @property
    def redundant(self) -> bool:
        return KINDS[self.type].redundant

    @property
    def thin(self) -> bool:
        return self.type == "thin"

    @property
    def whole(self) -> bool:
        """Whether each image must lie on one disk: asked for, or because integrity metadata must lie beside it."""
        return self.integrity or lvcreate.keeps_together(self.options)

    def words(self) -> tuple[str, ...]:
        """Return the words for lvcreate, but those for name, size, tags and pool."""
        return (*(() if self.thin else ("--type", self.type)), *self._numbers(), *self.options)

    def _numbers(self) -> Iterator[str]:
        if self.data > 1:
            yield from ("--stripes", str(self.data))
        if self.copies > 1:
            yield from ("--mirrors", str(self.copies - 1))
        if self.stripe_size:
            yield from ("--stripesize", f"{self.stripe_size}b")

    def extents(self, size: int, extent_size: int) -> int:
        """Return how many logical extents hold that many bytes, in full stripes as lvcreate makes them."""
        row = extent_size * self.data
        return -(-size // row) * self.data

    def overhead(self, image: int, extent_size: int) -> int:
        """Return the extents that an image of so many extents takes beside its data."""
        if not self.redundant:
            return 0
        return 1 + (_integrity(image * extent_size, extent_size) if self.integrity else 0)

    def physical(self, extents: int, extent_size: int) -> int:
        """Return how many extents of the group a volume of so many logical extents takes; thin: none."""
        if self.thin:
            return 0
        image = -(-extents // self.data)
        return self.images * (image + self.overhead(image, extent_size))


def _integrity(size: int, extent_size: int) -> int:
    journal = next((journal for most, journal in JOURNALS if size <= most), LARGEST_JOURNAL)
    return max(1, -(-((size // (500 * MIB) + 1) * 4 * MIB + journal) // extent_size))


def of(parameters: Parameters, config: Config) -> Layout:
    """Return the layout that is asked for. Raises InvalidArgument for what does not belong together."""
    name = parameters.type or config.type or ("thin" if config.thin_pool else "linear")
    kind = KINDS[name]
    if name == "thin":
        _refuse_thick(parameters, config)
    if parameters.integrity and not kind.redundant:
        raise _refused("integrity", name, "has no second copy to repair from", "leave it out, or choose a RAID type")
    copies = 1 + _mirrors(parameters, name)
    return Layout(
        type=name,
        data=_stripes(parameters, name),
        copies=copies,
        parity=kind.parity,
        stripe_size=_stripe_size(parameters, name),
        integrity=parameters.integrity,
        wipe=parameters.wipe,
        options=lvcreate.parse(parameters.lvcreate_options, name),
    )


def _refuse_thick(parameters: Parameters, config: Config) -> None:
    if not config.thin_pool:
        raise InvalidArgument(
            f"{WHERE}: 'type': thin needs a thin pool, and this instance has none; "
            "set thin_pool in its configuration, or choose another type"
        )
    if parameters.wipe != "auto":
        raise _refused("wipe", "thin", "never shows old data: its pool zeroes what it hands out", "leave it out")


def _stripes(parameters: Parameters, name: Type) -> int:
    bounds, wanted = KINDS[name].stripes, parameters.stripes
    if bounds is None:
        if wanted is not None:
            raise _refused("stripes", name, "is not striped", f"leave it out, or choose one of {_with('stripes')}")
        return 1
    least, default, most = bounds
    if wanted is not None and not least <= wanted <= most:
        raise _refused("stripes", name, f"has {least} to {most}, not {wanted}", "choose a number between them")
    return default if wanted is None else wanted


def _mirrors(parameters: Parameters, name: Type) -> int:
    most, wanted = KINDS[name].mirrors, parameters.mirrors
    if not most:
        if wanted is not None:
            raise _refused("mirrors", name, "has no mirrors", f"leave it out, or choose one of {_with('mirrors')}")
        return 0
    if wanted is not None and not 1 <= wanted <= most:
        raise _refused("mirrors", name, f"has 1 to {most}, not {wanted}", "choose a number between them")
    return 1 if wanted is None else wanted


def _stripe_size(parameters: Parameters, name: Type) -> int | None:
    size = parameters.stripe_size
    if size is None:
        return None
    if not KINDS[name].stripes:
        raise _refused("stripeSize", name, "is not striped", f"leave it out, or choose one of {_with('stripes')}")
    if size < 4096 or size & (size - 1):
        below = 1 << (max(size, 4096).bit_length() - 1)
        raise InvalidArgument(
            f"{WHERE}: 'stripeSize': {size} is not a power of two of at least 4096; choose {below} or {2 * below}"
        )
    return size


def _with(fact: str) -> str:
    return ", ".join(name for name, kind in KINDS.items() if getattr(kind, fact))


def _refused(key: str, name: str, rule: str, remedy: str) -> InvalidArgument:
    return InvalidArgument(f"{WHERE}: {key!r}: type {name} {rule}; {remedy}")


def text(layout: Layout) -> str:
    """Return what `parse` reads again, in letters that an LVM tag can have: raid5:stripes=2:integrity."""
    facts: list[str] = [layout.type]
    facts += [f"stripes={layout.data}"] if layout.data > 1 else []
    facts += [f"mirrors={layout.copies - 1}"] if layout.copies > 1 else []
    facts += [f"stripesize={layout.stripe_size}"] if layout.stripe_size else []
    facts += ["integrity"] if layout.integrity else []
    return ":".join([*facts, *lvcreate.joined(layout.options)])


def parse(text: str) -> Layout:
    """Read how a volume lies on the disks. Its wipe is not in there. Raises FailedPrecondition."""
    first, *facts = text.split(":")
    kind = next((name for name in get_args(Type) if name == first), None)
    if kind is None:
        raise _unreadable(text)
    known = dict(fact.partition("=")[::2] for fact in facts)
    try:
        return Layout(
            type=kind,
            data=int(known.pop("stripes", 1)),
            copies=1 + int(known.pop("mirrors", 0)),
            parity=KINDS[kind].parity,
            stripe_size=int(known.pop("stripesize", 0)) or None,
            integrity=known.pop("integrity", None) is not None,
            options=lvcreate.parse(" ".join(lvcreate.apart(known)), kind),
        )
    except (ValueError, InvalidArgument):
        raise _unreadable(text) from None


def _unreadable(text: str) -> FailedPrecondition:
    return FailedPrecondition(
        f"the tag that says how the volume lies on the disks cannot be read: {text!r}; "
        "somebody changed it, or a newer driver wrote it: put it right with lvchange --deltag and --addtag"
    )
