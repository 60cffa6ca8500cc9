"""The limits of EBS volume types: sizes, IOPS and throughput of a new volume and of a change.

The table is what AWS documents for its newest regions. EC2 may allow less.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from csi_multi.contract import Capability, InvalidArgument, OutOfRange, SizeRange, Strings

from .config import MutableParameters, Parameters, value_or_default
from .resources import GIB, Ec2Volume, Tags
from .user_tags import IOPS_PER_GB

DEFAULT_SIZE = 100  # GiB, when the request has no size
IOPS_PER_MIB = 4  # IOPS required for each MiB/s of throughput


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeSpec:
    """Type, size and performance of a volume, as sent to EC2. None: EC2's default, or unchanged."""

    type: str
    size: int  # GiB
    iops: int | None = None
    throughput: int | None = None  # MiB/s


@dataclass(frozen=True, slots=True, kw_only=True)
class NewVolume:
    """A volume to create: everything that EC2 is sent except the zone and the client token."""

    spec: VolumeSpec
    tags: Tags = field(default_factory=dict)
    snapshot: str = ""  # id of the snapshot to restore
    outposts: Strings = field(default_factory=dict)  # ARNs by zone, where the volume is to be on an Outpost
    copy_of: str = ""  # id of the volume to copy, in its zone
    encrypted: bool | None = None  # None: the account's setting
    kms_key: str = ""
    multi_attach: bool = False
    initialization_rate: int | None = None  # MiB/s


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeLimits:
    """The limits of a volume type."""

    size: tuple[int, int]  # GiB
    iops: tuple[int, int] | None = None  # None: IOPS cannot be set
    per_gib: int = 0  # IOPS allowed for each GiB
    default: int = 0  # IOPS when none are requested; 0: they have to be
    throughput: tuple[int, int] | None = None  # MiB/s; None: throughput cannot be set


TYPE_LIMITS = {
    "gp2": TypeLimits(size=(1, 16384)),
    "gp3": TypeLimits(size=(1, 65536), iops=(3000, 80000), per_gib=500, default=3000, throughput=(125, 2000)),
    "io1": TypeLimits(size=(4, 16384), iops=(100, 64000), per_gib=50),
    "io2": TypeLimits(size=(4, 65536), iops=(100, 256000), per_gib=1000),
    "st1": TypeLimits(size=(125, 16384)),
    "sc1": TypeLimits(size=(125, 16384)),
    "standard": TypeLimits(size=(1, 1024)),
}
MULTI_ATTACH_TYPES = ("io1", "io2")  # types that can be attached to several nodes at once
# EC2 decides, and knows the defaults.
UNKNOWN_TYPE = TypeLimits(size=(1, 2**30), iops=(1, 2**30), per_gib=2**30, throughput=(1, 2**28))
IOPS_ON_TYPE_CHANGE = 3000  # IOPS that EC2 gives a volume that becomes gp3, io1 or io2, when none are requested


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedPerformance:
    """IOPS and throughput as the classes request them."""

    iops: int | None = None
    per_gb: int | None = None
    raise_to_minimum: bool = False  # raise IOPS below the minimum of the type
    throughput: int | None = None


def access_mode_problem(capability: Capability, parameters: Parameters | None) -> str:
    """Return why a volume cannot be used in this way, "" when it can."""
    mode = capability.mode
    if mode.single_node:
        return ""
    if not capability.block:
        return f"access mode {mode.name} is for raw block volumes only: two nodes cannot mount one filesystem"
    if parameters is not None and parameters.type not in MULTI_ATTACH_TYPES:
        return f"access mode {mode.name} needs type io1 or io2 (Multi-Attach), not {parameters.type}"
    return ""


def new_spec(
    parameters: Parameters,
    mutable: MutableParameters | None,
    size: SizeRange,
    *,
    least: int = 1,
    default: int = DEFAULT_SIZE,
) -> VolumeSpec:
    """Return the spec of a new volume: `mutable` overrides `parameters`.

    `least` is the size of the source, and `default` applies when no size is requested, both in GiB.
    Raises OutOfRange for a size, InvalidArgument naming the range for IOPS and throughput.
    """
    kind = mutable.type if mutable and mutable.type else parameters.type
    requested = _requested(parameters, mutable, kind)
    whole = size_in_gib(kind, size, least=least, default=default)
    iops = _iops(kind, requested, whole)
    return VolumeSpec(type=kind, size=whole, iops=iops, throughput=_throughput(kind, requested.throughput, iops))


