"""The files of the directory: reserved, locked, and in memory only."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Any

import pytest
from csi_multi.contract import (
    Busy,
    Unavailable,
)
from csi_multi.host.command import LocalHost

MIB = 2**20


def test_all_of_its_memory_is_reserved_when_it_is_made(backend: Any, memory: Path, volume_request: Any) -> None:
    backend.create_volume(volume_request("pvc-1", MIB))

    assert (memory / "pvc-1.ramdisk").stat().st_blocks * 512 == MIB


def test_an_image_that_is_removed_before_it_is_locked_is_not_built_upon(
    backend: Any, memory: Path, volume_request: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock_after_a_removal(descriptor: int, lock: int) -> None:
        (memory / "pvc-1.ramdisk").unlink()
        monkeypatch.undo()

    monkeypatch.setattr(fcntl, "flock", flock_after_a_removal)

    with pytest.raises(Busy):
        backend.create_volume(volume_request("pvc-1"))
    assert backend.create_volume(volume_request("pvc-1"))


def test_a_directory_on_disk_is_refused_with_the_remedy(tmp_path: Path, connect: Any, volume_request: Any) -> None:
    disk = connect(tmp_path)

    for attempt in (
        disk.check,
        disk.resume,
        lambda: disk.create_volume(volume_request("pvc-1")),
        lambda: disk.find_volume("pvc-1"),
    ):
        with pytest.raises(Unavailable, match="mount -t tmpfs"):
            attempt()
    with pytest.raises(Unavailable, match="No such file"):
        connect(tmp_path / "absent").check()
    assert os.listdir(tmp_path) == []


@pytest.mark.root
def test_a_tmpfs_without_a_limit_is_refused(small_tmpfs: Path, connect: Any) -> None:
    LocalHost().run("mount", "-o", "remount,size=0", str(small_tmpfs))

    with pytest.raises(Unavailable, match="with a size limit"):
        connect(small_tmpfs).check()


@pytest.mark.root
def test_what_a_start_could_not_do_without_the_tmpfs_is_done_when_it_is_mounted(tmp_path: Path, connect: Any) -> None:
    started = connect(tmp_path)
    with pytest.raises(Unavailable, match="mount -t tmpfs"):
        started.resume()

    LocalHost().run("mount", "-t", "tmpfs", "-o", "size=8M", "tmpfs", str(tmp_path))
    try:
        (tmp_path / "half.ramdisk").touch()
        started.check()
        assert os.listdir(tmp_path) == []

        (tmp_path / "half.ramdisk").touch()
        started.check()
        assert os.listdir(tmp_path) == ["half.ramdisk"], "it is repeated until it succeeded, and no longer"
    finally:
        LocalHost().run("umount", str(tmp_path))
