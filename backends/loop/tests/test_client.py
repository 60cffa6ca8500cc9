"""Locks and copies: the system calls themselves. No root needed."""

import os

import pytest
from csi_multi_loop.client import copy_file, locked

MIB = 2**20


def test_a_directory_that_was_replaced_between_open_and_lock_is_not_held(tmp_path, crash):
    directory = tmp_path / "entry"
    directory.mkdir()

    def replace():
        directory.rename(tmp_path / "gone")
        directory.mkdir()

    with crash.before("fcntl.flock", replace), pytest.raises(FileNotFoundError), locked(directory):
        pass
    with locked(directory), pytest.raises(BlockingIOError), locked(directory):
        pass
    with locked(directory, shared=True), locked(directory, shared=True):
        pass


def test_a_file_that_ends_in_a_hole_or_is_one_is_copied_whole(tmp_path):
    for name, text, size in (("hole", b"", MIB), ("tail", b"data", MIB), ("empty", b"", 0)):
        source, target = tmp_path / name, tmp_path / f"{name}-copy"
        source.write_bytes(text)
        os.truncate(source, size)
        copy_file(source, target)

        assert target.read_bytes() == source.read_bytes()


def test_progress_is_logged_while_a_copy_is_long(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("csi_multi_loop.client.PROGRESS_SECONDS", 0.0)
    caplog.set_level("INFO")
    (tmp_path / "image").write_bytes(b"x" * 65536)
    copy_file(tmp_path / "image", tmp_path / "copy")

    assert "100 %" in caplog.text