def modified_spec(volume: Ec2Volume, mutable: MutableParameters | None, size: int | None) -> VolumeSpec | None:
    """Return the spec for ModifyVolume, None when nothing changes. A volume never shrinks.

    Type and size are always set, IOPS and throughput only when they change. `size` is in GiB. Raises
    OutOfRange for a size, InvalidArgument for values that exclude each other.
    """
    mutable = mutable or MutableParameters()
    kind, whole = mutable.type or volume.type, max(volume.size, size or 0)
    iops, throughput = _numbers(mutable, kind)
    _refuse_size(kind, whole, grows=whole > volume.size)
    per_gb, kept = mutable.iops_per_gb, _kept_ratio(volume, mutable) if whole > volume.size else None
    requested = RequestedPerformance(
        iops=iops,
        per_gb=per_gb or kept,
        raise_to_minimum=bool(kept or mutable.allow_auto_iops_increase_on_modify),
        throughput=throughput,
    )
    if kind != volume.type:
        _refuse_default_iops(kind, requested, whole)
    now = IOPS_ON_TYPE_CHANGE if kind != volume.type else volume.iops
    iops = _iops(kind, requested, whole, required=False)
    if kept and iops is not None:
        iops = max(iops, volume.iops)
    throughput = _throughput(kind, requested.throughput, iops or now)
    if kind == volume.type:
        iops = None if iops == volume.iops else iops
        throughput = None if throughput == volume.throughput else throughput
        if whole == volume.size and iops is None and throughput is None:
            return None
    return VolumeSpec(type=kind, size=whole, iops=iops, throughput=throughput)


def kept_iops_per_gib(parameters: Parameters, mutable: MutableParameters | None) -> int | None:
    """Return the IOPS per GiB that a new volume keeps when it grows; None: no ratio."""
    setting = mutable.allow_auto_iops_increase_on_modify if mutable else None
    follows = parameters.allow_auto_iops_increase_on_modify if setting is None else setting
    kind = (mutable and mutable.type) or parameters.type
    return _requested(parameters, mutable, kind).per_gb if follows else None


def size_in_gib(kind: str, size: SizeRange, *, least: int = 1, default: int = DEFAULT_SIZE) -> int:
    """Return the smallest size in GiB that the type and the request allow and that a source of `least` GiB fits into.

    Raises OutOfRange.
    """
    smallest, largest = _limits(kind).size
    try:
        chosen = size.choose(
            granularity=GIB, minimum=max(smallest, least) * GIB, maximum=largest * GIB, default=default * GIB
        )
    except OutOfRange as error:
        source = f", and the source has {least}" if least > 1 else ""
        raise OutOfRange(f"{kind} volumes have {smallest} to {largest} whole GiB{source}: {error}") from None
    return chosen // GIB


def _limits(kind: str) -> TypeLimits:
    return TYPE_LIMITS.get(kind, UNKNOWN_TYPE)


def _requested(parameters: Parameters, mutable: MutableParameters | None, kind: str) -> RequestedPerformance:
    """Merge the classes. IOPS and throughput of the StorageClass are dropped for another type that cannot have them."""
    mutable, limits, other = mutable or MutableParameters(), _limits(kind), kind != parameters.type
    (iops, throughput), per_gb = _numbers(mutable, kind), mutable.iops_per_gb
    if mutable.iops is None and per_gb is None and (limits.iops or not other):
        iops, per_gb = parameters.iops, parameters.iops_per_gb
    if mutable.throughput is None and (limits.throughput or not other):
        throughput = parameters.throughput
    raise_to_minimum = parameters.allow_auto_iops_per_gb_increase or bool(mutable.allow_auto_iops_increase_on_modify)
    return RequestedPerformance(iops=iops, per_gb=per_gb, raise_to_minimum=raise_to_minimum, throughput=throughput)


def _numbers(mutable: MutableParameters, kind: str) -> tuple[int | None, int | None]:
    """Return IOPS and throughput of a class; one that is reset is the type's default."""
    limits, unknown = _limits(kind), f"the driver knows no default of type {kind}"
    iops = (limits.default or unknown) if limits.iops else None
    throughput = unknown if limits is UNKNOWN_TYPE else limits.throughput and limits.throughput[0]
    found = value_or_default("iops", mutable.iops, iops)
    return found, value_or_default("throughput", mutable.throughput, throughput)


def _kept_ratio(volume: Ec2Volume, mutable: MutableParameters) -> int | None:
    """Return the IOPS per GiB to keep, None when the change requests other IOPS."""
    text = volume.tags.get(IOPS_PER_GB, "")
    overridden = (
        mutable.type or mutable.iops or mutable.iops_per_gb or mutable.allow_auto_iops_increase_on_modify is False
    )
    return int(text) if text.isdecimal() and int(text) and not overridden else None


