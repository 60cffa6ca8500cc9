"""The Identity service."""

from __future__ import annotations

from functools import cache
from importlib.metadata import version
from typing import Any

from google.protobuf.wrappers_pb2 import BoolValue

from .._proto import csi_pb2 as pb
from .service_context import ServiceContext
from .validate import MAP_LIMIT


class IdentityService:
    """The driver's name, version and capabilities, the same in every mode."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context

    def GetPluginInfo(self, request: Any, deadline: float | None) -> pb.GetPluginInfoResponse:
        kinds = {f"backend.{instance.name}": instance.kind for instance in self._context.registry}
        if sum(len(key) + len(value) for key, value in kinds.items()) > MAP_LIMIT:
            kinds = {"backends": str(len(kinds))}
        return pb.GetPluginInfoResponse(name=self._context.driver.name, vendor_version=_version(), manifest=kinds)

    def GetPluginCapabilities(self, request: Any, deadline: float | None) -> pb.GetPluginCapabilitiesResponse:
        advertised, service, growth = self._context.advertised, pb.PluginCapability.Service, pb.PluginCapability
        items = [pb.PluginCapability(service=service(type=name)) for name in advertised.of("plugin")]
        kinds = advertised.expansion_types
        items += [pb.PluginCapability(volume_expansion=growth.VolumeExpansion(type=kind)) for kind in kinds]
        return pb.GetPluginCapabilitiesResponse(capabilities=items)

    def Probe(self, request: Any, deadline: float | None) -> pb.ProbeResponse:
        """Always report ready: a restart of the driver repairs no storage, and the healthy instances must serve.

        The log and Probe's trailing metadata (interceptor.py) name the instances that are down,
        and their own RPCs fail with the reason.
        """
        return pb.ProbeResponse(ready=BoolValue(value=True))


@cache
def _version() -> str:
    return version("csi-multi")
