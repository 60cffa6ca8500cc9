"""What CreateVolume takes is what the installed mkfs takes, and the kernel mounts it."""

from __future__ import annotations

import itertools

import pytest

from csi_multi.contract import CommandFailed, InvalidArgument, OutOfRange, SizeRange
from csi_multi.host.command import LocalHost
from csi_multi.node import kernel_features, mkfs_limits
from csi_multi.node.filesystem import BY_NAME
from csi_multi.node.mkfs_options import FilesystemOptions, to_context

MIB = 1024 * 1024
GIB = 1024 * MIB
LARGEST_FILE = 4096 * GIB  # that every filesystem of a tester has
BLOCKS = (None, 1024, 2048, 4096, 8192, 65536)
INODES = (None, 128, 256, 512, 1024, 2048, 4096)


def formats(file, fs_type, options, size):
    """Whether mkfs makes this filesystem in a sparse file."""
    file.unlink(missing_ok=True)
    with file.open("wb") as opened:
        opened.truncate(size)
    host = LocalHost()
    command = BY_NAME[fs_type].mkfs_command(host, options, kernel_features.running_kernel())
    try:
        host.run(*command, str(file))
    except CommandFailed:
        return False
    return True


def fitted(fs_type, options, required=1, limit=0):
    return mkfs_limits.fit(SizeRange(required=required, limit=limit), fs_type, options)


def combinations(fs_type):
    for block, inode in itertools.product(BLOCKS, INODES):
        yield FilesystemOptions(block_size=block, inode_size=inode)
    if fs_type == "ext4":
        for inode, number in itertools.product((None, 128, 4096), (1, 15, 16, 1000, 100000)):
            yield FilesystemOptions(inode_size=inode, number_of_inodes=number)
        for inode, number in itertools.product((None, 1024), (1024, 2048, 67108864)):
            yield FilesystemOptions(inode_size=inode, bytes_per_inode=number)
        for block, cluster in itertools.product((None, 1024), (2048, 3000, 4096, 65536, MIB, 64 * MIB, 256 * MIB)):
            yield FilesystemOptions(block_size=block, ext4_cluster_size=cluster, ext4_big_alloc=True)
        for block, number in itertools.product((None, 1024, 4096), (16, 100000, 1 << 20, 1 << 24)):
            yield FilesystemOptions(block_size=block, inode_size=128, number_of_inodes=number)
            for cluster in (None, 65536, 16 * MIB):
                yield FilesystemOptions(
                    block_size=block, number_of_inodes=number, ext4_cluster_size=cluster, ext4_big_alloc=True
                )
        for inode, number in itertools.product((None, 2048), (4096, 16384, 65536, 67108864)):
            for cluster in (None, 65536, 16 * MIB):
                yield FilesystemOptions(
                    inode_size=inode, bytes_per_inode=number, ext4_cluster_size=cluster, ext4_big_alloc=True
                )


@pytest.mark.parametrize("fs_type", ["ext4", "xfs"])
def test_mkfs_takes_every_option_that_is_accepted_at_the_smallest_size(tmp_path, fs_type):
    accepted = []
    for options in combinations(fs_type):
        try:
            size = fitted(fs_type, options).required
        except InvalidArgument:
            continue
        if size > LARGEST_FILE:
            continue
        assert formats(tmp_path / "file", fs_type, options, size), (to_context(options), size)
        for larger in (2 * GIB, 100 * GIB):
            assert size > larger or formats(tmp_path / "file", fs_type, options, larger), (to_context(options), larger)
        accepted.append(options)
    assert len(accepted) >= 20


@pytest.mark.parametrize(
    ("fs_type", "options"),
    [
        ("ext4", {"block_size": 65536}),
        ("ext4", {"inode_size": 4096, "block_size": 1024}),
        ("ext4", {"inode_size": 1024, "bytes_per_inode": 1024}),
        ("ext4", {"number_of_inodes": 1}),
        ("ext4", {"ext4_cluster_size": 2048, "block_size": 4096, "ext4_big_alloc": True}),
        ("ext4", {"ext4_cluster_size": 256 * MIB, "ext4_big_alloc": True}),
        ("ext4", {"bytes_per_inode": 16384, "ext4_big_alloc": True}),
        ("ext4", {"bytes_per_inode": 4096, "ext4_cluster_size": 8192, "ext4_big_alloc": True}),
        ("xfs", {"inode_size": 128}),
        ("xfs", {"inode_size": 256}),
        ("xfs", {"inode_size": 4096}),
        ("xfs", {"inode_size": 1024, "block_size": 1024}),
    ],
    ids=str,
)
def test_what_mkfs_refuses_is_an_invalid_argument(tmp_path, fs_type, options):
    chosen = FilesystemOptions(**options)

    with pytest.raises(InvalidArgument, match="change or remove the parameter"):
        fitted(fs_type, chosen)
    # mkfs rounds up where there is space, and one group of blocks can have more inodes than clusters.
    size = MIB if "number_of_inodes" in options else 10 * GIB
    assert not formats(tmp_path / "file", fs_type, chosen, size)


@pytest.mark.parametrize("fs_type", ["xfs", "btrfs"])
def test_the_minimum_is_that_of_mkfs(tmp_path, fs_type):
    minimum = mkfs_limits.MINIMUM[fs_type]

    assert formats(tmp_path / "file", fs_type, FilesystemOptions(), minimum)
    assert not formats(tmp_path / "file", fs_type, FilesystemOptions(), minimum - MIB)


@pytest.mark.root
@pytest.mark.parametrize("fs_type", ["ext4", "xfs", "btrfs"])
def test_a_volume_of_the_smallest_size_is_staged(world, fs_type):
    world.volume(size=mkfs_limits.MINIMUM[fs_type])

    (world.stage(fs=fs_type) / "file").write_text("bytes")
    world.unstage()


@pytest.mark.parametrize(("fs_type", "minimum"), [("xfs", 300 * MIB), ("btrfs", 109 * MIB)])
def test_sizes_are_raised_where_the_limit_allows(fs_type, minimum):
    plain = FilesystemOptions()

    assert fitted(fs_type, plain, 20 * MIB) == SizeRange(required=minimum)
    assert fitted(fs_type, plain, 20 * MIB, minimum) == SizeRange(required=minimum, limit=minimum)
    assert fitted(fs_type, plain, GIB, 2 * GIB) == SizeRange(required=GIB, limit=2 * GIB)
    assert fitted(fs_type, plain, 0) == SizeRange(least=minimum)
    for required in (0, 20 * MIB):
        with pytest.raises(OutOfRange, match=f"{fs_type} with these options needs at least {minimum} bytes"):
            fitted(fs_type, plain, required, minimum - 1)
