"""The mkfs options of a StorageClass, and their way through the volume context."""

from __future__ import annotations

import pytest

from csi_multi.contract import InvalidArgument
from csi_multi.node.mkfs_options import FilesystemOptions, from_context, to_context, validate_options


def test_options_survive_the_volume_context():
    options = FilesystemOptions(block_size=4096, number_of_inodes=7, ext4_encryption_support=True)
    context = to_context(options)

    assert context == {"fs.blockSize": "4096", "fs.numberOfInodes": "7", "fs.ext4EncryptionSupport": "true"}
    assert from_context({**context, "pool": "x"}) == options
    assert from_context({}) == FilesystemOptions()


@pytest.mark.parametrize(
    ("options", "fs_type", "message"),
    [
        (FilesystemOptions(bytes_per_inode=4096), "xfs", "'bytesPerInode' is not an option of xfs"),
        (FilesystemOptions(ext4_big_alloc=True), "xfs", "'ext4BigAlloc' is not an option of xfs"),
        (FilesystemOptions(block_size=4096), "btrfs", "its options are: none"),
        (FilesystemOptions(), "ntfs", "'ntfs' is not supported; supported: ext4, xfs, btrfs"),
        (FilesystemOptions(ext4_cluster_size=65536), "", "ext4BigAlloc"),
        (FilesystemOptions(bytes_per_inode=4096, number_of_inodes=5), "ext4", "exclude each other"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, fs_type, message):
    with pytest.raises(InvalidArgument, match=message):
        validate_options(options, fs_type)


@pytest.mark.parametrize("context", [{"fs.blockSize": "5000"}, {"fs.blocksize": "4096"}, {"fs.numberOfInodes": "-1"}])
def test_a_context_that_was_not_written_here_is_refused(context):
    with pytest.raises(InvalidArgument, match="filesystem options"):
        from_context(context)
