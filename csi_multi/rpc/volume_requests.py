"""CreateVolume's request to a backend: the instance that the class chooses, the filesystem, the size, the stamp."""

from __future__ import annotations

from .._proto import csi_pb2 as pb
from ..contract.errors import InvalidArgument
from ..contract.model import Source, Strings, VolumeRequest
from ..core import filesystems, topology
from ..core.filesystems import AUTO
from ..node import encryption_options, mkfs_limits
from ..node.mkfs_options import require_supported, validate_options
from . import convert
from .service_context import ClassParameters, ServiceContext, class_parameters, mutable_parameters


def volume_request(
    context: ServiceContext, request: pb.CreateVolumeRequest, deadline: float | None
) -> tuple[ClassParameters, VolumeRequest]:
    """Return the class parameters, with the instance that they choose, and the request to its backend."""
    parameters = class_parameters(context.registry, request.parameters, request.mutable_parameters)
    return parameters, _request_to(context, request, parameters, deadline)


def _request_to(
    context: ServiceContext, request: pb.CreateVolumeRequest, parameters: ClassParameters, deadline: float | None
) -> VolumeRequest:
    instance = parameters.instance
    has_source = request.HasField("volume_content_source")
    source = convert.source(request.volume_content_source, instance.name) if has_source else None
    source_context = filesystems.source_context(instance.backend, source) if source else None
    if source:
        filesystems.refuse_other_encryption(source, source_context, parameters.engine.encryption)
    _refuse_many_writers(request, parameters)
    fs_type = _fs_type(context, request, parameters, source, source_context)
    size, largest_sector = convert.size_range(request.capacity_range), 0
    if fs_type not in ("", AUTO):
        validate_options(parameters.engine.filesystem, fs_type)
        if source is None:
            size = mkfs_limits.fit(size, fs_type, parameters.engine.filesystem)
            largest_sector = mkfs_limits.largest_sector(fs_type, parameters.engine.filesystem)
    return VolumeRequest(
        stamp=context.stamp(request.name, parameters.digest, source=source, context=parameters.engine.context(fs_type)),
        size=encryption_options.with_overhead(size, parameters.engine.overhead),
        capabilities=convert.capabilities(request.volume_capabilities),
        parameters=parameters.own,
        mutable=mutable_parameters(instance.backend, request.mutable_parameters),
        topology=convert.requirement(context.driver.name, request.accessibility_requirements)
        if request.HasField("accessibility_requirements") and topology.constrained(instance.backend)
        else None,
        metadata=parameters.metadata,
        secrets=dict(request.secrets),
        deadline=deadline,
        largest_sector=largest_sector,
    )


def _refuse_many_writers(request: pb.CreateVolumeRequest, parameters: ClassParameters) -> None:
    """Raise InvalidArgument for an encrypted volume that several nodes write to: the first two to stage it would each
    write a header."""
    modes = [one.mode for one in convert.capabilities(request.volume_capabilities)]
    if parameters.engine.encryption.enabled and any(not mode.single_node and not mode.read_only for mode in modes):
        raise InvalidArgument(
            "volume_capabilities: an encrypted volume cannot be written from several nodes; use a class without "
            "encryption, or an access mode for one node"
        )


def _fs_type(
    context: ServiceContext,
    request: pb.CreateVolumeRequest,
    parameters: ClassParameters,
    source: Source | None,
    source_context: Strings | None,
) -> str:
    """Return the filesystem of the volume, "" for raw block."""
    capabilities = convert.capabilities(request.volume_capabilities)
    named = {one.mount.fs_type or parameters.fs_type for one in capabilities if one.mount}
    if not named:
        return ""
    named |= {parameters.fs_type} - {""}
    for one in sorted(named - {""}):
        require_supported(one)
    return filesystems.choose(source, source_context, named, context.driver.default_fs_type)
