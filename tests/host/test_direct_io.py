"""Loop devices over files whose filesystem does not keep what is written by direct I/O. Needs root."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from csi_multi_testing.random_blocks import random_blocks, write_blocks, wrong_blocks

from csi_multi.host import loopdev, sysfs
from csi_multi.host.command import LocalHost
from csi_multi.host.loopfile import LoopDevices
from tests.host.qemu_export import exported

pytestmark = pytest.mark.root

MIB = 2**20
SIZE = 16 * MIB


@pytest.fixture
def shown(tmp_path: Path) -> Iterator[Path]:
    file = tmp_path / "file"
    with file.open("wb") as new:
        new.truncate(SIZE)
    with exported(file, tmp_path / "shown") as path:
        yield path


def direct(device: Path) -> bool:
    return sysfs.attribute(sysfs.number_of(device), "loop/dio") == "1"


def test_blocks_written_at_the_same_time_are_kept_on_a_file_of_qemu(shown: Path) -> None:
    loops = LoopDevices(LocalHost())
    device = loops.open(shown)
    try:
        assert not direct(device)
        blocks = random_blocks(SIZE)
        assert write_blocks(device, blocks) == []
        assert wrong_blocks(device, blocks) == []
    finally:
        loops.close(shown)


def test_the_caller_decides_about_direct_io(shown: Path, tmp_path: Path) -> None:
    host = LocalHost()
    for file, direct_io, expected in (
        (shown, True, True),
        (shown, None, False),
        (tmp_path / "file", False, False),
        (tmp_path / "file", None, True),
    ):
        device = loopdev.attach(host, file, direct_io=direct_io)
        try:
            assert direct(device) is expected
        finally:
            loopdev.detach(host, device)


def test_a_device_that_was_attached_with_direct_io_gives_it_up_when_it_is_opened(shown: Path) -> None:
    loops = LoopDevices(LocalHost())
    device = loopdev.attach(LocalHost(), shown, direct_io=True)
    try:
        with device.open("rb"):
            assert loops.open(shown) == device
        assert not direct(device)
    finally:
        loops.close(shown)
