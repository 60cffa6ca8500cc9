"""Publishing: a staged volume is mounted at a workload's target path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..contract.errors import AlreadyExists, FailedPrecondition, StorageError
from ..contract.machine import Host
from ..contract.model import Device
from ..host import mounts, sysfs
from ..host.mounts import MountPoint
from . import device_mounts, device_records, fsgroup, mount_flags, mount_paths, mounting, open_volume, readonly_loop
from .device_mounts import DeviceCloser, DeviceMount, VolumeDevices
from .device_records import VolumeKey
from .requests import PublishRequest
from .stage import record_use


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishPlan:
    """A valid publish request, with the staged volume it starts from."""

    request: PublishRequest
    key: VolumeKey
    target: Path
    device: Device
    staged: DeviceMount
    visible_flags: frozenset[str]  # what the mount table will show at the target
    group: int | None

    @property
    def block(self) -> bool:
        return self.request.capability.block

    @property
    def read_only(self) -> bool:
        return "ro" in self.visible_flags

    @property
    def group_text(self) -> str:
        return "" if self.group is None else str(self.group)


def publish(host: Host, backend: VolumeDevices, request: PublishRequest) -> None:
    """Mount the staged volume at the target."""
    staging = mount_paths.resolve_parent(request.staging)
    target = mount_paths.resolve_target(request.target, request.staging)
    mount = request.capability.mount
    mount_flags.validate(mount.flags if mount else ())
    device = backend.find_device(request.handle, secrets=request.secrets)
    table = mounts.table()
    existing = device_mounts.mount_at(target, device, request.handle, table)
    staged = device_mounts.staging_mount(staging, device, request.handle, table)
    if device is None or staged is None:
        raise FailedPrecondition(f"volume {request.handle!r} is not staged at {staging}; stage it first")
    key = VolumeKey.of(backend, request.handle)
    plan = _make_plan(request, key, target, device, staged)
    problem = _conflict_with_stage(plan) or (_difference(plan, existing) or _group_difference(plan) if existing else "")
    if problem:
        kind = AlreadyExists if existing else FailedPrecondition
        raise kind(f"volume {request.handle!r} {problem}; {'unpublish' if existing else 'unstage'} it first")
    device_records.add_staging(key, device, staging)  # a driver without records may have staged it
    if existing:
        return
    _refuse_second_target(plan, table)
    device_records.add_target(key, device.path, device.number, target, plan.group_text)
    if not plan.read_only:
        record_use(backend, request.handle, device, request.secrets)
        if plan.group is not None:
            try:
                fsgroup.apply(staged.mount, plan.group)
            except FailedPrecondition:
                _roll_back(host, plan)
                raise
    _mount_at_target(host, plan)


def _make_plan(
    request: PublishRequest, key: VolumeKey, target: Path, device: Device, staged: DeviceMount
) -> PublishPlan:
    read_only = request.read_only or request.capability.mode.read_only
    mount = request.capability.mount
    base = mount_flags.visible(staged.mount.options) if not staged.block else frozenset()
    return PublishPlan(
        request=request,
        key=key,
        target=target,
        device=device,
        staged=staged,
        visible_flags=mount_flags.apply(base - {"ro"}, mount.flags if mount else (), read_only=read_only),
        group=fsgroup.parse(mount.group) if mount else None,
    )


def _conflict_with_stage(plan: PublishPlan) -> str:
    """Return why the volume cannot be published in this way as it is staged, "" when it can."""
    staged, mount = plan.staged, plan.request.capability.mount
    if staged.block != plan.block:
        return f"is staged {'as a raw block device' if staged.block else 'with a filesystem'}"
    if staged.read_only and not plan.read_only:
        return "is staged read-only"
    if mount and mount.fs_type not in ("", staged.mount.fs_type):
        return f"is staged as {staged.mount.fs_type}, not {mount.fs_type}"
    return ""


def _difference(plan: PublishPlan, existing: DeviceMount) -> str:
    """Return how the volume is published at this target differently, "" when it is published as requested."""
    difference = existing.difference(block=plan.block, visible_flags=plan.visible_flags)
    return f"is published at {plan.target} {difference}" if difference else ""


def _group_difference(plan: PublishPlan) -> str:
    """Return with which other group the volume is published at this target, as far as that is recorded."""
    record = device_records.of_device(plan.device.number)
    group = record.groups.get(str(plan.target)) if record else None
    if group in (None, plan.group_text):
        return ""
    return f"is published at {plan.target} with volume_mount_group {group!r}, not {plan.group_text!r}"


def _refuse_second_target(plan: PublishPlan, table: Sequence[MountPoint]) -> None:
    mode = plan.request.capability.mode
    if mode.many_targets:
        return
    record = device_records.of_device(plan.device.number)
    expected = {plan.staged.path, plan.target, *mount_paths.of_staging(*(record.staging if record else ()))}
    for mounted in device_mounts.outside(device_mounts.list_mounts(plan.device, table), expected, table):
        if mode.one_writer and (plan.read_only or mounted.read_only):
            continue
        # A mount with another root is a part of the volume, which the orchestrator has bound itself (subPath).
        if mounted.block or mounted.mount.root == plan.staged.mount.root:
            raise FailedPrecondition(
                f"volume {plan.request.handle!r} is already published at {mounted.path}, and access mode {mode.name} "
                f"allows one {'target that can write' if mode.one_writer else 'target'} per node; unpublish it there, "
                "or use SINGLE_NODE_MULTI_WRITER"
            )


def _mount_at_target(host: Host, plan: PublishPlan) -> None:
    sysfs.verify(plan.device)
    make = mount_paths.make_file if plan.block else mount_paths.make_directory
    make(plan.target)
    try:
        if plan.block:
            node = _read_only_node(host, plan) if plan.read_only else plan.device.path
            mounting.bind_node(plan.device, node, plan.target, plan.request.handle, host)
        else:
            _bind_filesystem(host, plan)
    except StorageError:
        _roll_back(host, plan)
        raise


def _read_only_node(host: Host, plan: PublishPlan) -> Path:
    node = readonly_loop.read_only_node(host, plan.device)
    device_records.add_target(plan.key, node, sysfs.number_of(node), plan.target, plan.group_text)
    return node


def _bind_filesystem(host: Host, plan: PublishPlan) -> None:
    same = mount_flags.visible(plan.staged.mount.options) == plan.visible_flags
    flags = None if same else mount_flags.of_bind(plan.visible_flags)
    mounting.bind(plan.staged.path, plan.target, directory=True, flags=flags)
    mounted = mounting.verify(host, plan.device, plan.target, plan.request.handle)
    if difference := _difference(plan, mounted):
        raise FailedPrecondition(
            f"volume {plan.request.handle!r} {difference}, not as requested, so it was unpublished; "
            "the kernel log on the node may say why"
        )


def _roll_back(host: Host, plan: PublishPlan) -> None:
    """Leave nothing behind: after a final error the orchestrator never unpublishes."""
    mounting.unmount(host, plan.target)
    readonly_loop.detach_unused(host, readonly_loop.loops_over(plan.device))
    if record := device_records.of_device(plan.device.number):
        device_records.remove_path(record, plan.target)
    mount_paths.remove(plan.target)


def unpublish(host: Host, backend: DeviceCloser, handle: str, target: Path) -> None:
    """Unmount the target and remove it. Raises FailedPrecondition for a mount that is not this volume's."""
    requested, target = target, mount_paths.resolve_parent(target)
    volume = open_volume.find(backend, handle, target)
    volume.require_own(target)
    recorded = any(str(target) in record.groups for record in volume.records)  # published without a link
    if recorded and mount_paths.leads_through_link(requested, volume.staging_paths):
        raise FailedPrecondition(
            f"{requested} leads through a symbolic link to {target}, where volume {handle!r} is published; "
            "remove the link, or unpublish the volume there"
        )
    existing = [one for one in volume.mounts if one.path == target]
    loops: list[Path] = []
    if not existing or existing[-1].block:  # a filesystem has no read-only loop device
        loops = [*readonly_loop.loops_bound_at(target), *volume.readonly_loops()]
    mounting.unmount(host, target)
    readonly_loop.detach_unused(host, loops)
    for record in volume.records:
        device_records.remove_path(record, target)
    mount_paths.remove(target)
