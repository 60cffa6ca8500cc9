"""A device proves which volume it shows: by its NVMe serial number, or on Xen by the note of its opening."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from csi_multi_ebs.devices import DeviceManager

from csi_multi.contract import Blank, InUse, Unavailable

from .fake_kernel import MIB, FakeKernel

ONE, TWO = "vol-0123456789abcdef0", "vol-0fedcba9876543210"


SERIAL, OTHER = ONE.replace("-", ""), TWO.replace("-", "")


BLANK = {"device": "/dev/xvdba", "attachment": "i-1 /dev/xvdba 2026-01-01T00:00:00+00:00", "blank": "unused"}


@pytest.fixture
def kernel(tmp_path: Path) -> FakeKernel:
    return FakeKernel(tmp_path)


@pytest.fixture
def devices(kernel: FakeKernel) -> DeviceManager:
    return DeviceManager(kernel, appear=0.3)


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"disk": "nvme0n1", "sequence": "1", "blank": "perhaps"}'])
def test_a_note_that_is_not_ours_is_none(kernel: FakeKernel, devices: DeviceManager, text: str) -> None:
    kernel.nvme("nvme0n1", SERIAL)
    devices.open_attached(ONE, BLANK, read_only=False)
    (kernel.dev / "csi-multi-ebs" / ONE).write_text(text)

    assert devices.find(ONE) is None
    assert devices.open_attached(ONE, BLANK, read_only=False).blank is Blank.ZEROED


def test_with_several_paths_every_controller_is_asked(kernel: FakeKernel, devices: DeviceManager) -> None:
    controllers = {"device/nvme0/rescan_controller": "", "device/nvme1/rescan_controller": ""}
    kernel.plug("nvme0n1", {"device/serial": SERIAL, "nsid": "1", **controllers})
    kernel.behind["nvme0n1"] = 2 * MIB

    devices.refresh(ONE)
    assert [kernel.text("nvme0n1", name) for name in controllers] == ["1", "1"]


def test_on_xen_the_name_of_the_attachment_leads_to_the_device(kernel: FakeKernel, devices: DeviceManager) -> None:
    kernel.xen("xvda", 51712)
    kernel.xen("xvdba", 268448768)

    device = devices.open_attached(ONE, BLANK, read_only=False)
    assert device.path == kernel.dev / "xvdba"
    assert device.proof == {"device/nodename": "device/vbd/268448768", "diskseq": "2"}
    assert devices.find(ONE) == device
    assert devices.open_attached(ONE, {**BLANK, "device": "/dev/sdba"}, read_only=False) == device
    devices.refresh(ONE)
    devices.close(ONE)
    assert devices.find(ONE) is None


def test_a_disk_of_that_name_that_is_not_xens_is_not_the_device(kernel: FakeKernel, devices: DeviceManager) -> None:
    kernel.plug("xvdba", {"device/model": "something else"})

    with pytest.raises(Unavailable):
        devices.open_attached(ONE, BLANK, read_only=False)


def test_the_serial_wins_over_a_xen_disk_of_the_attachments_name(kernel: FakeKernel, devices: DeviceManager) -> None:
    kernel.xen("xvdba", 268448768)
    kernel.nvme("nvme0n1", SERIAL)

    assert devices.open_attached(ONE, BLANK, read_only=False).path.name == "nvme0n1"


def test_on_xen_another_volume_under_the_same_name_is_not_taken_for_the_one_that_was_open(
    kernel: FakeKernel, devices: DeviceManager
) -> None:
    kernel.xen("xvdba", 268448768)
    devices.open_attached(ONE, BLANK, read_only=False)
    kernel.unplug("xvdba")
    kernel.xen("xvdba", 268448768)

    assert devices.find(ONE) is None
    second = devices.open_attached(TWO, BLANK, read_only=False)
    assert second.proof["diskseq"] == "2"
    assert devices.find(ONE) is None
    assert devices.find(TWO) == second


def test_on_xen_a_disk_belongs_to_the_volume_that_was_opened_last(kernel: FakeKernel, devices: DeviceManager) -> None:
    """A kernel that counts no disks cannot tell that it was replaced."""
    kernel.xen("xvdba", 268448768, counted=False)
    first = devices.open_attached(ONE, BLANK, read_only=False)
    assert first.proof == {"device/nodename": "device/vbd/268448768"}

    assert devices.open_attached(TWO, BLANK, read_only=False).path == first.path
    assert devices.find(ONE) is None
    assert devices.find(TWO) is not None


def test_on_xen_a_disk_that_is_used_as_one_volume_is_not_opened_as_another(
    kernel: FakeKernel, devices: DeviceManager
) -> None:
    kernel.xen("xvdba", 268448768)
    device = devices.open_attached(ONE, BLANK, read_only=False)
    kernel.users.add(device.path)

    with pytest.raises(InUse, match=f"in use as volume {ONE}, but EC2 attached volume {TWO}"):
        devices.open_attached(TWO, BLANK, read_only=False)
    assert devices.find(ONE) == device
    assert devices.find(TWO) is None


def test_a_note_is_written_whole_or_not_at_all(kernel: FakeKernel, devices: DeviceManager) -> None:
    kernel.nvme("nvme0n1", SERIAL)
    devices.open_attached(ONE, BLANK, read_only=False)

    (file,) = (kernel.dev / "csi-multi-ebs").iterdir()
    assert json.loads(file.read_text()) == {"disk": "nvme0n1", "sequence": "1", "blank": "zeroed"}
