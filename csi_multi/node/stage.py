"""Staging: a volume's device is opened, formatted if it is proven blank, and mounted once per node at its staging path.

Every step looks at the mount table and sysfs first and may be repeated from any intermediate state. Nothing is kept
in memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..contract.errors import NOT_FINAL, AlreadyExists, FailedPrecondition, StorageError
from ..contract.machine import Host
from ..contract.model import Blank, Device, OpenRequest, Strings
from ..host import mounts, sysfs
from . import (
    device_mounts,
    device_records,
    format,
    fsgroup,
    grow,
    journal,
    mount_flags,
    mount_paths,
    mounting,
    trim_options,
)
from .device_mounts import DeviceMount, VolumeDevices
from .device_records import VolumeKey
from .filesystem import BY_NAME
from .mkfs_options import FilesystemOptions, from_context, validate_options
from .requests import StageRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """A valid stage request, with what follows from it."""

    request: StageRequest
    staging: Path
    fs_type: str  # "": the one on a device that was used, otherwise the default
    mount_flags: tuple[str, ...]
    visible_flags: frozenset[str]  # what the mount table will show of them
    group: int | None
    options: FilesystemOptions
    trim: int  # seconds from one trim to the next; 0: never

    @property
    def handle(self) -> str:
        return self.request.handle

    @property
    def block(self) -> bool:
        return self.request.capability.block

    @property
    def read_only(self) -> bool:
        return "ro" in self.visible_flags


def stage(host: Host, backend: VolumeDevices, request: StageRequest) -> None:
    """Mount the volume's device at the staging path."""
    plan = make_plan(request)
    secrets, device = request.secrets, None
    seen = mounts.all_at(*mount_paths.of_staging(plan.staging))
    if seen:
        device = device_mounts.find_device(backend, plan.handle, secrets)
    existing = device_mounts.staging_mount(plan.staging, device, plan.handle, seen)
    if device and existing:
        if difference := _difference(plan, existing):
            raise AlreadyExists(f"volume {plan.handle!r} is staged at {plan.staging} {difference}; unstage it first")
        device_records.add_staging(VolumeKey.of(backend, plan.handle), device, plan.staging, plan.trim)
        _prepare_for_writes(host, backend, plan, device, existing, formatted=False)
        return
    mount_paths.require_directory(plan.staging)
    device = backend.open_device(_open_request(plan))
    if device.read_only != plan.read_only and not device_mounts.list_mounts(device):
        backend.close_device(plan.handle, secrets=secrets)  # an interrupted stage left it open in the other mode
        device = backend.open_device(_open_request(plan))
    with _close_on_final_error(backend, plan, device):
        device_records.add_staging(VolumeKey.of(backend, plan.handle), device, plan.staging, plan.trim)
        if plan.block:
            mounted, formatted = _bind_block(host, plan, device), False
        else:
            mounted, formatted = _mount_filesystem(host, backend, plan, device)
    _prepare_for_writes(host, backend, plan, device, mounted, formatted=formatted)


def make_plan(request: StageRequest) -> StagePlan:
    """Validate a request. Raises InvalidArgument."""
    mount = request.capability.mount
    flags = tuple(flag for flag in (mount.flags if mount else ()) if flag)
    mount_flags.validate(flags)
    options = from_context(request.volume_context)
    if mount:
        validate_options(options, mount.fs_type or request.default_fs_type)
    read_only = request.capability.mode.read_only
    return StagePlan(
        request=request,
        staging=mount_paths.resolve_parent(request.staging),
        fs_type=mount.fs_type if mount else "",
        mount_flags=flags,
        visible_flags=mount_flags.apply(mount_flags.DEFAULT_VISIBLE, flags, read_only=read_only),
        group=fsgroup.parse(mount.group) if mount else None,
        options=options,
        trim=trim_options.from_context(request.volume_context).seconds if mount and not read_only else 0,
    )


def _difference(plan: StagePlan, existing: DeviceMount) -> str:
    """Return how the volume is staged differently, "" when it is staged as requested."""
    if not plan.block and not existing.block and plan.fs_type not in ("", existing.mount.fs_type):
        return f"as {existing.mount.fs_type}, not {plan.fs_type}"
    # An earlier version mounted without our defaults, and the volume is in use.
    earlier = mount_flags.apply(mount_flags.KERNEL_VISIBLE, plan.mount_flags, read_only=plan.read_only)
    return existing.difference(block=plan.block, visible_flags=plan.visible_flags, earlier=earlier)


def _open_request(plan: StagePlan) -> OpenRequest:
    request = plan.request
    return OpenRequest(
        handle=plan.handle,
        read_only=plan.read_only,
        block=plan.block,
        capability=request.capability,
        volume_context=request.volume_context,
        publish_context=request.publish_context,
        secrets=request.secrets,
    )


