"""The mkfs commands: options of a StorageClass, and features that the running kernel supports."""

from __future__ import annotations

import subprocess

import pytest

from csi_multi.contract import Result
from csi_multi.node.filesystem import BY_NAME
from csi_multi.node.mkfs_options import OPTIONS, FilesystemOptions

NEW = (99, 0)


class Tools:
    """Stands for mke2fs -V and mkfs.btrfs -O list-all of some release."""

    def __init__(self, text=""):
        self.text = text

    def run(self, *argv, **_):
        return Result(0, "", self.text)


def mkfs_command(name, options=None, kernel=NEW, tools=""):
    return BY_NAME[name].mkfs_command(Tools(tools), options or FilesystemOptions(), kernel)


def test_filesystems_and_their_options_have_the_same_filesystems():
    assert set(BY_NAME) == set(OPTIONS) == {"ext4", "xfs", "btrfs"}


def test_mkfs_is_never_forced():
    for name in BY_NAME:
        assert not {"-f", "-F", "-FF", "--force"} & set(mkfs_command(name))


def test_options_become_arguments():
    options = FilesystemOptions(
        block_size=4096,
        inode_size=512,
        bytes_per_inode=8192,
        ext4_big_alloc=True,
        ext4_cluster_size=65536,
        ext4_encryption_support=True,
    )

    assert mkfs_command("ext4", options)[6:] == [
        *("-b", "4096", "-I", "512", "-i", "8192", "-C", "65536", "-O", "bigalloc,encrypt")
    ]
    assert mkfs_command("xfs", FilesystemOptions(block_size=1024, inode_size=1024))[3:] == [
        "-b",
        "size=1024",
        "-i",
        "size=1024",
    ]


@pytest.mark.parametrize(
    ("kernel", "version", "expected"),
    [((5, 14), "1.47.0", True), ((5, 14), "1.46.5", False), ((5, 15), "1.47.0", False), ((6, 18), "1.48", False)],
)
def test_ext4_leaves_out_orphan_file_for_an_older_kernel(kernel, version, expected):
    made = mkfs_command("ext4", kernel=kernel, tools=f"mke2fs {version} (5-Feb-2023)")
    assert ("^orphan_file" in made) is expected


@pytest.mark.parametrize(
    ("kernel", "known", "expected"), [((6, 0), "block-group-tree  - x", True), ((6, 0), "", False), (NEW, "", False)]
)
def test_btrfs_leaves_out_block_group_tree_for_an_older_kernel(kernel, known, expected):
    assert ("^block-group-tree" in mkfs_command("btrfs", kernel=kernel, tools=known)) is expected


@pytest.mark.parametrize("kernel", [(4, 19), (5, 4), (5, 10), (5, 15), (6, 1), NEW], ids=str)
def test_the_installed_mkfs_accepts_the_command_for_any_kernel(tmp_path, kernel):
    for name in BY_NAME:
        image = tmp_path / name
        with image.open("wb") as file:
            file.truncate(320 * 1024 * 1024)
        made = BY_NAME[name].mkfs_command(Real(), FilesystemOptions(), kernel)
        subprocess.run([*made, str(image)], check=True, capture_output=True)


class Real:
    def run(self, *argv, **_):
        done = subprocess.run(argv, check=False, capture_output=True, text=True)
        return Result(done.returncode, done.stdout, done.stderr)
