"""What mkfs takes, so that CreateVolume refuses a volume that no node could format.

The limits are those of e2fsprogs 1.47, xfsprogs 6.1 and btrfs-progs 6.2; tests hold them against the installed mkfs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from ..contract.errors import InvalidArgument, OutOfRange
from ..contract.model import SizeRange
from .mkfs_options import FilesystemOptions

MIB = 1024 * 1024
MINIMUM: Mapping[str, int] = {"ext4": MIB, "xfs": 300 * MIB, "btrfs": 109 * MIB}  # bytes

BLOCK = 4096  # what mkfs chooses for all but the smallest filesystems
INODE = 256  # of ext4
DESCRIPTOR = 64  # bytes per group of ext4
CLUSTER_BLOCKS = 16  # of mkfs without ext4ClusterSize
MAX_CLUSTER = 16384  # blocks
MIN_CLUSTERS = 32
MIN_INODES = 16
XFS_INODES = (512, 2048)  # with checksums


def fit(size: SizeRange, fs_type: str, options: FilesystemOptions) -> SizeRange:
    """Return the size range of a volume that mkfs can format.

    An unset size stays unset: the backend's default, if that is large enough. Raises OutOfRange when the limit is
    below the minimum, and InvalidArgument for options that mkfs refuses.
    """
    for problem in _ext4_problems(options) if fs_type == "ext4" else _xfs_problems(options):
        raise InvalidArgument(f"{problem}; change or remove the parameter")
    minimum = _minimum(fs_type, options)
    if size.limit and size.limit < minimum:
        raise OutOfRange(
            f"{fs_type} with these options needs at least {minimum} bytes, above limit_bytes {size.limit}; "
            "request a larger volume"
        )
    if not size.required:
        return SizeRange(limit=size.limit, least=minimum)
    return SizeRange(required=max(size.required, minimum), limit=size.limit)


def largest_sector(fs_type: str, options: FilesystemOptions) -> int:
    """Return the bytes of the largest sector of a device that mkfs takes with these options; 0: any size."""
    return options.block_size or 0 if fs_type in ("ext4", "xfs") else 0


def _minimum(fs_type: str, options: FilesystemOptions) -> int:
    few_inodes = MIN_INODES * (options.bytes_per_inode or 0)
    return max(MINIMUM[fs_type], MIN_CLUSTERS * (options.ext4_cluster_size or 0), few_inodes, _space_of_inodes(options))


def _space_of_inodes(options: FilesystemOptions) -> int:
    """Return the bytes of an ext4 that has room for numberOfInodes: their tables, and what each group has beside one.

    A group has at most as many inodes as there are bits in a block, and as many clusters.
    """
    number, inode = options.number_of_inodes or 0, options.inode_size or INODE
    block = options.block_size or BLOCK
    groups = -(-number // (8 * block))
    # The descriptors of all groups, blocks for more of them, bitmaps, and what mkfs rounds down to or leaves empty.
    others = groups * (groups * DESCRIPTOR // block + block // 4 + 64) * block
    clusters = groups * 8 * block * _cluster(options) if options.ext4_big_alloc and groups > 1 else 0
    return max(2 * number * inode, number * inode + others if groups > 1 else 0, clusters)


def _cluster(options: FilesystemOptions) -> int:
    return options.ext4_cluster_size or CLUSTER_BLOCKS * (options.block_size or BLOCK)


def _ext4_problems(options: FilesystemOptions) -> Iterator[str]:
    block, inode, cluster = options.block_size or BLOCK, options.inode_size or INODE, options.ext4_cluster_size
    largest = max(BLOCK, os.sysconf("SC_PAGE_SIZE"))
    if block > largest:
        yield f"'blockSize' {block} is above {largest}, the largest that ext4 has with this page size"
    if inode > block:
        yield f"'inodeSize' {inode} is larger than a block of {block} bytes"
    if options.bytes_per_inode is not None and options.bytes_per_inode < 2 * inode:
        yield f"'bytesPerInode' {options.bytes_per_inode} is less than twice the inode size of {inode} bytes"
    if options.ext4_big_alloc and options.bytes_per_inode is not None and options.bytes_per_inode < _cluster(options):
        yield f"'bytesPerInode' {options.bytes_per_inode} is less than a cluster of {_cluster(options)} bytes"
    if options.number_of_inodes is not None and options.number_of_inodes < MIN_INODES:
        yield f"'numberOfInodes' {options.number_of_inodes} is below {MIN_INODES}"
    if cluster is not None and (not block <= cluster <= MAX_CLUSTER * block or cluster & (cluster - 1)):
        yield f"'ext4ClusterSize' {cluster} is not a power of two from {block} to {MAX_CLUSTER * block} bytes"


def _xfs_problems(options: FilesystemOptions) -> Iterator[str]:
    smallest, largest = XFS_INODES[0], min(XFS_INODES[1], (options.block_size or BLOCK) // 2)
    if options.inode_size is not None and not smallest <= options.inode_size <= largest:
        yield f"'inodeSize' {options.inode_size} is not from {smallest} to {largest}, as xfs needs with this block"
