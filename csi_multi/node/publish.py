"""Publish and unpublish: a staged volume, shown at a workload's target path."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..contract.backend import Backend
from ..contract.errors import AlreadyExists, FailedPrecondition, StorageError
from ..contract.machine import Host
from ..contract.model import Device
from ..host import sysfs
from . import device_mounts, fsgroup, mount_flags, mount_paths, mounting, readonly_loop
from .device_mounts import View
from .requests import PublishRequest
from .stage import bind_node, confirm, note_data


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A publish request, checked, beside what it starts from."""

    request: PublishRequest
    target: Path
    device: Device
    staged: View
    shown_flags: frozenset[str]  # what the mount table will show at the target
    group: int | None

    @property
    def block(self) -> bool:
        return self.request.capability.block

    @property
    def read_only(self) -> bool:
        return "ro" in self.shown_flags


def publish(host: Host, backend: Backend, request: PublishRequest) -> None:
    staging, target = mount_paths.real(request.staging), mount_paths.real(request.target)
    mount = request.capability.mount
    mount_flags.check(mount.flags if mount else ())
    device = backend.find_device(request.handle)
    present = device_mounts.at(target, device, request.handle)
    staged = device_mounts.staged(staging, device, request.handle)
    if device is None or staged is None:
        raise FailedPrecondition(f"volume {request.handle!r} is not staged at {staging}; stage it first")
    wanted = _plan(request, target, device, staged)
    problem = _excess(wanted) or (_mismatch(wanted, present) if present else "")
    if problem:
        kind = AlreadyExists if present else FailedPrecondition
        raise kind(f"volume {request.handle!r} {problem}; {'unpublish' if present else 'unstage'} it first")
    if present:
        return
    _refuse_second_target(wanted)
    if not wanted.read_only:
        note_data(backend, request.handle, device)
        if wanted.group is not None:
            fsgroup.give(staged.path, wanted.group)
    _show(host, wanted)


def _plan(request: PublishRequest, target: Path, device: Device, staged: View) -> Plan:
    read_only = request.read_only or request.capability.mode.read_only
    mount = request.capability.mount
    base = mount_flags.shown(staged.mount.options) if not staged.block else frozenset()
    return Plan(
        request=request,
        target=target,
        device=device,
        staged=staged,
        shown_flags=mount_flags.effective(base - {"ro"}, mount.flags if mount else (), read_only=read_only),
        group=fsgroup.parse(mount.group) if mount else None,
    )


def _excess(wanted: Plan) -> str:
    """Say what was asked for beyond how the volume is staged."""
    staged, mount = wanted.staged, wanted.request.capability.mount
    if staged.block != wanted.block:
        return f"is staged {'as a raw block device' if staged.block else 'with a filesystem'}"
    if staged.read_only and not wanted.read_only:
        return "is staged read-only"
    if mount and mount.fs_type not in ("", staged.mount.fs_type):
        return f"is staged as {staged.mount.fs_type}, not {mount.fs_type}"
    return ""


def _mismatch(wanted: Plan, present: View) -> str:
    """Say how the volume is published at this target differently."""
    where = f"is published at {wanted.target}"
    if present.block != wanted.block:
        return f"{where} {'as a raw block device' if present.block else 'with a filesystem'}"
    if present.read_only != wanted.read_only:
        return f"{where} {'read-only' if present.read_only else 'read-write'}"
    if not wanted.block and mount_flags.shown(present.mount.options) != wanted.shown_flags:
        return f"{where} with other mount flags"
    return ""


def _refuse_second_target(wanted: Plan) -> None:
    mode = wanted.request.capability.mode
    if mode.many_targets:
        return
    for view in device_mounts.of(wanted.device):
        # Another root is a part of the volume that the orchestrator bound by itself (subPath).
        whole = view.block or view.mount.root == wanted.staged.mount.root
        if whole and view.path not in (wanted.staged.path, wanted.target):
            raise FailedPrecondition(
                f"volume {wanted.request.handle!r} is already published at {view.path}, and access mode {mode.name} "
                "allows one target per node; unpublish it there, or use SINGLE_NODE_MULTI_WRITER"
            )


def _show(host: Host, wanted: Plan) -> None:
    sysfs.verify(wanted.device)
    make = mount_paths.make_file if wanted.block else mount_paths.make_directory
    make(wanted.target)
    try:
        if wanted.block:
            node = readonly_loop.read_only(host, wanted.device) if wanted.read_only else wanted.device.path
            bind_node(host, wanted.device, node, wanted.target, wanted.request.handle)
        else:
            _bind(host, wanted)
    except StorageError:
        _undo(host, wanted)
        raise


def _bind(host: Host, wanted: Plan) -> None:
    same = mount_flags.shown(wanted.staged.mount.options) == wanted.shown_flags
    options = "bind" if same else mount_flags.of_bind(wanted.shown_flags)
    mounting.mount(host, wanted.staged.mount.target, wanted.target, "none", options)
    view = confirm(host, wanted.device, wanted.target, wanted.request.handle)
    if problem := _mismatch(wanted, view):
        raise FailedPrecondition(f"volume {wanted.request.handle!r} {problem} than asked for, so it was unpublished")


def _undo(host: Host, wanted: Plan) -> None:
    """Leave nothing behind: after a final error the orchestrator never unpublishes."""
    mounting.unmount(host, wanted.target)
    readonly_loop.drop_unused(host, readonly_loop.over(wanted.device))
    mount_paths.remove(wanted.target)


def unpublish(host: Host, backend: Backend, handle: str, target: Path) -> None:
    target = mount_paths.real(target)
    device = device_mounts.find(backend, handle)
    present = device_mounts.at(target, device, handle) if device else None
    mounted = present and not present.block  # then there can be no layer
    layers = [] if mounted else [*readonly_loop.bound_at(target), *(readonly_loop.over(device) if device else ())]
    mounting.unmount(host, target)
    readonly_loop.drop_unused(host, layers)
    mount_paths.remove(target)
