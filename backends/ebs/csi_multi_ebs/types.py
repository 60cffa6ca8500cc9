"""EBS's own rules: which sizes, IOPS and throughput a volume type takes, and what a change has to say.

The table is what AWS documents for its newest regions. EC2 has the last word, and may allow less.
"""

from __future__ import annotations

from dataclasses import dataclass

from csi_multi.contract import InvalidArgument, OutOfRange, SizeRange

from .config import GIB, MutableParameters, Parameters
from .rows import VolumeRow
from .tag_rules import IOPS_PER_GB

DEFAULT = 100  # GiB, when nobody says how much
IOPS_PER_MIB = 4  # IOPS that each MiB/s of throughput needs


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """What EC2 is told about a volume. None: EC2's default, or what it is now."""

    type: str
    size: int  # GiB
    iops: int | None = None
    throughput: int | None = None  # MiB/s


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """The limits of a volume type."""

    size: tuple[int, int]  # GiB
    iops: tuple[int, int] | None = None  # None: they cannot be chosen
    per_gib: int = 0  # IOPS that each GiB allows
    default: int = 0  # IOPS when none are asked for; 0: somebody has to ask
    throughput: tuple[int, int] | None = None  # MiB/s; None: it cannot be chosen


RULES = {
    "gp2": Rule(size=(1, 16384)),
    "gp3": Rule(size=(1, 65536), iops=(3000, 80000), per_gib=500, default=3000, throughput=(125, 2000)),
    "io1": Rule(size=(4, 16384), iops=(100, 64000), per_gib=50),
    "io2": Rule(size=(4, 65536), iops=(100, 256000), per_gib=1000),
    "st1": Rule(size=(125, 16384)),
    "sc1": Rule(size=(125, 16384)),
    "standard": Rule(size=(1, 1024)),
}
UNKNOWN = Rule(size=(1, 2**30), iops=(1, 2**30), per_gib=2**30, default=1, throughput=(1, 2**28))  # EC2 decides
ON_CHANGE = 3000  # IOPS that EC2 gives a volume that becomes gp3, io1 or io2, when none are asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What is asked for, in the words of the parameters."""

    iops: int | None = None
    per_gb: int | None = None
    enough: bool = False  # raise too few IOPS to the minimum
    throughput: int | None = None


def spec(
    parameters: Parameters,
    mutable: MutableParameters | None,
    size: SizeRange,
    *,
    least: int = 1,
    default: int = DEFAULT,
) -> Spec:
    """Return what a new volume is to be: `mutable` wins over `parameters`.

    `least` is the size of the source, and `default` is taken when no size is asked for, both in GiB.
    Raises OutOfRange for a size, InvalidArgument naming the range for IOPS and throughput.
    """
    kind = mutable.type if mutable and mutable.type else parameters.type
    wish = _wish(parameters, mutable, kind)
    whole = gib(kind, size, least=least, default=default)
    iops = _iops(kind, wish, whole)
    return Spec(type=kind, size=whole, iops=iops, throughput=_throughput(kind, wish.throughput, iops))


def changed(row: VolumeRow, mutable: MutableParameters | None, size: int | None) -> Spec | None:
    """Return what ModifyVolume has to be told, None when the volume is like that. It never shrinks.

    Type and size are always there, IOPS and throughput only when they change. `size` is in GiB. Raises
    OutOfRange for a size, InvalidArgument for what does not fit together.
    """
    mutable = mutable or MutableParameters()
    kind, whole = mutable.type or row.type, max(row.size, size or 0)
    _refuse_size(kind, whole, grows=whole > row.size)
    per_gb, kept = mutable.iops_per_gb, _kept_ratio(row, mutable) if whole > row.size else None
    wish = Wish(
        iops=mutable.iops,
        per_gb=per_gb or kept,
        enough=bool(kept or mutable.allow_auto_iops_increase_on_modify),
        throughput=mutable.throughput,
    )
    if kind != row.type:
        _refuse_default(kind, wish, whole)
    now = ON_CHANGE if kind != row.type else row.iops
    iops = _iops(kind, wish, whole, asks=False)
    if kept and iops is not None:
        iops = max(iops, row.iops)
    throughput = _throughput(kind, wish.throughput, iops or now)
    if kind == row.type:
        iops = None if iops == row.iops else iops
        throughput = None if throughput == row.throughput else throughput
        if whole == row.size and iops is None and throughput is None:
            return None
    return Spec(type=kind, size=whole, iops=iops, throughput=throughput)


def ratio(parameters: Parameters, mutable: MutableParameters | None) -> int | None:
    """Return the IOPS per GiB that a new volume is to keep up when it grows; None: no ratio."""
    said = mutable.allow_auto_iops_increase_on_modify if mutable else None
    follows = parameters.allow_auto_iops_increase_on_modify if said is None else said
    kind = (mutable and mutable.type) or parameters.type
    return _wish(parameters, mutable, kind).per_gb if follows else None


def gib(kind: str, size: SizeRange, *, least: int = 1, default: int = DEFAULT) -> int:
    """Return the smallest size in GiB that a type has, a source of `least` GiB fits into, and is asked for.

    Raises OutOfRange.
    """
    smallest, largest = _rule(kind).size
    try:
        chosen = size.choose(
            granularity=GIB, minimum=max(smallest, least) * GIB, maximum=largest * GIB, default=default * GIB
        )
    except OutOfRange as error:
        source = f", and the source has {least}" if least > 1 else ""
        raise OutOfRange(f"{kind} volumes have {smallest} to {largest} whole GiB{source}: {error}") from None
    return chosen // GIB


