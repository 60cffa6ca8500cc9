"""What differs between the filesystems, as a table: commands, mount options, where the size stands."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..contract.machine import Host
from ..host.privilege import Capability
from . import kernel_features
from .kernel_features import Kernel
from .mkfs_options import FilesystemOptions

SUPERBLOCK_SPAN = 128 * 1024  # every superblock below lies within so many bytes from the start


@dataclass(frozen=True, slots=True, kw_only=True)
class Filesystem:
    name: str
    make: Callable[[Host, FilesystemOptions, Kernel], list[str]]  # mkfs words, without the device
    whole: tuple[str, ...]  # exits 0 when the filesystem on the device is complete; writes nothing
    repair: tuple[str, ...] = ()  # to run on the device before it is mounted read-write
    grow: tuple[str, ...]  # while mounted; {device} and {path} (where it is mounted) are filled in
    grow_capability: Capability | None = None  # what the kernel wants for that, beside CAP_SYS_ADMIN
    grow_minimum: int = 0  # bytes; the kernel refuses to grow to less
    grow_unmounted: tuple[tuple[str, ...], ...] = ()  # commands, in order
    options: tuple[str, ...] = ()  # always mounted with
    size: Callable[[bytes], int]  # bytes it spans, from the start of the device


def _make_ext4(host: Host, options: FilesystemOptions, running: Kernel) -> list[str]:
    wanted = kernel_features.ext4(host, running)
    wanted += ["bigalloc"] if options.ext4_big_alloc else []
    wanted += ["encrypt"] if options.ext4_encryption_support else []
    return [
        *("mkfs.ext4", "-q", "-m", "0", "-E", "nodiscard,lazy_itable_init=1,lazy_journal_init=1"),
        *_word("-b", options.block_size),
        *_word("-I", options.inode_size),
        *_word("-i", options.bytes_per_inode),
        *_word("-N", options.number_of_inodes),
        *_word("-C", options.ext4_cluster_size),
        *_word("-O", ",".join(wanted) or None),
    ]


def _make_xfs(_: Host, options: FilesystemOptions, running: Kernel) -> list[str]:
    block = f"size={options.block_size}" if options.block_size else None
    inode = f"size={options.inode_size}" if options.inode_size else None
    return ["mkfs.xfs", "-q", "-K", *_word("-b", block), *_word("-i", inode), *kernel_features.xfs(running)]


def _make_btrfs(host: Host, _: FilesystemOptions, running: Kernel) -> list[str]:
    return ["mkfs.btrfs", "-q", "-K", *_word("-O", ",".join(kernel_features.btrfs(host, running)) or None)]


def _word(option: str, value: str | int | None) -> list[str]:
    return [] if value is None else [option, str(value)]


def _size_ext4(start: bytes) -> int:
    low, high = struct.unpack_from("<I", start, 1024 + 4)[0], struct.unpack_from("<I", start, 1024 + 0x150)[0]
    shift, incompatible = struct.unpack_from("<I", start, 1024 + 24)[0], struct.unpack_from("<I", start, 1024 + 96)[0]
    wide = incompatible & 0x80  # INCOMPAT_64BIT: without it, the high half may hold anything
    return int((low + (high << 32 if wide else 0)) * (1024 << shift))


def _size_xfs(start: bytes) -> int:
    block, blocks = struct.unpack_from(">IQ", start, 4)
    return int(block * blocks)


def _size_btrfs(start: bytes) -> int:
    return int(struct.unpack_from("<Q", start, 64 * 1024 + 0x70)[0])


BY_NAME: Mapping[str, Filesystem] = {
    filesystem.name: filesystem
    for filesystem in (
        Filesystem(
            name="ext4",
            make=_make_ext4,
            whole=("e2fsck", "-n", "-f"),
            repair=("e2fsck", "-p"),
            grow=("resize2fs", "{device}"),
            grow_capability=Capability.CAP_SYS_RESOURCE,
            grow_unmounted=(("e2fsck", "-f", "-p", "{device}"), ("resize2fs", "{device}")),
            size=_size_ext4,
        ),
        Filesystem(
            name="xfs",
            make=_make_xfs,
            whole=("xfs_repair", "-n"),
            grow=("xfs_growfs", "-d", "{path}"),
            options=("nouuid",),  # a clone has its source's uuid, and may be on the same node
            size=_size_xfs,
        ),
        Filesystem(
            name="btrfs",
            make=_make_btrfs,
            whole=("btrfs", "check", "--readonly"),
            grow=("btrfs", "filesystem", "resize", "max", "{path}"),
            grow_minimum=256 * 1024 * 1024,
            size=_size_btrfs,
        ),
    )
}
