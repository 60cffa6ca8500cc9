"""A stage request, checked before anything is touched, and compared with what is there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from . import fsgroup, mount_flags, mount_paths
from .device_mounts import View
from .mkfs_options import DEFAULT, FilesystemOptions, from_context, known, refuse_misfits
from .requests import StageRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    request: StageRequest
    staging: Path
    fs_type: str  # "": whatever is there, else the default
    mount_flags: tuple[str, ...]
    shown_flags: frozenset[str]  # what the mount table will show of them
    group: int | None
    options: FilesystemOptions

    @property
    def handle(self) -> str:
        return self.request.handle

    @property
    def block(self) -> bool:
        return self.request.capability.block

    @property
    def read_only(self) -> bool:
        return "ro" in self.shown_flags


def check(request: StageRequest) -> StagePlan:
    """Raises InvalidArgument."""
    mount = request.capability.mount
    wanted = tuple(flag for flag in (mount.flags if mount else ()) if flag)
    mount_flags.check(wanted)
    options = from_context(request.volume_context)
    if mount:
        known(mount.fs_type or DEFAULT)
        refuse_misfits(options, mount.fs_type)
    return StagePlan(
        request=request,
        staging=mount_paths.real(request.staging),
        fs_type=mount.fs_type if mount else "",
        mount_flags=wanted,
        shown_flags=mount_flags.effective(mount_flags.DEFAULT, wanted, read_only=request.capability.mode.read_only),
        group=fsgroup.parse(mount.group) if mount else None,
        options=options,
    )


def mismatch(wanted: StagePlan, present: View) -> str:
    """Say how the volume is staged differently, "" when it is staged as wanted."""
    if wanted.block != present.block:
        return "as a raw block device" if present.block else "with a filesystem"
    if present.read_only != wanted.read_only:
        return "read-only" if present.read_only else "read-write"
    if present.block:
        return ""
    if wanted.fs_type not in ("", present.mount.fs_type):
        return f"as {present.mount.fs_type}, not {wanted.fs_type}"
    return "" if mount_flags.shown(present.mount.options) == wanted.shown_flags else "with other mount flags"
