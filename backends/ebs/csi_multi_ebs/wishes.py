"""What a creation asks for, in EC2's terms: zones, encryption, a size that holds its source, many nodes."""

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

from .account import GIB, Account
from .config import Config, Parameters


def zones(account: Account, request: VolumeRequest) -> list[str]:
    """Return the zones to try: as preferred, then as required; without a wish the usual ones, spread by name.

    Raises ResourceExhausted when no place that is required has a zone: another node may.
    """
    known, usual = account.zones(), account.usual_zones()
    wanted = request.topology
    asked = [one["zone"] for one in wanted.candidates if "zone" in one] if wanted else []
    if wanted and wanted.requisite:
        if not asked:
            _refuse_without_zone(f"{account.setting.driver}/zone", wanted)
        return [zone for zone in dict.fromkeys(asked) if zone in known]
    start = int(hashlib.sha256(request.name.encode()).hexdigest(), 16) % max(len(usual), 1)
    return [zone for zone in dict.fromkeys([*asked, *usual[start:], *usual[:start]]) if zone in known]


def encryption(config: Config, parameters: Parameters) -> tuple[bool | None, str]:
    """Return whether to encrypt (None: as the account does) and with which key; a key alone asks for it."""
    if parameters.kms_key_id:
        return True, parameters.kms_key_id
    wanted = config.encrypted if parameters.encrypted is None else parameters.encrypted
    if wanted is False:
        return False, ""
    return (True if config.kms_key_id else wanted), config.kms_key_id


def wide_enough(size: SizeRange, least: int) -> SizeRange:
    """Return the size. Raises OutOfRange for less than a source of `least` GiB."""
    if size.required and -(-size.required // GIB) < least:
        raise OutOfRange(f"{size.required} bytes are less than the {least * GIB} bytes of the source")
    return size


def many_nodes(request: VolumeRequest) -> bool:
    """Whether the volume is to be attached to several nodes at once."""
    return any(not one.mode.single_node for one in request.capabilities)


def _refuse_without_zone(key: str, wanted: TopologyRequirement) -> NoReturn:
    if not any(wanted.candidates):
        raise InvalidArgument(f"accessibility_requirements: no place has a segment; a zone's key is {key!r}")
    others = ", ".join(sorted({name for one in wanted.candidates for name in one}))
    raise ResourceExhausted(
        f"no place that is asked for has a zone (key {key!r}, not {others}): is this a node without this instance, "
        "or are there other keys in the StorageClass's allowedTopologies?"
    )
