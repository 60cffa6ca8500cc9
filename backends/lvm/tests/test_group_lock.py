"""The lock of a volume group, as lvm takes it."""

from __future__ import annotations

import fcntl
import threading
from pathlib import Path

import pytest
from csi_multi_lvm import group_lock
from csi_multi_lvm.group_lock import locked

from csi_multi.contract import Busy, Unavailable

from .group import EXTENT, Group
from .volume_steps import Died


def test_one_at_a_time_has_the_lock(tmp_path: Path) -> None:
    with (
        locked(tmp_path, "vg0", 0),
        pytest.raises(Busy, match="locked by other lvm commands"),
        locked(tmp_path, "vg0", 0),
    ):
        pass
    with locked(tmp_path, "vg0", 0), locked(tmp_path, "vg1", 0):
        pass


def test_an_error_in_the_block_gives_the_lock_back(tmp_path: Path) -> None:
    with pytest.raises(Died), locked(tmp_path, "vg0", 0):
        raise Died
    with locked(tmp_path, "vg0", 0):
        pass


@pytest.mark.parametrize("made_anew", [False, True])
def test_a_file_that_lvm_has_removed_is_not_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made_anew: bool
) -> None:
    """lvm removes the file after it has unlocked it, perhaps between the opening here and the lock."""
    file, flock, removed = tmp_path / "V_vg0", fcntl.flock, []

    def late(descriptor: int, operation: int) -> None:
        if not removed and operation & fcntl.LOCK_EX:
            removed.append(file.unlink())
            if made_anew:
                file.touch()
        flock(descriptor, operation)

    monkeypatch.setattr(group_lock.fcntl, "flock", late)
    with locked(tmp_path, "vg0", 5), pytest.raises(Busy), locked(tmp_path, "vg0", 0):
        pass


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="mount the directory"), locked(tmp_path / "none", "vg0", 0):
        pass


@pytest.mark.devicemapper
def test_lvm_waits_for_the_lock(group: Group) -> None:
    name = "by-hand"
    work = threading.Thread(
        target=group.lvm.run, args=("lvcreate", "-qq", "-an", "-Zn", "-Wn", "-L", f"{EXTENT}b", "-n", name, group.name)
    )
    with locked(Path("/run/lock/lvm"), group.name, 10):
        work.start()
        work.join(5)
        assert work.is_alive()
        assert group.left() == []
    work.join(60)

    assert group.left() == [name]
    group.lvm.run("lvremove", "-qq", "-y", f"{group.name}/{name}")
