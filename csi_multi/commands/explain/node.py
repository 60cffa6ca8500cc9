"""What the node would do with the device: format it or not, and how it is mounted. Its own tables and rules."""

from __future__ import annotations

from ...config.settings import Driver
from ...contract.errors import InvalidArgument, StorageError
from ...contract.model import VolumeRequest
from ...core.idempotent import FS_TYPE
from ...host.command import LocalHost
from ...node import kernel_features, mount_flags
from ...node.filesystem import BY_NAME
from ...node.mkfs_options import FilesystemOptions
from .explanation import ExplainedFilesystem
from .storageclass import StorageClass

AT_FIRST_USE = "on its first use on a node, after proof that it holds nothing"
DEVICE = "DEVICE"


def objection(one: StorageClass) -> str:
    """Why a node refuses every volume of this class, "" if it does not."""
    try:
        mount_flags.validate(one.mount_flags)
    except InvalidArgument as error:
        return f"{one.where('mountOptions')}: NodeStageVolume: {error}"
    return ""


def filesystem(
    one: StorageClass, options: FilesystemOptions, request: VolumeRequest, driver: Driver
) -> ExplainedFilesystem:
    """Return what a node makes of a volume of this request."""
    if request.capabilities[0].block:
        return ExplainedFilesystem(type="", why="a raw block volume was asked for", formats="never", mount_flags=())
    kind = request.stamp.context[FS_TYPE]
    named = bool(one.fs_type)
    why = "the class names it" if named else f"the class names none, so it is driver.default_fs_type of {driver.name}"
    effective = mount_flags.apply(
        mount_flags.DEFAULT_VISIBLE, one.mount_flags, read_only=request.capabilities[0].mode.read_only
    )
    return ExplainedFilesystem(
        type=kind,
        why=why,
        formats="never: a copy holds its source's data" if request.source else AT_FIRST_USE,
        mkfs=() if request.source else _mkfs(kind, options),
        mount_flags=(*BY_NAME[kind].mount_options, *one.mount_flags, *sorted(effective - {*one.mount_flags})),
    )


def _mkfs(kind: str, options: FilesystemOptions) -> tuple[str, ...]:
    """Return the command with this machine's kernel and tools; a node's may leave more features out."""
    try:
        return (*BY_NAME[kind].mkfs_command(LocalHost(), options, kernel_features.running_kernel()), DEVICE)
    except StorageError:  # its tools are not installed here, and are asked for their version on old kernels only
        return ()
