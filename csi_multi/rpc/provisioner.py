"""CreateVolume as external-provisioner would send it, up to the request that a backend gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .._proto import csi_pb2 as pb
from ..config.settings import Driver
from ..contract.model import Segments, Source, SourceKind, VolumeRequest
from ..core import topology
from ..loading.registry import Registry
from . import validate, volume_requests
from .capabilities import Mode, advertise
from .rules import RULES
from .service_context import PROVISIONER_PREFIX, ClassParameters, ServiceContext


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvisionerClaim:
    """The content of a PersistentVolumeClaim and its StorageClass. Ids are complete CSI ids; places have no prefix."""

    volume: str  # the PersistentVolume's name
    parameters: Mapping[str, str]
    size: int = 0
    access_mode: str = "SINGLE_NODE_MULTI_WRITER"
    block: bool = False
    fs_type: str = ""
    mount_flags: Sequence[str] = ()
    places: Sequence[Segments] = ()
    source: Source | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)


def volume_request(
    driver: Driver, registry: Registry, claim: ProvisionerClaim
) -> tuple[ClassParameters, VolumeRequest]:
    """Return the driver's own result of checking and parsing the claim. Raises StorageError."""
    message = _message(driver.name, claim)
    validate.request(message, RULES["CreateVolume"])
    context = ServiceContext(driver, registry, advertise((one.backend for one in registry), Mode.ALL, driver.alpha))
    return volume_requests.volume_request(context, message, None)


def _message(driver: str, claim: ProvisionerClaim) -> pb.CreateVolumeRequest:
    metadata = {PROVISIONER_PREFIX + key: value for key, value in claim.metadata.items()}
    message = pb.CreateVolumeRequest(name=claim.volume, parameters={**claim.parameters, **metadata})
    if claim.size:
        message.capacity_range.required_bytes = claim.size
    capability = message.volume_capabilities.add()
    capability.access_mode.CopyFrom(pb.VolumeCapability.AccessMode(mode=claim.access_mode))
    if claim.block:
        capability.block.SetInParent()
    else:
        capability.mount.fs_type = claim.fs_type
        capability.mount.mount_flags.extend(claim.mount_flags)
    for place in claim.places:
        for kind in (message.accessibility_requirements.requisite, message.accessibility_requirements.preferred):
            kind.add(segments=topology.add_prefix(driver, place))
    if claim.source and claim.source.kind is SourceKind.SNAPSHOT:
        message.volume_content_source.snapshot.snapshot_id = claim.source.handle
    elif claim.source:
        message.volume_content_source.volume.volume_id = claim.source.handle
    return message
