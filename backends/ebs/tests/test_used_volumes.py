"""The node engine formats no volume that was used: a loop device stands in for the disk, all else is the driver's."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from csi_multi_ebs import blankness, device_identity
from csi_multi_ebs.backend import EbsBackend
from csi_multi_ebs.config import Config
from csi_multi_ebs.device_identity import NvmeKernel, OpenDevice
from csi_multi_ebs.devices import DeviceManager

from csi_multi.contract import (
    NO_SECRETS,
    AccessMode,
    Capability,
    Device,
    FailedPrecondition,
    Mount,
    Strings,
    Unavailable,
)
from csi_multi.host import loopdev, mounts
from csi_multi.host.command import LocalHost
from csi_multi.node import stage as node_stage
from csi_multi.node import unstage
from csi_multi.node.requests import StageRequest

from .backend_requests import setting
from .fake_kernel import FakeKernel

pytestmark = pytest.mark.root

VOLUME = "vol-0123456789abcdef0"
MIB, SIZE = 1 << 20, 128 << 20
FIRST = {"device": "/dev/xvdba", "attachment": "i-1 /dev/xvdba 2026-01-01T00:00:00+00:00", "blank": "unused"}
LATER = {"device": "/dev/xvdba", "attachment": "i-1 /dev/xvdba 2026-02-02T00:00:00+00:00", "blank": "unknown"}
EXT4 = Capability(mode=AccessMode.SINGLE_NODE_WRITER, mount=Mount(fs_type="ext4"))


class LoopKernel(FakeKernel):
    """Shows a loop device as the volume's NVMe disk."""

    number = NvmeKernel.number
    in_use = NvmeKernel.in_use
    is_node_bound = NvmeKernel.is_node_bound
    set_read_only = NvmeKernel.set_read_only
    read_zeros = NvmeKernel.read_zeros


class LoopDevices(DeviceManager):
    """Proves a loop device by its file, because it has no serial number."""

    file = Path()

    def _device(self, handle: str, disk: str, path: Path, opened: OpenDevice | None) -> Device:
        return replace(super()._device(handle, disk, path, opened), proof={"loop/backing_file": str(self.file)})


class Node:
    """A node with one volume, which is attached, detached and attached again."""

    def __init__(self, root: Path) -> None:
        self.kernel = LoopKernel(root)
        self.file = root / "volume"
        self.staging = root / "staging"
        self.device: Path | None = None
        with self.file.open("wb") as disk:
            disk.truncate(SIZE)
        self.start()

    def start(self) -> None:
        """Start the driver."""
        self.backend = EbsBackend(Config(region="eu-west-1"), setting())
        self.backend._devices = devices = LoopDevices(self.kernel, appear=1)
        devices.file = self.file
        devices.blankness.begin()

    def boot(self) -> None:
        for name in (blankness.NOTES_DIRECTORY, device_identity.NOTES_DIRECTORY):
            shutil.rmtree(self.kernel.dev / name, ignore_errors=True)
        self.start()

    def attach(self) -> None:
        self.device = loopdev.attach(LocalHost(), self.file)
        self.kernel.nvme("nvme1n1", VOLUME.replace("-", ""), size=SIZE, node=False)
        number = self.device.stat().st_rdev
        (self.kernel.sys / "block/nvme1n1/dev").write_text(f"{os.major(number)}:{os.minor(number)}\n")
        os.mknod(self.kernel.dev / "nvme1n1", stat.S_IFBLK | 0o600, number)

    def detach(self) -> None:
        if self.device:
            self.kernel.unplug("nvme1n1")
            loopdev.detach(LocalHost(), self.device)
            self.device = None

    def stage(self, context: Strings) -> None:
        self.staging.mkdir(exist_ok=True)
        request = StageRequest(handle=VOLUME, staging=self.staging, capability=EXT4, publish_context=context)
        node_stage.stage(LocalHost(), self.backend, request)

    def unstage(self) -> None:
        unstage.unstage(LocalHost(), self.backend, VOLUME, self.staging)

    def refuses(self, context: Strings) -> None:
        """Require that the volume is refused, and not changed."""
        before = self.file.read_bytes()
        with pytest.raises(FailedPrecondition, match=r"used before or is a copy|holds data"):
            self.stage(context)
        assert self.file.read_bytes() == before
        self.unstage()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    if mounts.at(node.staging):
        node.unstage()
    node.detach()


@pytest.mark.parametrize("contents", ["filesystem without its first MiB", "raw data at 20 MiB"])
def test_a_used_volume_whose_beginning_shows_nothing_is_never_formatted(node: Node, contents: str) -> None:
    node.attach()
    if contents.startswith("raw"):
        node.backend._devices.open_attached(VOLUME, FIRST, read_only=False, block=True)
        node.backend.formatted(VOLUME)  # as the engine does before it publishes raw blocks
        node.backend.close_device(VOLUME)
        with node.file.open("r+b") as disk:
            disk.seek(20 * MIB + 8192)
            disk.write(b"raw data" * 512)
    else:
        node.stage(FIRST)
        for number in range(300):
            (node.staging / str(number)).write_text("data")
        node.unstage()
        with node.file.open("r+b") as disk:
            disk.write(bytes(MIB))

    node.refuses(FIRST)  # kubelet repeats the context of the attachment
    node.start()
    node.refuses(FIRST)
    node.boot()
    node.refuses(FIRST)
    node.detach()
    node.attach()
    node.refuses(LATER)
    node.boot()
    node.refuses(LATER)


def test_a_volume_that_was_used_as_raw_blocks_while_it_was_being_read_is_not_formatted(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.attach()
    with monkeypatch.context() as short:
        short.setattr(blankness, "READ_SECONDS", -1.0)
        for done in (1, 2, 3):
            with pytest.raises(Unavailable, match=f": {done} of 128 MiB"):
                node.stage(LATER)
    device = node.backend._devices.open_attached(VOLUME, LATER, read_only=False, block=True)
    node_stage.record_use(node.backend, VOLUME, device, NO_SECRETS)  # as the engine does before it publishes raw blocks
    node.backend.close_device(VOLUME)
    with node.file.open("r+b") as disk:
        disk.seek(2 * MIB + 8192)
        disk.write(b"raw data" * 512)

    node.refuses(LATER)


def test_a_volume_whose_first_mkfs_never_ran_gets_its_filesystem_on_the_next_node(node: Node) -> None:
    node.attach()

    while not mounts.at(node.staging):
        with suppress(Unavailable):
            node.stage(LATER)
    (node.staging / "file").write_text("data")
    node.unstage()
    node.boot()
    node.stage(LATER)
    assert (node.staging / "file").read_text() == "data"


def test_a_volume_whose_node_was_booted_before_its_first_mkfs_gets_its_filesystem(node: Node) -> None:
    node.attach()
    node.boot()

    node.stage(FIRST)
    assert mounts.at(node.staging)


def test_a_volume_whose_driver_was_killed_during_the_first_mkfs_gets_its_filesystem(node: Node) -> None:
    node.attach()
    node.backend._devices.open_attached(VOLUME, FIRST, read_only=False)
    node.backend.formatting(VOLUME)
    with node.file.open("r+b") as disk:
        disk.seek(100 * MIB)
        disk.write(b"a part of an inode table" * 512)
    node.start()

    node.stage(FIRST)
    (node.staging / "file").write_text("data")
    node.unstage()
    node.stage(FIRST)
    assert (node.staging / "file").read_text() == "data"
