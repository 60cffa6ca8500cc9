"""The words given to mkfs: options of a StorageClass, and features the running kernel knows."""

from __future__ import annotations

import subprocess

import pytest

from csi_multi.contract import InvalidArgument, Result
from csi_multi.node import kernel_features
from csi_multi.node.filesystem import BY_NAME
from csi_multi.node.mkfs_options import OPTIONS, FilesystemOptions, from_context, to_context, validate_options

NEW = (99, 0)


class Tools:
    """Stands for mke2fs -V and mkfs.btrfs -O list-all of some release."""

    def __init__(self, text=""):
        self.text = text

    def run(self, *argv, **_):
        return Result(0, "", self.text)


def mkfs_command(name, options=None, kernel=NEW, tools=""):
    return BY_NAME[name].mkfs_command(Tools(tools), options or FilesystemOptions(), kernel)


def test_the_table_and_the_vocabulary_have_the_same_filesystems():
    assert set(BY_NAME) == set(OPTIONS) == {"ext4", "xfs", "btrfs"}


def test_mkfs_is_never_forced():
    for name in BY_NAME:
        assert not {"-f", "-F", "-FF", "--force"} & set(mkfs_command(name))


def test_options_become_words():
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


@pytest.fixture
def profiles(tmp_path):
    for version in ("4.19", "5.10", "6.1"):
        text = f"# {version}\n[metadata]\nnrext64=0\nbigtime={int(version > '5')}\n\n[inode]\nsparse=1\n"
        (tmp_path / f"lts_{version}.conf").write_text(text)
    (tmp_path / "dax_x86_64.conf").write_text("[block]\nsize=4096\n")
    return tmp_path


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        ((4, 18), "bigtime=0"),
        ((4, 19), "bigtime=0"),
        ((5, 9), "bigtime=0"),
        ((5, 10), "bigtime=1"),
        ((6, 1), "bigtime=1"),
    ],
)
def test_xfs_takes_the_newest_profile_the_kernel_knows(profiles, kernel, expected):
    assert kernel_features.xfs_arguments(kernel, profiles) == ["-i", "nrext64=0,sparse=1", "-m", expected]


def test_xfs_takes_no_profile_for_a_kernel_newer_than_all(profiles, tmp_path):
    assert kernel_features.xfs_arguments((6, 2), profiles) == []
    assert kernel_features.xfs_arguments((5, 15), tmp_path / "absent") == []


@pytest.mark.parametrize("kernel", [(4, 19), (5, 4), (5, 10), (5, 15), (6, 1), NEW], ids=str)
def test_the_installed_mkfs_accepts_the_words_for_any_kernel(tmp_path, kernel):
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


@pytest.mark.parametrize(
    ("release", "expected"),
    [("6.18.44-fc-v657", (6, 18)), ("5.15.0-105-generic", (5, 15)), ("4.18.0-553.el8", (4, 18)), ("odd", (0, 0))],
)
def test_a_release_is_read(release, expected):
    assert kernel_features.parse_release(release) == expected


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
