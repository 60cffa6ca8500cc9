"""How a volume is laid out on the disks: from a StorageClass's parameters to lvcreate's arguments and to extents."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import get_args

from csi_multi.contract import FailedPrecondition, InvalidArgument

from . import lvcreate_options
from .config import Config, Parameters, Type, Wipe

MIB = 2**20
PREFIX = "parameters"  # of messages about a StorageClass


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutLimits:
    """The limits of a volume type. LVM 2.03.16 accepts all of these numbers, and for raid1 up to 63 mirrors."""

    stripes: tuple[int, int, int] | None = None  # least, default, most; None: not striped
    mirrors: int = 0  # most copies in addition to the first
    parity: int = 0

    @property
    def redundant(self) -> bool:
        return bool(self.mirrors or self.parity)


TYPES: dict[Type, LayoutLimits] = {
    "thin": LayoutLimits(),
    "linear": LayoutLimits(),
    "striped": LayoutLimits(stripes=(2, 2, 64)),
    "raid1": LayoutLimits(mirrors=9),
    "raid5": LayoutLimits(stripes=(2, 2, 63), parity=1),
    "raid6": LayoutLimits(stripes=(3, 3, 62), parity=2),
    "raid10": LayoutLimits(stripes=(2, 2, 32), mirrors=1),
}

# Integrity metadata of an image: 4 MiB per 500 MiB of data, and a journal that depends on the image's size.
JOURNALS = ((512 * MIB, 4 * MIB), (1024 * MIB, 8 * MIB), (4096 * MIB, 32 * MIB))
LARGEST_JOURNAL = 64 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    type: Type
    data: int = 1  # images that hold different data
    copies: int = 1  # of each
    parity: int = 0  # further images
    stripe_size: int | None = None  # bytes; None: LVM's default
    integrity: bool = False
    wipe: Wipe = "auto"
    options: tuple[str, ...] = ()  # further arguments for lvcreate

    @property
    def images(self) -> int:
        """The number of disks that it needs at once."""
        return self.data * self.copies + self.parity

    @property
    def redundant(self) -> bool:
        return TYPES[self.type].redundant

    @property
    def thin(self) -> bool:
        return self.type == "thin"

    @property
    def keeps_images_together(self) -> bool:
        """Return whether each image must be on one disk: by its options, or together with its integrity metadata."""
        return self.integrity or lvcreate_options.keep_images_together(self.options)

    def arguments(self) -> tuple[str, ...]:
        """Return lvcreate's arguments, except those for name, size, tags and pool."""
        return (*(() if self.thin else ("--type", self.type)), *self._counts(), *self.options)

    def _counts(self) -> Iterator[str]:
        if self.data > 1:
            yield from ("--stripes", str(self.data))
        if self.copies > 1:
            yield from ("--mirrors", str(self.copies - 1))
        if self.stripe_size:
            yield from ("--stripesize", f"{self.stripe_size}b")

    def extents(self, size: int, extent_size: int) -> int:
        """Return how many logical extents hold so many bytes, in full stripes as lvcreate allocates them."""
        row = extent_size * self.data
        return -(-size // row) * self.data

    def overhead(self, image: int, extent_size: int) -> int:
        """Return the extents that an image of so many extents takes in addition to its data."""
        if not self.redundant:
            return 0
        return 1 + (_integrity(image * extent_size, extent_size) if self.integrity else 0)

    def physical(self, extents: int, extent_size: int) -> int:
        """Return how many extents of the group a volume of so many logical extents takes; none if it is thin."""
        if self.thin:
            return 0
        image = -(-extents // self.data)
        return self.images * (image + self.overhead(image, extent_size))


def _integrity(size: int, extent_size: int) -> int:
    journal = next((journal for most, journal in JOURNALS if size <= most), LARGEST_JOURNAL)
    return max(1, -(-((size // (500 * MIB) + 1) * 4 * MIB + journal) // extent_size))


def requested(parameters: Parameters, config: Config) -> Layout:
    """Return the requested layout. Raises InvalidArgument for parameters that contradict each other."""
    name = parameters.type or config.type or ("thin" if config.thin_pool else "linear")
    limits = TYPES[name]
    if name == "thin":
        _refuse_thick_parameters(parameters, config)
    if parameters.integrity and not limits.redundant:
        raise _refused("integrity", name, "has no second copy to repair from", "remove it, or choose a RAID type")
    copies = 1 + _mirrors(parameters, name)
    return Layout(
        type=name,
        data=_stripes(parameters, name),
        copies=copies,
        parity=limits.parity,
        stripe_size=_stripe_size(parameters, name),
        integrity=parameters.integrity,
        wipe=parameters.wipe,
        options=lvcreate_options.parse(parameters.lvcreate_options, name),
    )


def _refuse_thick_parameters(parameters: Parameters, config: Config) -> None:
    if not config.thin_pool:
        raise InvalidArgument(
            f"{PREFIX}: 'type': thin needs a thin pool, and this instance has none; "
            "set thin_pool in its configuration, or choose another type"
        )
    if parameters.wipe != "auto":
        raise _refused(
            "wipe", "thin", "never shows old data, because its pool zeroes the blocks it allocates", "remove it"
        )


def _stripes(parameters: Parameters, name: Type) -> int:
    bounds, wanted = TYPES[name].stripes, parameters.stripes
    if bounds is None:
        if wanted is not None:
            raise _refused("stripes", name, "is not striped", f"remove it, or choose one of {_types_with('stripes')}")
        return 1
    least, default, most = bounds
    if wanted is not None and not least <= wanted <= most:
        raise _refused("stripes", name, f"allows {least} to {most}, not {wanted}", "choose a number in that range")
    return default if wanted is None else wanted


def _mirrors(parameters: Parameters, name: Type) -> int:
    most, wanted = TYPES[name].mirrors, parameters.mirrors
    if not most:
        if wanted is not None:
            raise _refused("mirrors", name, "has no mirrors", f"remove it, or choose one of {_types_with('mirrors')}")
        return 0
    if wanted is not None and not 1 <= wanted <= most:
        raise _refused("mirrors", name, f"allows 1 to {most}, not {wanted}", "choose a number in that range")
    return 1 if wanted is None else wanted


def _stripe_size(parameters: Parameters, name: Type) -> int | None:
    size = parameters.stripe_size
    if size is None:
        return None
    if not TYPES[name].stripes:
        raise _refused("stripeSize", name, "is not striped", f"remove it, or choose one of {_types_with('stripes')}")
    if size < 4096 or size & (size - 1):
        below = 1 << (max(size, 4096).bit_length() - 1)
        raise InvalidArgument(
            f"{PREFIX}: 'stripeSize': {size} is not a power of two of at least 4096; choose {below} or {2 * below}"
        )
    return size


def _types_with(field: str) -> str:
    return ", ".join(name for name, limits in TYPES.items() if getattr(limits, field))


def _refused(key: str, name: str, rule: str, remedy: str) -> InvalidArgument:
    return InvalidArgument(f"{PREFIX}: {key!r}: type {name} {rule}; {remedy}")


def to_tag(layout: Layout) -> str:
    """Return a layout in the letters of an LVM tag, such as raid5:stripes=2:integrity; `from_tag` reads it again."""
    fields: list[str] = [layout.type]
    fields += [f"stripes={layout.data}"] if layout.data > 1 else []
    fields += [f"mirrors={layout.copies - 1}"] if layout.copies > 1 else []
    fields += [f"stripesize={layout.stripe_size}"] if layout.stripe_size else []
    fields += ["integrity"] if layout.integrity else []
    return ":".join([*fields, *lvcreate_options.to_fields(layout.options)])


def from_tag(text: str) -> Layout:
    """Return the layout in a tag, which does not contain `wipe`. Raises FailedPrecondition."""
    first, *fields = text.split(":")
    type_ = next((name for name in get_args(Type) if name == first), None)
    if type_ is None:
        raise _unreadable(text)
    values = dict(field.partition("=")[::2] for field in fields)
    try:
        return Layout(
            type=type_,
            data=int(values.pop("stripes", 1)),
            copies=1 + int(values.pop("mirrors", 0)),
            parity=TYPES[type_].parity,
            stripe_size=int(values.pop("stripesize", 0)) or None,
            integrity=values.pop("integrity", None) is not None,
            options=lvcreate_options.parse(" ".join(lvcreate_options.from_fields(values)), type_),
        )
    except (ValueError, InvalidArgument):
        raise _unreadable(text) from None


def _unreadable(text: str) -> FailedPrecondition:
    return FailedPrecondition(
        f"the tag csi.layout={text} cannot be read: it was changed, or a newer driver wrote it; "
        "correct it with lvchange --deltag and --addtag, or update the driver"
    )
