"""A file handle leads to its directory, wherever that is now, and to no other one."""

import errno
import os

import pytest
from csi_multi_loop.client import DIRECTORY_FLAGS
from csi_multi_loop.file_handles import FileHandle, handle_of, open_directory

pytestmark = pytest.mark.root


@pytest.fixture
def disk(filesystem, undo):
    """An open filesystem."""
    path = filesystem("ext4", 16 * 2**20)
    descriptor = os.open(path, DIRECTORY_FLAGS)
    undo.callback(os.close, descriptor)
    return path, descriptor


def handle(path):
    descriptor = os.open(path, DIRECTORY_FLAGS)
    try:
        return handle_of(descriptor)
    finally:
        os.close(descriptor)


def test_a_directory_is_opened_where_another_filesystem_covers_it_and_after_it_was_renamed(disk, mount):
    path, descriptor = disk
    (path / "covered").mkdir()
    (path / "covered/file").touch()
    known = handle(path / "covered")
    (path / "covered").rename(path / "renamed")
    mount("tmpfs", path / "renamed", "-t", "tmpfs")
    found = open_directory(known, descriptor)
    try:
        assert os.listdir(found) == ["file"]
    finally:
        os.close(found)


def test_a_directory_that_was_removed_is_stale_also_when_another_has_its_place(disk):
    path, descriptor = disk
    (path / "one").mkdir()
    known = handle(path / "one")
    (path / "one").rmdir()
    (path / "one").mkdir()

    with pytest.raises(OSError, match="Stale") as error:
        open_directory(known, descriptor)
    assert error.value.errno == errno.ESTALE


def test_a_handle_that_is_too_long_is_refused(disk):
    with pytest.raises(OSError, match="Invalid argument"):
        open_directory(FileHandle(1, "00" * 129), disk[1])