def _rule(kind: str) -> Rule:
    return RULES.get(kind, UNKNOWN)


def _wish(parameters: Parameters, mutable: MutableParameters | None, kind: str) -> Wish:
    """Merge the classes. What the StorageClass says for its own type does not bind another one that takes none."""
    mutable, rule, other = mutable or MutableParameters(), _rule(kind), kind != parameters.type
    iops, per_gb = mutable.iops, mutable.iops_per_gb
    if iops is None and per_gb is None and (rule.iops or not other):
        iops, per_gb = parameters.iops, parameters.iops_per_gb
    throughput = mutable.throughput
    if throughput is None and (rule.throughput or not other):
        throughput = parameters.throughput
    enough = parameters.allow_auto_iops_per_gb_increase or bool(mutable.allow_auto_iops_increase_on_modify)
    return Wish(iops=iops, per_gb=per_gb, enough=enough, throughput=throughput)


def _kept_ratio(row: VolumeRow, mutable: MutableParameters) -> int | None:
    """Return the IOPS per GiB that are to be kept up, when nobody asks for others."""
    text = row.tags.get(IOPS_PER_GB, "")
    said = mutable.type or mutable.iops or mutable.iops_per_gb or mutable.allow_auto_iops_increase_on_modify is False
    return int(text) if text.isdecimal() and int(text) and not said else None


def _iops(kind: str, wish: Wish, size: int, *, asks: bool = True) -> int | None:
    """Return the IOPS to tell EC2; None: those it gives by itself. `asks`: whether it wants to be told any."""
    rule = _rule(kind)
    if rule.iops is None:
        if wish.iops is not None or wish.per_gb is not None:
            raise InvalidArgument(
                f"'{_named(wish)}' is not for type {kind}, whose IOPS follow from its size; leave it out, or choose "
                "type gp3, io1 or io2"
            )
        return None
    least, most = _range(kind, size)
    takes = _takes(kind, size)
    if wish.iops is None and wish.per_gb is None:
        if asks and not rule.default:
            raise InvalidArgument(f"type {kind} needs 'iops' or 'iopsPerGB': {takes}")
        return None
    asked = wish.iops if wish.iops is not None else min((wish.per_gb or 0) * size, most)
    if asked < least and wish.enough:
        asked = least
    if not least <= asked <= most:
        raise InvalidArgument(f"'{_named(wish)}' asks for {asked} IOPS, but {takes}; {_remedy(kind, wish, asked)}")
    return asked


def _refuse_default(kind: str, wish: Wish, size: int) -> None:
    """Raise InvalidArgument when a volume becomes a type that EC2's default for it does not suit."""
    if not _rule(kind).iops or wish.iops is not None or wish.per_gb is not None:
        return
    if _range(kind, size)[1] < ON_CHANGE:
        raise InvalidArgument(
            f"'iops' is needed with type {kind}: EC2 would give the volume {ON_CHANGE}, but {_takes(kind, size)}"
        )


def _range(kind: str, size: int) -> tuple[int, int]:
    """Return the fewest and most IOPS of a volume whose type lets them be chosen."""
    rule = _rule(kind)
    least, most = rule.iops or (0, 0)
    return least, max(min(most, rule.per_gib * size), least)


def _takes(kind: str, size: int) -> str:
    least, most = _range(kind, size)
    return f"a {kind} volume of {size} GiB takes {least} to {most} IOPS (at most {_rule(kind).per_gib} per GiB)"


def _named(wish: Wish) -> str:
    return "iops" if wish.iops is not None else "iopsPerGB"


def _remedy(kind: str, wish: Wish, asked: int) -> str:
    rule = _rule(kind)
    least, most = rule.iops or (0, 0)
    if asked < least and wish.iops is None:
        return f'ask for at least {-(-least // (wish.per_gb or 1))} GiB, or set allowAutoIOPSPerGBIncrease: "true"'
    if asked < least:
        return f"ask for at least {least}"
    if asked > most:
        return f"ask for at most {most}"
    return f"ask for at least {-(-asked // rule.per_gib)} GiB, or fewer IOPS"


def _throughput(kind: str, asked: int | None, iops: int | None) -> int | None:
    """Return the MiB/s to ask for, of a volume with so many IOPS; None: EC2's default, or what it is now."""
    rule = _rule(kind)
    if asked is None:
        return None
    if rule.throughput is None:
        raise InvalidArgument(f"'throughput' is not for type {kind}; leave it out, or choose type gp3")
    having, (least, most) = iops or rule.default, rule.throughput
    if not least <= asked <= most:
        raise InvalidArgument(f"'throughput' {asked} is out of range: a {kind} volume takes {least} to {most} MiB/s")
    if asked > having // IOPS_PER_MIB and rule is not UNKNOWN:
        raise InvalidArgument(
            f"'throughput' {asked} is too much for {having} IOPS, which carry {having // IOPS_PER_MIB} MiB/s; "
            f"set iops to at least {asked * IOPS_PER_MIB}, or throughput to at most {having // IOPS_PER_MIB}"
        )
    return asked


def _refuse_size(kind: str, size: int, *, grows: bool) -> None:
    """Raise for a volume that its type cannot be: OutOfRange when the size is what is asked for."""
    smallest, largest = _rule(kind).size
    if smallest <= size <= largest:
        return
    if grows and size > largest:
        raise OutOfRange(f"{size} GiB are too much: {kind} volumes have {smallest} to {largest} GiB")
    raise InvalidArgument(
        f"'type' {kind} is not for this volume of {size} GiB: {kind} volumes have {smallest} to {largest} GiB"
    )
