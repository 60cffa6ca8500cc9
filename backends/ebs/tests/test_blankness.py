"""A volume that was used is never blank again, and one whose first mkfs never ran can still be formatted."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from csi_multi_ebs import blankness
from csi_multi_ebs.blankness import Blankness, FormatNote, FormatNotes
from csi_multi_ebs.device_identity import NvmeKernel
from csi_multi_ebs.devices import DeviceManager

from csi_multi.contract import Blank, Device, FailedPrecondition, Unavailable

from .fake_kernel import MIB, FakeKernel

ONE, TWO = "vol-0123456789abcdef0", "vol-0fedcba9876543210"
DISK = "nvme1n1"
START = 0  # where the data of a used volume begins


def context(blank: str, since: str = "2026-01-01T00:00:00+00:00") -> dict[str, str]:
    return {"device": "/dev/xvdba", "attachment": f"i-1 /dev/xvdba {since}", "blank": blank}


FIRST = context("unused")
LATER = context("unknown", "2026-02-02T00:00:00+00:00")


@pytest.fixture
def kernel(tmp_path: Path) -> FakeKernel:
    return FakeKernel(tmp_path)


@pytest.fixture
def devices(kernel: FakeKernel) -> DeviceManager:
    """A node whose driver has started, and to which nothing is attached."""
    devices = DeviceManager(kernel, appear=0.3)
    devices.blankness.begin()
    return devices


def plug(kernel: FakeKernel, data: int | None = None, size: int = MIB, most: int = MIB) -> None:
    """Attach the volume, with data at this byte."""
    kernel.nvme(DISK, ONE.replace("-", ""), size=size)
    kernel.contents[DISK] = (size if data is None else data, most)


def opened(devices: DeviceManager, publish: dict[str, str], *, read_only: bool = False, block: bool = False) -> Device:
    device = devices.open_attached(ONE, publish, read_only=read_only, block=block)
    assert devices.find(ONE) == device
    return device


def boot(kernel: FakeKernel) -> DeviceManager:
    """Boot the node: /dev is new, and what is attached shows before the driver starts."""
    for directory in kernel.dev.glob("csi-multi-ebs*"):
        shutil.rmtree(directory)
    devices = DeviceManager(kernel, appear=0.3)
    devices.blankness.begin()
    return devices


def test_the_first_attachment_of_a_volume_is_blank_without_being_read(
    kernel: FakeKernel, devices: DeviceManager
) -> None:
    plug(kernel, data=START)  # the node engine reads ends and samples as well

    assert opened(devices, FIRST).blank is Blank.ZEROED
    assert opened(devices, FIRST).blank is Blank.ZEROED


def test_a_volume_that_was_used_is_not_blank_when_kubelet_repeats_the_context_of_its_first_attachment(
    kernel: FakeKernel, devices: DeviceManager
) -> None:
    plug(kernel)
    opened(devices, FIRST)
    devices.blankness.formatting(ONE)
    assert opened(devices, FIRST).blank is Blank.INTERRUPTED
    devices.blankness.formatted(ONE)
    devices.close(ONE)

    for driver in (devices, DeviceManager(kernel, appear=0.3)):
        assert opened(driver, FIRST).blank is Blank.NEVER
        with pytest.raises(FailedPrecondition, match="may hold data"):
            driver.blankness.formatting(ONE)


def test_a_volume_that_was_used_is_not_blank_after_a_boot_though_all_notes_are_gone(
    kernel: FakeKernel, devices: DeviceManager
) -> None:
    plug(kernel, data=MIB // 2)
    opened(devices, FIRST)
    devices.blankness.formatted(ONE)
    devices.close(ONE)

    assert opened(boot(kernel), FIRST).blank is Blank.NEVER


def test_a_volume_that_was_used_elsewhere_is_not_blank(kernel: FakeKernel, devices: DeviceManager) -> None:
    plug(kernel, data=20 * MIB, size=32 * MIB, most=32 * MIB)

    assert opened(devices, LATER).blank is Blank.NEVER


def test_a_note_of_an_interrupted_mkfs_holds_for_its_attachment_only(
    kernel: FakeKernel, devices: DeviceManager
) -> None:
    """The volume was formatted and used on another node, and came back."""
    plug(kernel)
    opened(devices, FIRST)
    devices.blankness.formatting(ONE)
    devices.close(ONE)
    kernel.unplug(DISK)
    plug(kernel, data=START)

    assert opened(devices, LATER).blank is Blank.NEVER


def test_a_volume_that_no_node_has_formatted_is_read_on_the_next_one_and_then_blank(
    kernel: FakeKernel, devices: DeviceManager
) -> None:
    plug(kernel)

    assert opened(devices, LATER).blank is Blank.ZEROED
    assert devices.blankness.has_data(ONE) is False
    devices.blankness.formatting(ONE)
    assert opened(devices, LATER).blank is Blank.INTERRUPTED


def test_a_node_that_was_booted_before_the_first_mkfs_reads_the_volume(
    kernel: FakeKernel, devices: DeviceManager
) -> None:
    plug(kernel)
    opened(devices, FIRST)

    after = boot(kernel)
    assert opened(after, FIRST).blank is Blank.ZEROED
    assert after.blankness.has_data(ONE) is False


def test_reading_a_large_volume_goes_on_where_the_last_call_ended(kernel: FakeKernel, devices: DeviceManager) -> None:
    plug(kernel, size=4 * MIB, most=MIB)

    for done in (1, 2, 3):
        with pytest.raises(Unavailable, match=f"{done} of 4 MiB until now"):
            devices.open_attached(ONE, LATER, read_only=False)
    assert opened(devices, LATER).blank is Blank.ZEROED


def test_reading_begins_again_when_the_volume_was_attached_elsewhere_meanwhile(
    kernel: FakeKernel, devices: DeviceManager
) -> None:
    plug(kernel, size=4 * MIB, most=MIB)
    for _ in range(3):
        with pytest.raises(Unavailable):
            devices.open_attached(ONE, LATER, read_only=False)
    kernel.contents[DISK] = (START, MIB)

    assert opened(devices, context("unknown", "2026-03-03T00:00:00+00:00")).blank is Blank.NEVER


def test_a_volume_that_cannot_be_formatted_anyway_is_not_read(kernel: FakeKernel, devices: DeviceManager) -> None:
    plug(kernel, size=4 * MIB, most=MIB)

    assert opened(devices, LATER, block=True).blank is Blank.NEVER
    assert opened(devices, LATER, read_only=True).blank is Blank.NEVER
    assert opened(devices, context("never")).blank is Blank.NEVER


def test_a_disk_that_was_there_before_the_first_note_is_read(kernel: FakeKernel) -> None:
    plug(kernel, data=START)

    assert opened(DeviceManager(kernel, appear=0.3), FIRST).blank is Blank.NEVER


def test_a_xen_disk_is_blank_only_if_no_disk_had_its_name_before(kernel: FakeKernel) -> None:
    devices = DeviceManager(kernel, appear=0.3)
    kernel.xen("xvdba", 51792)
    kernel.contents["xvdba"] = (START, MIB)
    devices.blankness.begin()

    assert devices.open_attached(ONE, FIRST, read_only=False).blank is Blank.NEVER
    kernel.xen("xvdbb", 51793)
    other = {**FIRST, "device": "/dev/xvdbb"}
    assert devices.open_attached(TWO, other, read_only=False).blank is Blank.ZEROED


def test_a_note_that_cannot_be_read_says_that_the_volume_was_used(kernel: FakeKernel, devices: DeviceManager) -> None:
    plug(kernel)
    opened(devices, FIRST)
    file = kernel.dev / blankness.NOTES_DIRECTORY / ONE
    for text in ('{"blank": "perhaps"}', "", '{"blank": ', "[]", "{}"):
        file.write_text(text)
        assert opened(devices, FIRST).blank is Blank.NEVER


def test_mkfs_is_not_noted_for_a_volume_that_was_not_opened(devices: DeviceManager) -> None:
    with pytest.raises(FailedPrecondition, match="stage it again"):
        devices.blankness.formatting(ONE)


def test_beyond_a_thousand_notes_only_those_of_attached_volumes_stay(
    kernel: FakeKernel, devices: DeviceManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blankness, "MAX_NOTES", 3)
    notes = FormatNotes(kernel.dev)
    for number in range(5):
        notes.write(f"vol-{number:017x}", FormatNote(blank=Blank.NEVER, attachment=""))
    plug(kernel)
    opened(devices, FIRST)
    devices.blankness.formatted(ONE)
    opened(devices, FIRST)

    left = sorted(one.name for one in (kernel.dev / blankness.NOTES_DIRECTORY).iterdir())
    assert left == [blankness.PRESENT, ONE]


def test_the_first_byte_that_is_not_zero_is_found_wherever_it_is(tmp_path: Path) -> None:
    file = tmp_path / "disk"
    size = 5 * MIB + 4096
    for offset in (0, 511, MIB - 1, MIB, 3 * MIB + 17, size - 1):
        with file.open("wb") as disk:
            disk.truncate(size)
            disk.seek(offset)
            disk.write(b"x")
        zeros, data = NvmeKernel().read_zeros(file, 0, size, 60.0)
        assert (zeros, data) == (offset // MIB * MIB, True)
        assert NvmeKernel().read_zeros(file, 0, offset // MIB * MIB, 60.0) == (offset // MIB * MIB, False)
    assert NvmeKernel().read_zeros(file, 0, size, -1.0)[0] == MIB


def test_the_node_notes_its_disks_when_it_is_asked_who_it_is(kernel: FakeKernel) -> None:
    Blankness(kernel).begin()
    plug(kernel, data=START)
    Blankness(kernel).begin()  # another driver, or the same after a restart

    assert opened(DeviceManager(kernel, appear=0.3), FIRST).blank is Blank.ZEROED
