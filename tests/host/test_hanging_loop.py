"""A loop device whose backing file hangs or fails, and that is somebody else's. Needs root."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from csi_multi.contract import Blank, CommandTimedOut, Unavailable
from csi_multi.host import loopdev
from csi_multi.host.command import LocalHost
from csi_multi.host.loopfile import LoopDevices, device_of
from csi_multi.node import readonly_loop
from tests.host.hanging import MIB, HangingLoop, hanging_loop, within

pytestmark = pytest.mark.root

LIMIT = 20.0  # seconds for what must not wait for the device at all; what did would wait for ever


@pytest.fixture
def foreign(tmp_path: Path) -> Iterator[HangingLoop]:
    with hanging_loop(tmp_path / "elsewhere" / "v") as loop:
        yield loop


@pytest.fixture
def image(tmp_path: Path) -> Path:
    file = tmp_path / "pool" / "w" / "image"
    file.parent.mkdir(parents=True)
    file.write_bytes(bytes(MIB))
    return file


@pytest.fixture
def loops() -> LoopDevices:
    return LoopDevices(LocalHost(), name_parts=2)


def lifecycle(loops: LoopDevices, image: Path) -> None:
    """Open, find, grow and close a device, with a read-only device over it, as a raw block volume has."""
    path = loops.open(image)
    device = device_of(path, Blank.NEVER)
    read_only = readonly_loop.read_only_node(LocalHost(), device)
    assert readonly_loop.loops_over(device) == [read_only]
    readonly_loop.detach_unused(LocalHost(), readonly_loop.loops_over(device))
    os.truncate(image, 2 * MIB)
    loops.refresh(image)
    assert loops.find(image) == path
    loops.close(image)
    assert loops.find(image) is None


@pytest.mark.parametrize("state", ["hanging", "failing"])
def test_another_loop_device_that_does_not_answer_concerns_nobody(
    foreign: HangingLoop, loops: LoopDevices, image: Path, state: str
) -> None:
    with getattr(foreign, state)():
        within(LIMIT, lambda: lifecycle(loops, image))


@pytest.mark.parametrize("state", ["hanging", "failing"])
def test_a_device_that_may_be_a_files_and_does_not_answer_holds_up_that_file_only(
    foreign: HangingLoop, loops: LoopDevices, image: Path, tmp_path: Path, state: str
) -> None:
    same_name = tmp_path / "pool" / "v" / "image"
    same_name.parent.mkdir()
    same_name.write_bytes(bytes(MIB))
    with getattr(foreign, state)():
        for _ in range(2):
            with pytest.raises(Unavailable, match=str(foreign.device)):
                within(LIMIT, lambda: loops.find(same_name))
        within(LIMIT, lambda: lifecycle(loops, image))
    deadline = time.monotonic() + LIMIT
    while True:  # the thread that asked needs a moment to notice the answer
        try:
            assert loops.find(same_name) is None
            return
        except Unavailable:
            assert time.monotonic() < deadline
            time.sleep(0.05)


@pytest.mark.parametrize("state", ["hanging", "failing"])
def test_a_file_with_two_names_is_found_under_the_other_one(
    foreign: HangingLoop, loops: LoopDevices, image: Path, tmp_path: Path, state: str
) -> None:
    other = tmp_path / "data.img"
    other.hardlink_to(image)
    device = loopdev.attach(LocalHost(), other)
    try:
        with getattr(foreign, state)():
            assert within(LIMIT, lambda: loopdev.find(image, name_parts=2)) == [device]
    finally:
        loopdev.detach(LocalHost(), device)


def test_an_attachment_that_hangs_is_given_up_and_its_device_is_found_later(tmp_path: Path) -> None:
    class ImpatientHost(LocalHost):
        def call(self, function: Callable[[], Any], *words: str, **options: Any) -> Any:
            return super().call(function, *words, **{**options, "timeout": 0.5})

    with hanging_loop(tmp_path / "disk", visible=True) as disk:
        file = tmp_path / "disk" / "image"
        with disk.hanging(), pytest.raises(CommandTimedOut, match="losetup did not finish"):
            within(LIMIT, lambda: loopdev.attach(ImpatientHost(), file, direct_io=False))
        deadline = time.monotonic() + LIMIT
        while not (found := set(loopdev.find(file)) - {disk.device}):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert len(found) == 1
        loopdev.detach(LocalHost(), found.pop())
