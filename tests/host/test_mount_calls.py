"""Mounts by calls of the kernel. Needs root."""

from __future__ import annotations

import errno
import os
import subprocess
import threading
from pathlib import Path

import pytest

from csi_multi.host import command, mount_calls, mounts
from csi_multi.host.command import CommandStreams

pytestmark = pytest.mark.root


def mount(target: Path) -> None:
    subprocess.run(("mount", "-t", "tmpfs", "none", str(target)), check=True)


def unmount(target: Path) -> None:
    parent = os.open(target.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        mount_calls.unmount(parent, target.name)
    finally:
        os.close(parent)


def test_a_copy_of_a_descriptor_in_a_process_that_is_being_started_does_not_keep_a_mount_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "mounted"
    target.mkdir()
    mount(target)
    copied, waiting = threading.Event(), threading.Event()
    descriptor = os.open(target, os.O_RDONLY | os.O_CLOEXEC)

    def start(_: CommandStreams) -> subprocess.Popen[bytes]:
        """Start a process that has a copy until the unmounting waits for the starts."""
        process = subprocess.Popen(("cat",), stdin=subprocess.PIPE, pass_fds=(descriptor,))
        copied.set()
        waiting.wait(60)
        process.communicate()
        return process

    def wait_for_starts() -> None:
        waiting.set()
        command.wait_for_starts()

    def run() -> None:
        with command.open_streams(("cat",)) as streams:
            streams.run(start, 60)

    monkeypatch.setattr(mount_calls, "wait_for_starts", wait_for_starts)
    starting = threading.Thread(target=run)
    starting.start()
    try:
        assert copied.wait(60)
        os.close(descriptor)
        unmount(target)
    finally:
        waiting.set()
        starting.join()
        if mounts.at(target):
            subprocess.run(("umount", str(target)), check=True)


def test_a_mount_that_is_in_use_stays(tmp_path: Path) -> None:
    target = tmp_path / "mounted"
    target.mkdir()
    mount(target)
    descriptor = os.open(target, os.O_RDONLY | os.O_CLOEXEC)
    with pytest.raises(OSError, match="busy") as busy:
        unmount(target)
    os.close(descriptor)

    assert busy.value.errno == errno.EBUSY
    assert mounts.at(target)
    unmount(target)
    assert mounts.at(target) is None


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    target, link = tmp_path / "mounted", tmp_path / "link"
    target.mkdir()
    link.symlink_to(target)
    mount(target)
    with pytest.raises(OSError, match="Invalid argument"):
        unmount(link)

    assert mounts.at(target)
    unmount(target)