@contextlib.contextmanager
def _close_on_final_error(backend: VolumeDevices, plan: StagePlan, device: Device) -> Iterator[None]:
    """Close the device on a final error, after which the orchestrator forgets the volume and never unstages it."""
    try:
        yield
    except NOT_FINAL:
        raise
    except StorageError:
        if not device_mounts.list_mounts(device):
            with contextlib.suppress(StorageError):
                backend.close_device(plan.handle, secrets=plan.request.secrets)
                device_records.remove(VolumeKey.of(backend, plan.handle), device.number)
        raise


def _bind_block(host: Host, plan: StagePlan, device: Device) -> DeviceMount:
    node = plan.staging / mount_paths.BLOCK_FILE
    sysfs.verify(device)
    mount_paths.make_file(node)
    # A read-only bind of a device node does not stop writes (publish does that), but it records how this was staged.
    flags = {"relatime", "ro"} if plan.read_only else None
    return mounting.bind_node(device, device.path, node, plan.handle, host, flags)


def _mount_filesystem(host: Host, backend: VolumeDevices, plan: StagePlan, device: Device) -> tuple[DeviceMount, bool]:
    """Mount the device's filesystem; return the mount, and whether the device was formatted for it."""
    name = next((one.mount.fs_type for one in device_mounts.list_mounts(device) if not one.block), "")
    formatted, alone = False, not name
    if alone:  # otherwise it is mounted elsewhere on this node, and only the kernel may access the device
        fs_type, formatted = format.ensure_filesystem(
            host,
            backend,
            plan.handle,
            device,
            fs_type=plan.fs_type,
            options=plan.options,
            default=plan.request.default_fs_type,
            secrets=plan.request.secrets,
        )
        if not formatted and not plan.read_only:
            format.repair(host, plan.handle, device, fs_type)
            grow.before_mount(host, plan.handle, device, fs_type)
        name = fs_type.name
    elif plan.fs_type not in ("", name):
        raise FailedPrecondition(f"volume {plan.handle!r} holds {name}, not {plan.fs_type}; request {name}")
    device = _mount_at_staging(host, backend, plan, device, name, alone=alone)
    mounted = mounting.verify(host, device, plan.staging, plan.handle)
    if mounted.read_only != plan.read_only:
        mounting.unmount(host, plan.staging)
        raise FailedPrecondition(
            f"volume {plan.handle!r}: {name} on {device.path} can be mounted "
            f"{'read-only' if mounted.read_only else 'read-write'} only; the kernel log on the node may say why"
        )
    return mounted, formatted


def _mount_at_staging(
    host: Host, backend: VolumeDevices, plan: StagePlan, device: Device, name: str, *, alone: bool
) -> Device:
    """Mount, after a replay of the journal where a read-only mount needs it; return the device as it is open then."""
    sysfs.verify(device)
    options = _mount_options(plan, name)
    try:
        mounting.mount(host, str(device.path), plan.staging, name, options)
    except mounting.JournalNotReplayed:
        if not (alone and plan.read_only):
            raise
        device = journal.replay(host, backend, _open_request(plan), device, BY_NAME[name])
        sysfs.verify(device)
        mounting.mount(host, str(device.path), plan.staging, name, options)
    return device


def _mount_options(plan: StagePlan, name: str) -> str:
    required = BY_NAME[name].mount_options if name in BY_NAME else ()
    last = ("ro",) if plan.read_only else ()  # at the end, so that no flag undoes it
    return ",".join(["ro" if plan.read_only else "rw", *required, *mount_flags.DEFAULTS, *plan.mount_flags, *last])


def _prepare_for_writes(
    host: Host, backend: VolumeDevices, plan: StagePlan, device: Device, mounted: DeviceMount, *, formatted: bool
) -> None:
    """Complete a read-write stage; also when an earlier try was interrupted between the mount and this step."""
    if mounted.read_only:
        return
    record_use(backend, plan.handle, device, plan.request.secrets)
    if mounted.block:
        return
    if not formatted:
        grow.at_stage(host, device, mounted)
    # A kubelet that restarts stages again: a volume that is published already has the group of its last pod.
    if plan.group is not None and len(device_mounts.list_mounts(device)) == 1:
        _apply_group(host, backend, plan, device, mounted, plan.group)


def _apply_group(
    host: Host, backend: VolumeDevices, plan: StagePlan, device: Device, mounted: DeviceMount, group: int
) -> None:
    """Raises as fsgroup.apply does. After a final error nothing is staged, because the orchestrator never unstages."""
    with _close_on_final_error(backend, plan, device):
        try:
            fsgroup.apply(mounted.mount, group)
        except FailedPrecondition:
            mounting.unmount(host, plan.staging)
            raise


def record_use(backend: VolumeDevices, handle: str, device: Device, secrets: Strings) -> None:
    """Have the backend record on the resource that it may hold data, before anything can write to it."""
    if device.blank is not Blank.NEVER:
        backend.formatted(handle, secrets=secrets)