def _iops(kind: str, requested: RequestedPerformance, size: int, *, required: bool = True) -> int | None:
    """Return the IOPS to send to EC2; None: its default. `required`: whether a type without a default needs any."""
    limits = _limits(kind)
    if limits.iops is None:
        if requested.iops is not None or requested.per_gb is not None:
            raise InvalidArgument(
                f"'{_parameter(requested)}' does not apply to type {kind}, whose IOPS follow from its size; "
                "leave it out, or choose type gp3, io1 or io2"
            )
        return None
    least, most = _iops_range(kind, size)
    allowed = _allowed(kind, size)
    if requested.iops is None and requested.per_gb is None:
        if required and not limits.default:
            raise InvalidArgument(f"type {kind} needs 'iops' or 'iopsPerGB': {allowed}; set one of them")
        return None
    iops = requested.iops if requested.iops is not None else min((requested.per_gb or 0) * size, most)
    if iops < least and requested.raise_to_minimum:
        iops = least
    if not least <= iops <= most:
        raise InvalidArgument(
            f"'{_parameter(requested)}' requests {iops} IOPS, but {allowed}; {_remedy(kind, requested, iops)}"
        )
    return iops


def _refuse_default_iops(kind: str, requested: RequestedPerformance, size: int) -> None:
    """Raise InvalidArgument when a type change needs IOPS, because EC2's default does not fit the volume."""
    if not _limits(kind).iops or requested.iops is not None or requested.per_gb is not None:
        return
    if _iops_range(kind, size)[1] < IOPS_ON_TYPE_CHANGE:
        raise InvalidArgument(
            f"'iops' is required with type {kind}: EC2's default is {IOPS_ON_TYPE_CHANGE}, but {_allowed(kind, size)}"
        )


def _iops_range(kind: str, size: int) -> tuple[int, int]:
    """Return the fewest and the most IOPS of a volume whose IOPS can be set."""
    limits = _limits(kind)
    least, most = limits.iops or (0, 0)
    return least, max(min(most, limits.per_gib * size), least)


def _allowed(kind: str, size: int) -> str:
    least, most = _iops_range(kind, size)
    return f"a {kind} volume of {size} GiB allows {least} to {most} IOPS (at most {_limits(kind).per_gib} per GiB)"


def _parameter(requested: RequestedPerformance) -> str:
    return "iops" if requested.iops is not None else "iopsPerGB"


def _remedy(kind: str, requested: RequestedPerformance, iops: int) -> str:
    limits = _limits(kind)
    least, most = limits.iops or (0, 0)
    if iops < least and requested.iops is None:
        return f'request at least {-(-least // (requested.per_gb or 1))} GiB, or set allowAutoIOPSPerGBIncrease: "true"'
    if iops < least:
        return f"request at least {least}"
    if iops > most:
        return f"request at most {most}"
    return f"request at least {-(-iops // limits.per_gib)} GiB, or fewer IOPS"


def _throughput(kind: str, throughput: int | None, iops: int | None) -> int | None:
    """Return the MiB/s to send to EC2 for a volume with these IOPS; None: EC2's default, or unchanged."""
    limits = _limits(kind)
    if throughput is None:
        return None
    if limits.throughput is None:
        raise InvalidArgument(f"'throughput' does not apply to type {kind}; leave it out, or choose type gp3")
    volume_iops, (least, most) = iops or limits.default, limits.throughput
    if not least <= throughput <= most:
        raise InvalidArgument(
            f"'throughput' {throughput} is out of range: a {kind} volume allows {least} to {most} MiB/s; request a "
            "value in that range"
        )
    if throughput > volume_iops // IOPS_PER_MIB and limits is not UNKNOWN_TYPE:
        raise InvalidArgument(
            f"'throughput' {throughput} is too much for {volume_iops} IOPS, which allow {volume_iops // IOPS_PER_MIB} "
            f"MiB/s; set iops to at least {throughput * IOPS_PER_MIB}, or a lower throughput"
        )
    return throughput


def _refuse_size(kind: str, size: int, *, grows: bool) -> None:
    """Raise when the type does not allow the size: OutOfRange when the size is requested, else InvalidArgument."""
    smallest, largest = _limits(kind).size
    if smallest <= size <= largest:
        return
    if grows and size > largest:
        raise OutOfRange(
            f"{size} GiB is too large: {kind} volumes have {smallest} to {largest} GiB; request at most {largest} GiB"
        )
    raise InvalidArgument(
        f"'type' {kind} does not fit this volume of {size} GiB: {kind} volumes have {smallest} to {largest} GiB; "
        "choose another type"
    )
