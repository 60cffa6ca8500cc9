"""What the node would do with the device: whether it formats it, and how it mounts it, by the node engine's rules."""

from __future__ import annotations

from ...config.settings import Driver
from ...contract.errors import InvalidArgument, StorageError
from ...contract.model import VolumeRequest
from ...core.filesystems import AUTO, FS_TYPE
from ...host.command import LocalHost
from ...node import kernel_features, mount_flags
from ...node.filesystem import BY_NAME
from ...node.mkfs_options import FilesystemOptions
from .explanation import ExplainedFilesystem
from .storageclass import StorageClass

AT_FIRST_USE = "at its first use on a node, after proof that it is blank"
DEVICE = "DEVICE"


def refusal_reason(storage_class: StorageClass) -> str:
    """Return why a node refuses every volume of this class; "" if it does not."""
    try:
        mount_flags.validate(storage_class.mount_flags)
    except InvalidArgument as error:
        return f"{storage_class.where('mountOptions')}: NodeStageVolume: {error}"
    return ""


def filesystem(
    storage_class: StorageClass, options: FilesystemOptions, request: VolumeRequest, driver: Driver
) -> ExplainedFilesystem:
    """Return what a node does with a volume of this request."""
    if request.capabilities[0].block:
        return ExplainedFilesystem(type="", why="a raw block volume is requested", formats="never", mount_flags=())
    kind = request.stamp.context[FS_TYPE]
    named = bool(storage_class.fs_type)
    why = "from the class" if named else f"driver.default_fs_type of {driver.name}, because the class has none"
    if request.source:
        why = "that of its source" if kind != AUTO else "the node looks at the device, because the source records none"
    given = storage_class.mount_flags
    effective = mount_flags.apply(mount_flags.DEFAULT_VISIBLE, given, read_only=request.capabilities[0].mode.read_only)
    return ExplainedFilesystem(
        type=kind,
        why=why,
        formats="never, because a copy has the data of its source" if request.source else AT_FIRST_USE,
        mkfs=() if request.source else _mkfs(kind, options),
        mount_flags=(
            *(BY_NAME[kind].mount_options if kind in BY_NAME else ()),
            *storage_class.mount_flags,
            *sorted(effective - {*storage_class.mount_flags}),
        ),
    )


def _mkfs(kind: str, options: FilesystemOptions) -> tuple[str, ...]:
    """Return the command for this machine's kernel and tools; a node may switch off more features."""
    try:
        return (*BY_NAME[kind].mkfs_command(LocalHost(), options, kernel_features.running_kernel()), DEVICE)
    except StorageError:  # the tools are not installed here; on old kernels their version is read
        return ()
