"""What a CreateVolume request means for EC2: the zones to try, and the volume to create (size, encryption, tags)."""

from __future__ import annotations

import hashlib
from typing import NoReturn

from csi_multi.contract import (
    InvalidArgument,
    OutOfRange,
    ResourceExhausted,
    SizeRange,
    TopologyRequirement,
    VolumeRequest,
)

from . import labels, outposts
from .config import Config, Parameters
from .ec2_cache import Ec2Cache
from .resources import GIB, Ec2Snapshot, Ec2Volume
from .volume_types import NewVolume, new_spec

ZONE_KEYS = {"zone", "zone-id"}


def new_volume(cache: Ec2Cache, request: VolumeRequest, snapshot: Ec2Snapshot | None = None) -> NewVolume:
    """Return the volume to create: empty, or from a snapshot. Raises InvalidArgument, OutOfRange."""
    parameters = request.parameters or Parameters()
    least = snapshot.size if snapshot else 1
    default = snapshot.size if snapshot else -(-cache.config.default_size // GIB)
    _refuse_smaller(request.size, least)
    encrypted, kms_key = encryption(cache.config, parameters)
    return NewVolume(
        spec=new_spec(parameters, request.mutable, request.size, least=least, default=default),
        tags=labels.volume_tags(request, cache.setting, cache.config),
        snapshot=snapshot.id if snapshot else "",
        outposts=outposts.requested(request.topology, cache.config.region),
        encrypted=encrypted,
        kms_key=kms_key,
        multi_attach=multi_attach(request),
        initialization_rate=parameters.volume_initialization_rate if snapshot else None,
    )


def copied_volume(cache: Ec2Cache, request: VolumeRequest, source: Ec2Volume) -> NewVolume:
    """Return the volume to create as a copy of another. Raises InvalidArgument, OutOfRange."""
    parameters = request.parameters or Parameters()
    _refuse_smaller(request.size, source.size)
    outposts.refuse_copy_elsewhere(source, request.topology, cache.config.region)
    encrypted, kms_key = encryption(cache.config, parameters)
    return NewVolume(
        spec=new_spec(parameters, request.mutable, request.size, least=source.size, default=source.size),
        tags=labels.volume_tags(request, cache.setting, cache.config),
        copy_of=source.id,
        encrypted=encrypted,
        kms_key=kms_key,
        multi_attach=multi_attach(request),
    )


def zones(cache: Ec2Cache, request: VolumeRequest) -> list[str]:
    """Return the zones to try: the preferred ones, then the required ones; without any, the default ones by name.

    The hash of the volume's name decides where the default zones begin, so that volumes are spread. Raises
    ResourceExhausted when no required topology has a zone: the scheduler may choose another node.
    """
    known, default = cache.zones(), cache.default_zones()
    topology = request.topology
    named = [one for one in topology.candidates if one.keys() & ZONE_KEYS] if topology else []
    requested = [cache.zone_named(one) for one in named]
    if topology and topology.requisite:
        if not named:
            _refuse_without_zone(f"{cache.setting.driver}/zone", topology)
        return [zone for zone in dict.fromkeys(requested) if zone in known]
    start = int(hashlib.sha256(request.name.encode()).hexdigest(), 16) % max(len(default), 1)
    return [zone for zone in dict.fromkeys([*requested, *default[start:], *default[:start]]) if zone in known]


def encryption(config: Config, parameters: Parameters) -> tuple[bool | None, str]:
    """Return whether to encrypt (None: as the account does) and the KMS key; a key alone implies encryption."""
    if parameters.kms_key_id:
        return True, parameters.kms_key_id
    wanted = config.encrypted if parameters.encrypted is None else parameters.encrypted
    if wanted is False:
        return False, ""
    return (True if config.kms_key_id else wanted), config.kms_key_id


def multi_attach(request: VolumeRequest) -> bool:
    """Return whether the volume is to be attached to several nodes at once."""
    return any(not one.mode.single_node for one in request.capabilities)


def _refuse_smaller(size: SizeRange, least: int) -> None:
    """Raise OutOfRange for less than a source of `least` GiB."""
    if size.required and -(-size.required // GIB) < least:
        raise OutOfRange(
            f"{size.required} bytes are fewer than the source's {least * GIB}; request at least {least * GIB} bytes"
        )


def _refuse_without_zone(key: str, topology: TopologyRequirement) -> NoReturn:
    if not any(topology.candidates):
        raise InvalidArgument(f"accessibility_requirements: no topology has a segment; the key of a zone is {key!r}")
    others = ", ".join(sorted({name for one in topology.candidates for name in one}))
    raise ResourceExhausted(
        f"no requested topology has key {key!r}, only {others}; either the chosen node does not have this instance, or "
        "the StorageClass's allowedTopologies use another key"
    )
