"""Replaying the journal of a volume that is staged read-only, as a copy of a live volume needs before its first mount.

The alternative is to mount without the replay (noload, norecovery), which may show a tree that never existed. The
volume is the claim's own, so the replay writes to it: the device is opened writable for that, and closed again.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from ..contract.backend import NodeLocal
from ..contract.errors import FailedPrecondition
from ..contract.machine import Host
from ..contract.model import AccessMode, Blank, Device, OpenRequest
from ..host import sysfs
from . import blank_check, format, mounting
from .device_mounts import VolumeDevices
from .filesystem import FilesystemType

log = logging.getLogger(__name__)


def replay(host: Host, backend: VolumeDevices, request: OpenRequest, device: Device, fs_type: FilesystemType) -> Device:
    """Replay the journal on the device, which is mounted nowhere; return the device, read-only again.

    Raises FailedPrecondition where nobody may write to the volume, or another node might. A process that dies in
    between leaves the device open for writing, which the next stage closes first.
    """
    handle = request.handle
    if problem := _obstacle(backend, request, device):
        raise _refusal(handle, fs_type, device, problem)
    log.info("volume %s: %s on %s has a journal to replay before it can be read", handle, fs_type.name, device.path)
    backend.close_device(handle, secrets=request.secrets)
    writable = backend.open_device(_writable(request))
    if writable.read_only:
        raise _refusal(handle, fs_type, writable, "its storage lets this node only read it")
    sysfs.verify(writable)
    with blank_check.open_exclusively(writable):
        pass  # raises Unavailable while anything on this node uses it, in any mount namespace
    if fs_type.repair_command:
        format.repair(host, handle, writable, fs_type)
    else:
        mounting.replay_by_mounting(host, writable, fs_type)
    blank_check.await_release(handle, writable)
    backend.close_device(handle, secrets=request.secrets)
    return backend.open_device(request)


def _writable(request: OpenRequest) -> OpenRequest:
    """Return the request of the only writer, so that the storage keeps other nodes away where it can."""
    capability = request.capability and replace(request.capability, mode=AccessMode.SINGLE_NODE_WRITER)
    return replace(request, read_only=False, capability=capability)


def _obstacle(backend: VolumeDevices, request: OpenRequest, device: Device) -> str:
    """Return why the driver must not write to the volume; "" when it may."""
    if device.blank is not Blank.NEVER:
        return "no note on the volume says that it was used"
    alone = request.capability is not None and request.capability.mode.single_node
    if not alone and not isinstance(backend, NodeLocal) and not backend.opens_exclusively:
        return "other nodes may use it at the same time"
    return ""


def _refusal(handle: str, fs_type: FilesystemType, device: Device, problem: str) -> FailedPrecondition:
    return FailedPrecondition(
        f"volume {handle!r}: the journal of {fs_type.name} on {device.path} must be replayed before it can be read, "
        f"and {problem}; stage the volume once read-write on one node"
    )
