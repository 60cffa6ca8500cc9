"""A volume's device is identified by its proof, whatever device names and links show."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from csi_multi_ebs import devices as devices_module
from csi_multi_ebs.devices import DeviceManager

from csi_multi.contract import Blank, FailedPrecondition, InUse, NotFound, Unavailable
from csi_multi.host import release

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


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release, "RELEASE_SECONDS", 0.2)
    monkeypatch.setattr(devices_module, "GROW_SECONDS", 0.2)


def read_only(kernel: FakeKernel, disk: str) -> bool:
    return kernel.text(disk, "ro") == "1"


def test_the_disk_with_the_volumes_serial_is_the_device(kernel: FakeKernel, devices: DeviceManager) -> None:
    kernel.nvme("nvme0n1", OTHER)
    kernel.nvme("nvme1n1", SERIAL)

    device = devices.open_attached(ONE, BLANK, read_only=False)
    assert device.path == kernel.dev / "nvme1n1"
    assert device.number == kernel.text("nvme1n1", "dev")
    assert device.proof == {"device/serial": SERIAL}
    assert (device.blank, device.read_only) == (Blank.ZEROED, False)
    assert devices.find(ONE) == device
    assert devices.open_attached(ONE, BLANK, read_only=False) == device


def test_the_serial_of_a_short_id_is_proven_with_the_blanks_that_the_kernel_shows(
    kernel: FakeKernel, devices: DeviceManager
) -> None:
    kernel.nvme("nvme0n1", "vol0a1b2c3d")

    device = devices.open_attached("vol-0a1b2c3d", BLANK, read_only=False)
    assert device.proof == {"device/serial": "vol0a1b2c3d         "}


def test_a_volume_whose_id_only_begins_alike_is_another(kernel: FakeKernel, devices: DeviceManager) -> None:
    kernel.nvme("nvme0n1", SERIAL)

    with pytest.raises(NotFound, match="not attached"):
        devices.open_attached("vol-01234567", {}, read_only=False)


def test_a_disk_whose_serial_only_begins_as_the_volumes_id_is_another(
    kernel: FakeKernel, devices: DeviceManager
) -> None:
    kernel.nvme("nvme0n1", "vol01234567")
    kernel.nvme("nvme1n1", "vol")

    with pytest.raises(NotFound, match="not attached"):
        devices.open_attached(ONE, {}, read_only=False)
    assert devices.find(ONE) is None


def test_a_path_to_a_namespace_with_several_is_no_device(kernel: FakeKernel, devices: DeviceManager) -> None:
    kernel.nvme("nvme0c0n1", SERIAL, node=False)
    kernel.nvme("nvme0c1n1", SERIAL, node=False)
    kernel.nvme("nvme0n1", SERIAL)

    assert devices.open_attached(ONE, BLANK, read_only=False).path.name == "nvme0n1"


def test_two_disks_that_say_to_be_the_same_volume_are_refused(kernel: FakeKernel, devices: DeviceManager) -> None:
    kernel.nvme("nvme0n1", SERIAL)
    kernel.nvme("nvme1n1", SERIAL)

    for look in (lambda: devices.open_attached(ONE, BLANK, read_only=False), lambda: devices.find(ONE)):
        with pytest.raises(FailedPrecondition, match="nvme0n1 and nvme1n1 both"):
            look()


@pytest.mark.parametrize("target", ["nvme0n1", "nvme7n1"])
def test_a_link_by_id_that_points_elsewhere_misleads_nobody(
    kernel: FakeKernel, devices: DeviceManager, target: str
) -> None:
    by_id = kernel.dev / "disk" / "by-id"
    by_id.mkdir(parents=True)
    (by_id / f"nvme-Amazon_Elastic_Block_Store_{SERIAL}").symlink_to(f"../../{target}")
    kernel.nvme("nvme0n1", OTHER)

    with pytest.raises(Unavailable, match=f"shows: {OTHER}"):
        devices.open_attached(ONE, BLANK, read_only=False)
    kernel.nvme("nvme1n1", SERIAL)
    assert devices.open_attached(ONE, BLANK, read_only=False).path.name == "nvme1n1"


def test_volumes_that_swapped_their_names_are_told_apart(kernel: FakeKernel, devices: DeviceManager) -> None:
    kernel.nvme("nvme0n1", SERIAL)
    kernel.nvme("nvme1n1", OTHER)
    for handle in (ONE, TWO):
        devices.open_attached(handle, BLANK, read_only=False)
    for disk in ("nvme0n1", "nvme1n1"):
        kernel.unplug(disk)
    kernel.nvme("nvme0n1", OTHER)
    kernel.nvme("nvme1n1", SERIAL)

    found = {handle: devices.open_attached(handle, BLANK, read_only=False) for handle in (ONE, TWO)}
    assert {handle: device.path.name for handle, device in found.items()} == {ONE: "nvme1n1", TWO: "nvme0n1"}
    assert {handle: devices.find(handle) for handle in found} == found


def test_a_device_that_appears_late_is_waited_for(kernel: FakeKernel) -> None:
    devices = DeviceManager(kernel, appear=60)
    late = threading.Timer(0.3, kernel.nvme, ("nvme0n1", SERIAL))
    late.start()
    started = time.monotonic()

    assert devices.open_attached(ONE, BLANK, read_only=False).path.name == "nvme0n1"
    assert time.monotonic() - started < 40
    late.join()


def test_a_node_in_dev_that_appears_late_is_waited_for(kernel: FakeKernel) -> None:
    kernel.nvme("nvme0n1", SERIAL, node=False)
    number = kernel.text("nvme0n1", "dev") or ""
    late = threading.Timer(0.3, (kernel.dev / "nvme0n1").write_text, (number,))
    late.start()

    assert DeviceManager(kernel, appear=10).open_attached(ONE, BLANK, read_only=False).number == number
    late.join()


def test_a_device_that_stays_away_may_still_come(devices: DeviceManager) -> None:
    with pytest.raises(Unavailable, match=r"attached as /dev/xvdba, has not appeared .* shows: none"):
        devices.open_attached(ONE, BLANK, read_only=False)


def test_a_volume_that_nobody_attached_is_not_waited_for(kernel: FakeKernel) -> None:
    started = time.monotonic()

    with pytest.raises(NotFound, match="not attached to this node"):
        DeviceManager(kernel, appear=60).open_attached(ONE, {}, read_only=False)
    assert time.monotonic() - started < 40


def test_a_container_without_the_nodes_dev_is_told_what_to_mount(kernel: FakeKernel, devices: DeviceManager) -> None:
    kernel.nvme("nvme0n1", SERIAL, node=False)

    with pytest.raises(FailedPrecondition, match=r"mount the node's /dev \(devtmpfs\)"):
        devices.open_attached(ONE, BLANK, read_only=False)
    (kernel.dev / "nvme0n1").write_text("259:99")  # left of a disk that is gone
    with pytest.raises(FailedPrecondition, match="nvme0n1 is not the device node of disk"):
        devices.open_attached(ONE, BLANK, read_only=False)
    assert devices.find(ONE) is None
    devices.close(ONE)


def test_a_dev_that_cannot_be_written_is_told(kernel: FakeKernel, devices: DeviceManager) -> None:
    kernel.nvme("nvme0n1", SERIAL)
    (kernel.dev / "csi-multi-ebs").touch()

    with pytest.raises(Unavailable, match="into the container of the driver, writable"):
        devices.open_attached(ONE, BLANK, read_only=False)


@pytest.mark.parametrize("what", ["dev/csi-multi-ebs/" + ONE, "sys/block/nvme0n1/device/serial"])
def test_what_cannot_be_read_is_not_closed_or_absent(
    kernel: FakeKernel, devices: DeviceManager, tmp_path: Path, what: str
) -> None:
    kernel.nvme("nvme0n1", SERIAL)
    devices.open_attached(ONE, BLANK, read_only=False)
    (tmp_path / what).unlink()
    (tmp_path / what).mkdir()  # as unreadable for root as for anybody

    for call in (devices.find, devices.close):
        with pytest.raises(Unavailable, match=f"{what}: Is a directory"):
            call(ONE)


def test_a_node_without_sys_sees_no_disks_and_says_so(kernel: FakeKernel, devices: DeviceManager) -> None:
    (kernel.sys / "block").rmdir()

    with pytest.raises(Unavailable, match="block: No such file"):
        devices.find(ONE)


def test_a_device_is_found_from_open_to_close_and_not_because_it_is_attached(
    kernel: FakeKernel, devices: DeviceManager
) -> None:
    kernel.nvme("nvme0n1", SERIAL)
    assert devices.find(ONE) is None

    device = devices.open_attached(ONE, BLANK, read_only=False)
    assert DeviceManager(kernel).find(ONE) == device  # the next process
    for _ in range(2):
        devices.close(ONE)
        assert devices.find(ONE) is None


def test_a_device_in_use_is_found_though_the_note_was_lost(kernel: FakeKernel, devices: DeviceManager) -> None:
    kernel.nvme("nvme0n1", SERIAL)
    device = devices.open_attached(ONE, BLANK, read_only=False)
    (kernel.dev / "csi-multi-ebs" / ONE).unlink()
    assert devices.find(ONE) is None
    kernel.users.add(device.path)

    found = devices.find(ONE)
    assert found is not None
    assert (found.number, found.proof) == (device.number, device.proof)
    assert found.blank is Blank.NEVER


@pytest.mark.parametrize(("said", "blank"), [("unused", Blank.ZEROED), ("never", Blank.NEVER), ("zeroed", Blank.NEVER)])
def test_only_what_the_controller_calls_unused_may_be_formatted_without_being_read(
    kernel: FakeKernel, devices: DeviceManager, said: str, blank: Blank
) -> None:
    devices.blankness.begin()
    kernel.nvme("nvme0n1", SERIAL)
    kernel.contents["nvme0n1"] = (0, MIB)

    device = devices.open_attached(ONE, {**BLANK, "blank": said}, read_only=False)
    assert device.blank is blank


@pytest.mark.parametrize("context", [{"device": "/dev/xvdba"}, {"device": "/dev/xvdba", "blank": "zeroed"}])
def test_a_context_of_an_earlier_version_proves_nothing(
    kernel: FakeKernel, devices: DeviceManager, context: dict[str, str]
) -> None:
    devices.blankness.begin()
    kernel.nvme("nvme0n1", SERIAL)

    assert devices.open_attached(ONE, context, read_only=False).blank is Blank.NEVER


def test_a_device_opened_read_only_is_so_until_it_is_opened_for_writing_or_closed(
    kernel: FakeKernel, devices: DeviceManager
) -> None:
    kernel.nvme("nvme0n1", SERIAL)
    assert devices.open_attached(ONE, BLANK, read_only=True).read_only
    assert read_only(kernel, "nvme0n1")
    assert not devices.open_attached(ONE, BLANK, read_only=False).read_only
    assert not read_only(kernel, "nvme0n1")

    devices.open_attached(ONE, BLANK, read_only=True)
    devices.close(ONE)
    assert not read_only(kernel, "nvme0n1")


@pytest.mark.usefixtures("impatient")
def test_a_device_in_use_is_neither_closed_nor_switched(kernel: FakeKernel, devices: DeviceManager) -> None:
    kernel.nvme("nvme0n1", SERIAL)
    device = devices.open_attached(ONE, BLANK, read_only=False)
    for users in (kernel.users, kernel.raw):
        users.add(device.path)
        with pytest.raises(InUse, match="in use read-write"):
            devices.open_attached(ONE, BLANK, read_only=True)
        with pytest.raises(InUse, match="unpublish and unstage"):
            devices.close(ONE)
        assert devices.find(ONE) == device
        assert devices.open_attached(ONE, BLANK, read_only=False) == device
        users.clear()
    devices.close(ONE)


def test_a_device_that_is_published_raw_is_not_waited_for(
    kernel: FakeKernel, devices: DeviceManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(release, "RELEASE_SECONDS", 3600.0)
    kernel.nvme("nvme0n1", SERIAL)
    kernel.raw.add(devices.open_attached(ONE, BLANK, read_only=False).path)

    with pytest.raises(InUse):
        devices.close(ONE)


def test_who_lets_go_in_a_moment_is_waited_for(kernel: FakeKernel, devices: DeviceManager) -> None:
    kernel.nvme("nvme0n1", SERIAL)
    device = devices.open_attached(ONE, BLANK, read_only=False)
    kernel.users.add(device.path)
    release = threading.Timer(0.2, kernel.users.clear)
    release.start()

    devices.close(ONE)
    release.join()
    assert devices.find(ONE) is None


def test_a_device_that_was_pulled_is_not_open_and_its_close_is_fine(kernel: FakeKernel, devices: DeviceManager) -> None:
    kernel.nvme("nvme0n1", SERIAL)
    devices.open_attached(ONE, BLANK, read_only=False)
    kernel.unplug("nvme0n1")

    assert devices.find(ONE) is None
    devices.close(ONE)
    kernel.nvme("nvme0n1", SERIAL)
    assert devices.find(ONE) is None


def test_a_volume_that_was_pulled_while_open_and_comes_again_is_not_open(
    kernel: FakeKernel, devices: DeviceManager
) -> None:
    """What is still mounted shows the disk that is gone, and must come to be unmounted."""
    kernel.nvme("nvme0n1", SERIAL)
    before = devices.open_attached(ONE, BLANK, read_only=False)
    kernel.unplug("nvme0n1")
    kernel.nvme("nvme0n1", SERIAL)

    assert devices.find(ONE) is None
    after = devices.open_attached(ONE, BLANK, read_only=False)
    assert devices.find(ONE) == after
    assert after.number != before.number


@pytest.mark.parametrize(
    "handle", ["", "vol-xyz", "../../etc/passwd", "snap-0123456789abcdef0", f"{ONE}/x", f"{ONE}\n"]
)
def test_what_is_no_volume_id_is_not_found_and_touches_no_file(
    kernel: FakeKernel, devices: DeviceManager, handle: str
) -> None:
    for call in (
        devices.find,
        devices.close,
        devices.refresh,
        lambda one: devices.open_attached(one, BLANK, read_only=False),
    ):
        with pytest.raises(NotFound, match="does not exist"):
            call(handle)
    assert list(kernel.dev.iterdir()) == []


def test_a_device_takes_the_size_that_its_controller_tells(kernel: FakeKernel, devices: DeviceManager) -> None:
    kernel.nvme("nvme0n1", SERIAL)
    devices.open_attached(ONE, BLANK, read_only=False)
    kernel.behind["nvme0n1"] = 2 * MIB

    devices.refresh(ONE)
    assert kernel.text("nvme0n1", "size") == str(2 * MIB // 512)
    assert kernel.text("nvme0n1", "device/rescan_controller") == "1"


def test_a_device_that_has_its_size_already_is_left_alone(kernel: FakeKernel, devices: DeviceManager) -> None:
    kernel.nvme("nvme0n1", SERIAL)

    devices.refresh(ONE)
    assert kernel.text("nvme0n1", "device/rescan_controller") == ""


@pytest.mark.usefixtures("impatient")
def test_a_size_that_the_kernel_does_not_take_is_no_success(kernel: FakeKernel, devices: DeviceManager) -> None:
    kernel.nvme("nvme0n1", SERIAL)
    kernel.behind["nvme0n1"] = 2 * MIB
    kernel.deaf.add("nvme0n1")

    with pytest.raises(Unavailable, match=f"shows {MIB} bytes, volume {ONE} has {2 * MIB}"):
        devices.refresh(ONE)


def test_a_volume_without_a_device_cannot_be_refreshed(devices: DeviceManager) -> None:
    with pytest.raises(NotFound):
        devices.refresh(ONE)


def test_disks_of_the_instance_itself_are_counted_and_no_volumes(kernel: FakeKernel, devices: DeviceManager) -> None:
    kernel.nvme("nvme0n1", SERIAL)
    for disk in ("nvme1n1", "nvme2n1"):
        kernel.plug(disk, {"device/serial": f"AWS{disk}", "device/model": f"{'Amazon EC2 NVMe Instance Storage':40}"})

    assert devices.local_disks() == 2
