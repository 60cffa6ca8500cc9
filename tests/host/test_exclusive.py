"""Locks and exclusive use, while other threads start commands: what was released here is free at once."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from csi_multi_rbd.command import CommandRunner

from csi_multi.contract import Unavailable
from csi_multi.host import exclusive
from csi_multi.host.command import LocalHost

ROUNDS = 3000  # without the rules of exclusive.py and command.py, one in 50 finds its own lock held
STARTERS = {"subprocess": lambda: LocalHost().run("true"), "sh": lambda: CommandRunner().run("true", timeout=60)}


@contextmanager
def commands_running(start) -> Iterator[None]:
    """Let other threads start one command after the other."""
    done = threading.Event()

    def work():
        while not done.is_set():
            start()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for one in threads:
        one.start()
    try:
        yield
    finally:
        done.set()
        for one in threads:
            one.join()


@pytest.fixture
def loop(tmp_path):
    (tmp_path / "image").write_bytes(bytes(1024 * 1024))
    words = ("losetup", "--find", "--show", str(tmp_path / "image"))
    device = Path(subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip())
    yield device
    subprocess.run(("losetup", "--detach", str(device)), check=True)


@pytest.mark.parametrize("how", STARTERS)
def test_a_lock_that_was_released_is_free_while_other_threads_start_commands(how, tmp_path):
    with commands_running(STARTERS[how]):
        for _ in range(ROUNDS):
            descriptor = os.open(tmp_path, os.O_RDONLY)
            try:
                with exclusive.locked(descriptor, fcntl.LOCK_EX):
                    pass
            finally:
                os.close(descriptor)


@pytest.mark.root
@pytest.mark.parametrize("how", STARTERS)
def test_a_device_that_was_closed_is_free_while_other_threads_start_commands(how, loop):
    with commands_running(STARTERS[how]):
        for _ in range(ROUNDS):
            os.close(exclusive.open_device(loop, os.O_RDWR | os.O_EXCL))
            assert not exclusive.is_held(loop)


@pytest.mark.root
@pytest.mark.parametrize("how", STARTERS)
def test_a_command_finds_free_what_was_closed_before_it(how, loop):
    with commands_running(STARTERS[how]):
        for _ in range(40):
            os.close(exclusive.open_device(loop, os.O_RDWR | os.O_EXCL))
            LocalHost().run("mkfs.ext4", "-q", "-F", str(loop))
            LocalHost().run("e2fsck", "-p", str(loop))


@pytest.mark.root
def test_a_device_that_another_holds_is_busy(loop):
    holder = os.open(loop, os.O_RDONLY | os.O_EXCL)
    assert exclusive.is_held(loop)
    with pytest.raises(OSError, match=os.strerror(errno.EBUSY)):
        exclusive.open_device(loop, os.O_RDONLY | os.O_EXCL)
    os.close(holder)
    assert not exclusive.is_held(loop)
    assert not exclusive.is_held(loop.with_name("loop-that-is-not"))


def test_a_device_that_cannot_be_asked_is_not_called_free(tmp_path, monkeypatch):
    def no_descriptor(*_):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "open", no_descriptor)
    with pytest.raises(Unavailable, match="Too many open files; try again"):
        exclusive.is_held(tmp_path)
