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
MAX_CLUSTER = 16384  # blocks
MIN_CLUSTERS = 32
MIN_INODES = 16
XFS_INODES = (512, 2048)  # with checksums


def fit(size: SizeRange, fs_type: str, options: FilesystemOptions) -> SizeRange:
    """Return the size range of a volume that mkfs can format.

    An unset size stays unset: the backend's default. Raises OutOfRange when the limit is below the minimum, and
    InvalidArgument for options that mkfs refuses.
    """
    for problem in _ext4_problems(options) if fs_type == "ext4" else _xfs_problems(options):
        raise InvalidArgument(f"{problem}; change or remove the parameter")
    minimum = _minimum(fs_type, options)
    if size.limit and size.limit < minimum:
        raise OutOfRange(
            f"{fs_type} with these options needs at least {minimum} bytes, above limit_bytes {size.limit}; "
            "request a larger volume"
        )
    return SizeRange(required=max(size.required, minimum), limit=size.limit) if size.required else size


def _minimum(fs_type: str, options: FilesystemOptions) -> int:
    inodes = 2 * (options.number_of_inodes or 0) * (options.inode_size or INODE)  # at most half are tables of inodes
    return max(MINIMUM[fs_type], MIN_CLUSTERS * (options.ext4_cluster_size or 0), inodes)


def _ext4_problems(options: FilesystemOptions) -> Iterator[str]:
    block, inode, cluster = options.block_size or BLOCK, options.inode_size or INODE, options.ext4_cluster_size
    largest = max(BLOCK, os.sysconf("SC_PAGE_SIZE"))
    if block > largest:
        yield f"'blockSize' {block} is above {largest}, the largest that ext4 has with this page size"
    if inode > block:
        yield f"'inodeSize' {inode} is larger than a block of {block} bytes"
    if options.bytes_per_inode is not None and options.bytes_per_inode < 2 * inode:
        yield f"'bytesPerInode' {options.bytes_per_inode} is less than twice the inode size of {inode} bytes"
    if options.number_of_inodes is not None and options.number_of_inodes < MIN_INODES:
        yield f"'numberOfInodes' {options.number_of_inodes} is below {MIN_INODES}"
    if cluster is not None and (not block <= cluster <= MAX_CLUSTER * block or cluster & (cluster - 1)):
        yield f"'ext4ClusterSize' {cluster} is not a power of two from {block} to {MAX_CLUSTER * block} bytes"


def _xfs_problems(options: FilesystemOptions) -> Iterator[str]:
    smallest, largest = XFS_INODES[0], min(XFS_INODES[1], (options.block_size or BLOCK) // 2)
    if options.inode_size is not None and not smallest <= options.inode_size <= largest:
        yield f"'inodeSize' {options.inode_size} is not from {smallest} to {largest}, as xfs needs with this block"
