"""The supported filesystems and what differs between them: commands, mount options, where the size is stored."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..contract.machine import Host
from ..host.privilege import LinuxCapability
from . import kernel_features, mkfs_limits
from .kernel_features import KernelVersion
from .mkfs_options import FilesystemOptions

SUPERBLOCK_SPAN = 128 * 1024  # bytes from the start of the device that hold the superblock of each


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesystemType:
    """A filesystem. {device} and {path} in grow_command are filled in; to the others the device is appended."""

    name: str
    mkfs_command: Callable[[Host, FilesystemOptions, KernelVersion], list[str]]
    check_command: tuple[str, ...]  # exits 0 when the filesystem on the device is complete; writes nothing
    repair_command: tuple[str, ...] = ()  # to run before a read-write mount
    grow_command: tuple[str, ...]  # while it is mounted at {path}
    grow_capability: LinuxCapability | None = None  # what the kernel requires for that, in addition to CAP_SYS_ADMIN
    grow_minimum: int = 0  # bytes; the kernel refuses to grow to less
    grow_unmounted_commands: tuple[tuple[str, ...], ...] = ()  # in order
    mount_options: tuple[str, ...] = ()  # of every mount
    superblock_size: Callable[[bytes], int]  # the start of the device -> bytes that the filesystem spans


def _mkfs_ext4(host: Host, options: FilesystemOptions, kernel: KernelVersion) -> list[str]:
    features = kernel_features.ext4_features(host, kernel)
    features += ["bigalloc"] if options.ext4_big_alloc else []
    features += ["encrypt"] if options.ext4_encryption_support else []
    return [
        *("mkfs.ext4", "-q", "-m", "0", "-E", "nodiscard,lazy_itable_init=1,lazy_journal_init=1"),
        # A small filesystem gets blocks of 1 KiB otherwise, with which the limits of these options are others.
        *_argument("-b", options.block_size or (mkfs_limits.BLOCK if _depends_on_block(options) else None)),
        *_argument("-I", options.inode_size),
        *_argument("-i", options.bytes_per_inode),
        *_argument("-N", options.number_of_inodes),
        *_argument("-C", options.ext4_cluster_size),
        *_argument("-O", ",".join(features) or None),
    ]


def _depends_on_block(options: FilesystemOptions) -> bool:
    return (options.inode_size or 0) > 1024 or options.ext4_big_alloc


def _mkfs_xfs(_: Host, options: FilesystemOptions, kernel: KernelVersion) -> list[str]:
    block = f"size={options.block_size}" if options.block_size else None
    inode = f"size={options.inode_size}" if options.inode_size else None
    return [
        "mkfs.xfs",
        "-q",
        "-K",
        *_argument("-b", block),
        *_argument("-i", inode),
        *kernel_features.xfs_arguments(kernel),
    ]


def _mkfs_btrfs(host: Host, _: FilesystemOptions, kernel: KernelVersion) -> list[str]:
    return ["mkfs.btrfs", "-q", "-K", *_argument("-O", ",".join(kernel_features.btrfs_features(host, kernel)) or None)]


def _argument(option: str, value: str | int | None) -> list[str]:
    return [] if value is None else [option, str(value)]


def _ext4_size(start: bytes) -> int:
    low, high = struct.unpack_from("<I", start, 1024 + 4)[0], struct.unpack_from("<I", start, 1024 + 0x150)[0]
    shift, incompatible = struct.unpack_from("<I", start, 1024 + 24)[0], struct.unpack_from("<I", start, 1024 + 96)[0]
    is_64bit = incompatible & 0x80  # INCOMPAT_64BIT: without it, the high half may hold anything
    return int((low + (high << 32 if is_64bit else 0)) * (1024 << shift))


def _xfs_size(start: bytes) -> int:
    block, blocks = struct.unpack_from(">IQ", start, 4)
    return int(block * blocks)


def _btrfs_size(start: bytes) -> int:
    return int(struct.unpack_from("<Q", start, 64 * 1024 + 0x70)[0])


BY_NAME: Mapping[str, FilesystemType] = {
    filesystem.name: filesystem
    for filesystem in (
        FilesystemType(
            name="ext4",
            mkfs_command=_mkfs_ext4,
            check_command=("e2fsck", "-n", "-f"),
            repair_command=("e2fsck", "-p"),
            grow_command=("resize2fs", "{device}"),
            grow_capability=LinuxCapability.CAP_SYS_RESOURCE,
            grow_unmounted_commands=(("e2fsck", "-f", "-p"), ("resize2fs",)),
            # A superblock may say errors=panic: whoever can write to a volume could stop its node.
            mount_options=("errors=remount-ro",),
            superblock_size=_ext4_size,
        ),
        FilesystemType(
            name="xfs",
            mkfs_command=_mkfs_xfs,
            check_command=("xfs_repair", "-n"),
            grow_command=("xfs_growfs", "-d", "{path}"),
            mount_options=("nouuid",),  # a clone has the uuid of its source, and both may be mounted on one node
            superblock_size=_xfs_size,
        ),
        FilesystemType(
            name="btrfs",
            mkfs_command=_mkfs_btrfs,
            check_command=("btrfs", "check", "--readonly"),
            grow_command=("btrfs", "filesystem", "resize", "max", "{path}"),
            grow_minimum=256 * 1024 * 1024,
            superblock_size=_btrfs_size,
        ),
    )
}
