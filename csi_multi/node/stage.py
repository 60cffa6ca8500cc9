"""Stage and unstage: a volume's device, mounted once per node at its staging path."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from ..contract.backend import Backend
from ..contract.errors import (
    AlreadyExists,
    Busy,
    FailedPrecondition,
    InUse,
    NotFound,
    StorageError,
    Timeout,
    Unavailable,
)
from ..contract.machine import Host
from ..contract.model import Blank, Device, OpenRequest
from ..host import sysfs
from . import blank_check, device_mounts, format, fsgroup, grow, mount_paths, mounting, plan, readonly_loop
from .device_mounts import View
from .filesystem import BY_NAME
from .plan import StagePlan
from .requests import StageRequest

MAY_STILL_RUN = (Busy, Unavailable, Timeout)  # not final: the orchestrator will call stage or unstage again


def stage(host: Host, backend: Backend, request: StageRequest) -> None:
    wanted = plan.check(request)
    device = device_mounts.find(backend, wanted.handle) if device_mounts.occupied(wanted.staging) else None
    present = device_mounts.staged(wanted.staging, device, wanted.handle)
    if device and present:
        if problem := plan.mismatch(wanted, present):
            raise AlreadyExists(f"volume {wanted.handle!r} is staged at {wanted.staging} {problem}; unstage it first")
        _finish(host, backend, wanted, device, present, made=False)
        return
    mount_paths.require_directory(wanted.staging)
    device = _open(backend, wanted)
    with _closed_when_refused(backend, wanted.handle, device):
        if wanted.block:
            node = wanted.staging / mount_paths.NODE
            sysfs.verify(device)
            mount_paths.make_file(node)
            # A read-only bind of a node stops no write (publish sees to that), but it says how this was staged.
            options = "bind,ro" if wanted.read_only else "bind"
            view, made = bind_node(host, device, device.path, node, wanted.handle, options), False
        else:
            view, made = _mount(host, backend, wanted, device)
    _finish(host, backend, wanted, device, view, made=made)


def _open(backend: Backend, wanted: StagePlan) -> Device:
    request = wanted.request
    opening = OpenRequest(
        handle=wanted.handle,
        read_only=wanted.read_only,
        block=wanted.block,
        capability=request.capability,
        volume_context=request.volume_context,
        publish_context=request.publish_context,
        secrets=request.secrets,
    )
    device = backend.open_device(opening)
    if device.read_only != wanted.read_only and not device_mounts.of(device):
        backend.close_device(wanted.handle)  # left open the other way by a stage that did not finish
        device = backend.open_device(opening)
    return device


@contextlib.contextmanager
def _closed_when_refused(backend: Backend, handle: str, device: Device) -> Iterator[None]:
    """Close the device on a final error: the orchestrator then forgets the volume and never unstages."""
    try:
        yield
    except MAY_STILL_RUN:
        raise
    except StorageError:
        if not device_mounts.of(device):
            with contextlib.suppress(StorageError):
                backend.close_device(handle)
        raise


def _mount(host: Host, backend: Backend, wanted: StagePlan, device: Device) -> tuple[View, bool]:
    """Mount the device's filesystem; say whether it was made for that."""
    name = next((view.mount.fs_type for view in device_mounts.of(device) if not view.block), "")
    made = False
    if not name:  # else the kernel has it in use already, and nothing may touch the device beside it
        kind, made = format.find_or_make(host, backend, wanted.handle, device, wanted.fs_type, wanted.options)
        if not made and not wanted.read_only:
            format.repair(host, wanted.handle, device, kind)
            grow.before_mount(host, device, kind)
        name = kind.name
    elif wanted.fs_type not in ("", name):
        raise FailedPrecondition(f"volume {wanted.handle!r} holds {name}, not {wanted.fs_type}; ask for {name}")
    sysfs.verify(device)
    mounting.mount(host, str(device.path), wanted.staging, name, _options(wanted, name))
    view = confirm(host, device, wanted.staging, wanted.handle)
    if view.read_only != wanted.read_only:
        mounting.unmount(host, wanted.staging)
        raise FailedPrecondition(
            f"volume {wanted.handle!r}: {name} on {device.path} can be mounted "
            f"{'read-only' if view.read_only else 'read-write'} only; the kernel log on the node may say why"
        )
    return view, made


def _options(wanted: StagePlan, name: str) -> str:
    own = BY_NAME[name].options if name in BY_NAME else ()
    last = ("ro",) if wanted.read_only else ()  # at the end, so that no flag undoes it
    return ",".join(["ro" if wanted.read_only else "rw", *own, *wanted.mount_flags, *last])


def bind_node(host: Host, device: Device, source: Path, target: Path, handle: str, options: str = "bind") -> View:
    """Bind a device node, the device's own or a layer's, on a file."""
    mounting.mount(host, str(source), target, "none", options)
    return confirm(host, device, target, handle)


def confirm(host: Host, device: Device, target: Path, handle: str) -> View:
    """Return the view that was just mounted, or unmount what is there instead."""
    try:
        found = device_mounts.at(target, device, handle)
    except FailedPrecondition:
        mounting.unmount(host, target)
        raise
    if found is None:
        raise Unavailable(f"volume {handle!r}: nothing shows at {target} after it was mounted there; try again")
    return found


def _finish(host: Host, backend: Backend, wanted: StagePlan, device: Device, view: View, *, made: bool) -> None:
    """Do what belongs to a read-write stage; also when an earlier try died between mount and here."""
    if view.read_only:
        return
    note_data(backend, wanted.handle, device)
    if view.block:
        return
    if not made:
        grow.at_stage(host, device, view)
    # kubelet stages again when it starts anew: what is published has been given, to the last pod's group.
    if wanted.group is not None and len(device_mounts.of(device)) == 1:
        fsgroup.give(view.path, wanted.group)


def note_data(backend: Backend, handle: str, device: Device) -> None:
    """Let the resource say that it may hold data, before anybody can write to it."""
    if device.blank is not Blank.NEVER:
        backend.formatted(handle)


def unstage(host: Host, backend: Backend, handle: str, staging: Path) -> None:
    staging = mount_paths.real(staging)
    device = device_mounts.find(backend, handle)
    places = (staging, staging / mount_paths.NODE)
    present = device_mounts.staged(staging, device, handle) if device else None
    if device and (others := [view.path for view in device_mounts.of(device) if view.path not in places]):
        raise InUse(f"volume {handle!r} is still published at {others[0]}; unpublish it first")
    for place in places:
        mounting.unmount(host, place)
    mount_paths.remove(staging / mount_paths.NODE)
    if device:
        if not present or present.block:
            readonly_loop.drop_unused(host, readonly_loop.over(device))
        blank_check.await_release(handle, device)
    with contextlib.suppress(NotFound):
        backend.close_device(handle)
