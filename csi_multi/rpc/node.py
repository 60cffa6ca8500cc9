"""The Node service: convert the request, find the instance, call the node engine."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from .._proto import csi_pb2 as pb
from ..contract import ids
from ..contract.backend import Expand, NodeFacts, NodeHealthReporter, Setting, Topology
from ..contract.errors import FailedPrecondition, InvalidArgument, NotFound, Unavailable
from ..contract.machine import Host
from ..contract.model import Segments, StorageHealth, StorageHealthEntry, Strings
from ..core.filesystems import AUTO, FS_TYPE
from ..core.idempotent import require
from ..core.topology import node_segments
from ..loading.instance import Instance
from ..node import grow, publish, stage, unstage, volume_status
from ..node.device_mounts import DeviceCloser
from ..node.encryption import EncryptionLayer
from ..node.open_volume import UnconfiguredBackend
from ..node.requests import PublishRequest, StageRequest
from . import convert
from .capabilities import AdvertisedCapabilities
from .service_context import ServiceContext

log = logging.getLogger(__name__)


class NodeService:
    """The RPCs of the Node service."""

    def __init__(self, context: ServiceContext, host: Host) -> None:
        self._context = context
        self._host = host
        self._capabilities = (context.advertised, _capabilities(context.advertised))

    def NodeGetCapabilities(self, request: Any, deadline: float | None) -> pb.NodeGetCapabilitiesResponse:
        """Return a response that is made once per configuration, because kubelet calls this before every other RPC."""
        if (advertised := self._context.advertised) is not self._capabilities[0]:
            self._capabilities = (advertised, _capabilities(advertised))
        return self._capabilities[1]

    def NodeGetInfo(self, request: Any, deadline: float | None) -> pb.NodeGetInfoResponse:
        node, driver = self._context.driver.node, self._context.driver.name
        facts: dict[str, str] = {}
        limits: list[int] = []
        places: dict[str, Segments] = {}
        well_known: list[str] = []
        for instance in self._context.registry:
            name, backend = instance.name, instance.backend
            try:
                fact = backend.node_fact() if isinstance(backend, NodeFacts) else ""
                limit = backend.max_volumes() if isinstance(backend, NodeFacts) else 0
                place = node_segments(backend, node)
            except FailedPrecondition as error:  # the node serves the other instances
                log.warning("volumes of backend %s cannot be used on this node: %s", name, error)
                continue
            facts |= {name: fact} if fact else {}
            limits += [limit] if limit else []
            places[name] = place
            well_known += [name] if isinstance(backend, Topology) and backend.well_known_keys else []
        response = pb.NodeGetInfoResponse(
            node_id=ids.join_node(node, facts),
            # CSI has one number for all instances: the smallest. With a larger one, pods would be placed here and hang.
            max_volumes_per_node=min(limits, default=0),
        )
        if segments := convert.node_topology(driver, places, well_known):
            response.accessible_topology.segments.update(segments)
        return response

    def NodeStageVolume(self, request: pb.NodeStageVolumeRequest, deadline: float | None) -> pb.NodeStageVolumeResponse:
        instance, handle = self._context.volume(request.volume_id)
        capability = convert.capability(request.volume_capability)
        if reason := instance.backend.unsupported(capability):
            raise FailedPrecondition(f"volume_capability: {reason}")
        staged = StageRequest(
            handle=handle,
            staging=Path(request.staging_target_path),
            capability=capability,
            default_fs_type=self._default_fs_type(request.volume_context),
            volume_context=dict(request.volume_context),
            publish_context=dict(request.publish_context),
            secrets=dict(request.secrets),
        )
        stage.stage(self._host, self._devices(instance), staged)
        return pb.NodeStageVolumeResponse()

    def _devices(self, instance: Instance) -> EncryptionLayer:
        """Return the devices of an instance's volumes, as the node engine uses them."""
        return EncryptionLayer(self._host, instance.backend)

    def _default_fs_type(self, volume_context: Strings) -> str:
        recorded = volume_context.get(FS_TYPE, AUTO)
        return self._context.driver.default_fs_type if recorded == AUTO else recorded

    def NodeUnstageVolume(
        self, request: pb.NodeUnstageVolumeRequest, deadline: float | None
    ) -> pb.NodeUnstageVolumeResponse:
        backend, handle = self._backend_to_undo(request.volume_id)
        unstage.unstage(self._host, backend, handle, Path(request.staging_target_path))
        return pb.NodeUnstageVolumeResponse()

    def NodePublishVolume(
        self, request: pb.NodePublishVolumeRequest, deadline: float | None
    ) -> pb.NodePublishVolumeResponse:
        instance, handle = self._context.volume(request.volume_id)
        if not request.staging_target_path:
            raise FailedPrecondition("staging_target_path is required because this driver stages volumes")
        capability = convert.capability(request.volume_capability)
        if reason := instance.backend.unsupported(capability):
            raise FailedPrecondition(f"volume_capability: {reason}")
        published = PublishRequest(
            handle=handle,
            staging=Path(request.staging_target_path),
            target=Path(request.target_path),
            capability=capability,
            read_only=request.readonly or capability.mode.read_only,
            secrets=dict(request.secrets),
        )
        publish.publish(self._host, self._devices(instance), published)
        return pb.NodePublishVolumeResponse()

    def NodeUnpublishVolume(
        self, request: pb.NodeUnpublishVolumeRequest, deadline: float | None
    ) -> pb.NodeUnpublishVolumeResponse:
        backend, handle = self._backend_to_undo(request.volume_id)
        publish.unpublish(self._host, backend, handle, Path(request.target_path))
        return pb.NodeUnpublishVolumeResponse()

    def _backend_to_undo(self, volume_id: str) -> tuple[DeviceCloser, str]:
        """Return (backend, handle). A volume whose instance cannot be used can be unmounted all the same."""
        name, handle = ids.split("volume", volume_id)
        try:
            return self._devices(self._context.registry.get(name)), handle
        except NotFound as error:
            advice = f"{error}; put backend {name!r} back into the configuration"
        except Unavailable as error:
            advice = str(error)
        driver = self._context.driver
        setting = Setting(instance=name, driver=driver.name, cluster=driver.cluster, node=driver.node, host=self._host)
        return UnconfiguredBackend(setting, advice), handle

    def NodeGetVolumeStats(
        self, request: pb.NodeGetVolumeStatsRequest, deadline: float | None
    ) -> pb.NodeGetVolumeStatsResponse:
        instance, handle = self._context.volume(request.volume_id)
        usage = volume_status.usage(self._devices(instance), handle, _absolute(request.volume_path))
        return pb.NodeGetVolumeStatsResponse(usage=[convert.usage(item) for item in usage])

    def NodeExpandVolume(
        self, request: pb.NodeExpandVolumeRequest, deadline: float | None
    ) -> pb.NodeExpandVolumeResponse:
        instance, handle = self._context.volume(request.volume_id)
        backend = require(instance.backend, Expand, "NodeExpandVolume")
        if request.HasField("volume_capability"):
            capability = convert.capability(request.volume_capability)
            if reason := backend.unsupported(capability):
                raise InvalidArgument(f"volume_capability: {reason}")
        size = convert.size_range(request.capacity_range)
        path, secrets = _absolute(request.volume_path), dict(request.secrets)
        size_now = grow.expand(self._host, self._devices(instance), handle, path, size, secrets)
        return pb.NodeExpandVolumeResponse(capacity_bytes=size_now)

    def NodeGetVolumeHealth(
        self, request: pb.NodeGetVolumeHealthRequest, deadline: float | None
    ) -> pb.NodeGetVolumeHealthResponse:
        instance, handle = self._context.volume(request.volume_id)
        entries = volume_status.health(self._devices(instance), instance.backend, handle)
        return pb.NodeGetVolumeHealthResponse(volume_health=convert.health(request.volume_id, entries))

    def NodeGetStorageHealth(
        self, request: pb.NodeGetStorageHealthRequest, deadline: float | None
    ) -> pb.NodeGetStorageHealthResponse:
        secrets = dict(request.secrets)
        found = [
            (instance.name, entry)
            for instance in self._context.registry
            if isinstance(instance.backend, NodeHealthReporter)
            for entry in instance.backend.node_storage_health(secrets)
        ]
        unreachable = StorageHealth.STORAGE_UNREACHABLE
        for name, reason in sorted(self._context.registry.broken.items()):
            found.append((name, StorageHealthEntry(status=unreachable, reason="BackendBroken", message=reason)))
        return pb.NodeGetStorageHealthResponse(backend_health=convert.storage_health(found))


def _absolute(text: str) -> Path:
    """Return the path. Raises NotFound for a relative one, as csi-sanity requires: no volume is mounted there."""
    if not text.startswith("/"):
        raise NotFound(f"no volume exists at {text!r}; the path must be absolute")
    return Path(text)


def _capabilities(advertised: AdvertisedCapabilities) -> pb.NodeGetCapabilitiesResponse:
    rpc = pb.NodeServiceCapability.RPC
    items = [pb.NodeServiceCapability(rpc=rpc(type=name)) for name in advertised.of("node")]
    return pb.NodeGetCapabilitiesResponse(capabilities=items)
