"""A device that does not answer: what waits for it in the kernel is given up, and its end is not taken for granted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from csi_multi.contract import Blank, CommandTimedOut, InUse
from csi_multi.host import exclusive, loopfile, mounts
from csi_multi.host.command import LocalHost
from csi_multi.node import blank_check, mounting
from tests.host.hanging import HangingLoop, hanging_loop, within

pytestmark = pytest.mark.root

LIMIT = 60.0
T = TypeVar("T")


class ImpatientHost(LocalHost):
    def call(self, function: Callable[[], T], *words: str, **options: Any) -> T:
        return super().call(function, *words, **{**options, "timeout": 0.5})


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[HangingLoop]:
    with hanging_loop(tmp_path / "storage") as made:
        LocalHost().run("mkfs.ext4", "-q", "-O", "^has_journal", str(made.device))
        yield made


@pytest.fixture
def target(tmp_path: Path) -> Path:
    directory = tmp_path / "target"
    directory.mkdir()
    return directory


def test_an_unmount_that_hangs_is_given_up_and_the_device_stays_in_use(loop: HangingLoop, target: Path) -> None:
    device = loopfile.device_of(loop.device, Blank.NEVER)
    mounting.mount(LocalHost(), str(loop.device), target, "ext4", "rw")
    (target / "file").write_text("bytes")
    with loop.hanging():
        with pytest.raises(CommandTimedOut, match="umount did not finish"):
            within(LIMIT, lambda: mounting.unmount(ImpatientHost(), target))
        with pytest.raises(InUse, match="is in use on this node"):
            within(LIMIT, lambda: blank_check.await_release("v", device))
    deadline = time.monotonic() + LIMIT
    while exclusive.is_held(loop.device):
        assert time.monotonic() < deadline
        time.sleep(0.01)

    assert mounts.at(target) is None
    mounting.mount(LocalHost(), str(loop.device), target, "ext4", "ro")
    assert (target / "file").read_text() == "bytes"
    mounting.unmount(LocalHost(), target)


def test_a_mount_that_hangs_is_given_up_and_never_appears(loop: HangingLoop, target: Path) -> None:
    with loop.hanging():
        for _ in range(2):
            with pytest.raises(CommandTimedOut, match="mount did not finish"):
                within(LIMIT, lambda: mounting.mount(ImpatientHost(), str(loop.device), target, "ext4", "rw"))
    deadline = time.monotonic() + LIMIT
    while exclusive.is_held(loop.device):
        assert time.monotonic() < deadline
        time.sleep(0.01)

    assert mounts.at(target) is None
    mounting.mount(LocalHost(), str(loop.device), target, "ext4", "rw")
    assert mounts.at(target)
    mounting.unmount(LocalHost(), target)
