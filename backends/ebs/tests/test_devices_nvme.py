"""Real NVMe disks that are plugged and unplugged, in a guest that hotplug.py presents as an EC2 instance."""

from __future__ import annotations

import hashlib
import itertools
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from xmlrpc.client import ServerProxy

import pytest
from csi_multi_ebs import blankness
from csi_multi_ebs.backend import EbsBackend
from csi_multi_ebs.config import Config
from csi_multi_ebs.device_identity import NvmeKernel
from csi_multi_ebs.devices import GROW_SECONDS, DeviceManager
from csi_multi_ebs.volume_statistics import LOG_PAGE

from csi_multi.contract import (
    AccessMode,
    Capability,
    Device,
    FailedPrecondition,
    InUse,
    Mount,
    NotFound,
    OpenRequest,
    Setting,
    SizeRange,
    Strings,
    Unavailable,
)
from csi_multi.host import mounts, sysfs
from csi_multi.host.command import LocalHost
from csi_multi.host.sysfs import DeviceGone
from csi_multi.node import grow, publish
from csi_multi.node import stage as node_stage
from csi_multi.node import unstage as node_unstage
from csi_multi.node.encryption import EncryptionLayer
from csi_multi.node.encryption_options import HEADER
from csi_multi.node.requests import PublishRequest, StageRequest

from .hotplug_target import growing

pytestmark = pytest.mark.skipif("HOTPLUG_BUS" not in os.environ, reason="for a guest that hotplug.py starts")

MIB, GIB = 1 << 20, 1 << 30
CONTEXT = {"device": "/dev/xvdba", "attachment": "i-1 /dev/xvdba 2026-01-01T00:00:00+00:00", "blank": "unused"}
LATER = {"device": "/dev/xvdba", "attachment": "i-1 /dev/xvdba 2026-02-02T00:00:00+00:00", "blank": "unknown"}
EXT4 = Capability(mode=AccessMode.SINGLE_NODE_WRITER, mount=Mount(fs_type="ext4"))
RAW = Capability(mode=AccessMode.SINGLE_NODE_WRITER)
numbers = itertools.count(1)

Plug = Callable[[], str]


@pytest.fixture(scope="module")
def bus() -> Iterator[ServerProxy]:
    with ServerProxy(os.environ["HOTPLUG_BUS"], allow_none=True) as bus:
        yield bus


@pytest.fixture
def plug(bus: ServerProxy) -> Iterator[Plug]:
    """Plug the disk of a new volume in, and return the volume's id."""
    yield lambda: plugged(bus, new())
    for name in bus.plugged():
        bus.unplug(name)
        bus.forget(name)


@pytest.fixture(autouse=True)
def notes() -> None:
    """The driver has started before any volume is attached."""
    DeviceManager(NvmeKernel()).blankness.begin()


@pytest.fixture
def devices() -> DeviceManager:
    return DeviceManager(NvmeKernel(), appear=30)


@pytest.fixture
def backend() -> EbsBackend:
    setting = Setting(instance="cloud", driver="ebs.test", cluster="c", node="n1", host=LocalHost())
    return EbsBackend(Config(region="us-east-1"), setting)


@pytest.fixture(autouse=True)
def nothing_leaks() -> Iterator[None]:
    before = [mount.target for mount in mounts.table()]
    yield
    assert [mount.target for mount in mounts.table()] == before
    assert list(Path("/dev/csi-multi-ebs").glob("*")) == []


def new() -> str:
    return f"vol-{next(numbers):017x}"


def plugged(bus: ServerProxy, volume: str) -> str:
    bus.plug(volume, volume.replace("-", ""), 1)
    return volume


def open_device(devices: DeviceManager, volume: str, *, read_only: bool = False) -> Device:
    return devices.open_attached(volume, CONTEXT, read_only=read_only)


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Use a device as a mount does."""
    descriptor = os.open(path, os.O_RDWR | os.O_EXCL)
    try:
        yield
    finally:
        os.close(descriptor)


def write(path: Path, text: bytes) -> None:
    with path.open("r+b", buffering=0) as disk:
        disk.write(text.ljust(4096, b"\0"))
        os.fsync(disk.fileno())


def read(path: Path) -> bytes:
    with path.open("rb") as disk:
        return disk.read(4096).rstrip(b"\0")


def test_an_attached_volume_is_opened_and_proves_what_it_is(devices: DeviceManager, plug: Plug) -> None:
    volume, other = plug(), plug()
    device = open_device(devices, volume)
    open_device(devices, other)

    sysfs.verify(device)
    assert device.proof == {"device/serial": volume.replace("-", "")}
    assert devices.find(volume) == device
    assert devices.find(other) != device
    for one in (volume, other):
        devices.close(one)
        assert devices.find(one) is None


def test_a_device_that_the_kernel_shows_late_is_waited_for(
    devices: DeviceManager, plug: Plug, bus: ServerProxy
) -> None:
    volume = new()
    bus.plug_later(2.0, volume, volume.replace("-", ""), 1)

    sysfs.verify(open_device(devices, volume))
    devices.close(volume)


def test_a_device_that_does_not_come_is_told_with_those_that_are_there(plug: Plug) -> None:
    other = plug()
    open_device(DeviceManager(NvmeKernel(), appear=30), other)

    with pytest.raises(Unavailable, match=other.replace("-", "")):
        open_device(DeviceManager(NvmeKernel(), appear=0.5), new())
    with pytest.raises(NotFound):
        DeviceManager(NvmeKernel()).open_attached(new(), {}, read_only=False)
    DeviceManager(NvmeKernel()).close(other)


def test_volumes_that_swapped_their_names_between_attachments_keep_their_data(
    devices: DeviceManager, plug: Plug, bus: ServerProxy
) -> None:
    first, second = plug(), plug()
    before = {volume: open_device(devices, volume) for volume in (first, second)}
    for volume, device in before.items():
        write(device.path, volume.encode())
        devices.close(volume)
    for volume in before:
        bus.unplug(volume)
    for volume in reversed(before):
        plugged(bus, volume)
        open_device(devices, volume)  # so that the names are given in this order

    after = {volume: open_device(devices, volume) for volume in before}
    assert [after[volume].path for volume in (first, second)] == [before[volume].path for volume in (second, first)]
    for volume, device in after.items():
        assert read(device.path) == volume.encode()
        with pytest.raises(FailedPrecondition, match="not"):
            sysfs.verify(before[volume])
        devices.close(volume)


def test_a_link_by_id_that_was_left_pointing_elsewhere_misleads_nobody(devices: DeviceManager, plug: Plug) -> None:
    volume, other = plug(), plug()
    wrong = open_device(devices, other)
    link = Path(f"/dev/disk/by-id/nvme-Amazon_Elastic_Block_Store_{volume.replace('-', '')}")
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(wrong.path)
    try:
        device = open_device(devices, volume)
        assert device.path != wrong.path
        sysfs.verify(device)
    finally:
        link.unlink()
    for one in (volume, other):
        devices.close(one)


def test_a_volume_that_was_pulled_is_not_open_any_more(devices: DeviceManager, plug: Plug, bus: ServerProxy) -> None:
    volume = plug()
    device = open_device(devices, volume)
    bus.unplug(volume)

    assert devices.find(volume) is None
    with pytest.raises((DeviceGone, FailedPrecondition)):
        sysfs.verify(device)
    devices.close(volume)


def test_a_read_only_device_refuses_writes_until_it_is_opened_for_them(devices: DeviceManager, plug: Plug) -> None:
    volume = plug()
    device = open_device(devices, volume, read_only=True)
    assert device.read_only
    with pytest.raises(PermissionError):
        write(device.path, b"x")

    device = open_device(devices, volume)
    assert not device.read_only
    write(device.path, b"x")
    open_device(devices, volume, read_only=True)
    devices.close(volume)
    write(device.path, b"y")


def test_a_device_in_use_stays_open_and_as_it_is(devices: DeviceManager, plug: Plug, tmp_path: Path) -> None:
    volume = plug()
    device = open_device(devices, volume)
    target = tmp_path / "target"
    target.touch()
    with held(device.path):
        for refused in (lambda: devices.close(volume), lambda: open_device(devices, volume, read_only=True)):
            with pytest.raises(InUse):
                refused()
        assert devices.find(volume) == device
    LocalHost().run("mount", "--bind", str(device.path), str(target))
    try:
        with pytest.raises(InUse):
            devices.close(volume)
    finally:
        LocalHost().run("umount", str(target))
    devices.close(volume)


def stage(
    backend: EbsBackend, volume: str, staging: Path, capability: Capability = EXT4, context: Strings = CONTEXT
) -> None:
    staging.mkdir(exist_ok=True)
    request = StageRequest(handle=volume, staging=staging, capability=capability, publish_context=context)
    node_stage.stage(LocalHost(), backend, request)


def unstage(backend: EbsBackend, volume: str, staging: Path) -> None:
    node_unstage.unstage(LocalHost(), backend, volume, staging)


def test_data_outlives_unstage_detach_attach_and_stage(
    backend: EbsBackend, plug: Plug, bus: ServerProxy, tmp_path: Path
) -> None:
    volume = plug()
    stage(backend, volume, tmp_path / "staging")
    (tmp_path / "staging" / "file").write_text("data")
    unstage(backend, volume, tmp_path / "staging")
    bus.unplug(volume)
    plugged(bus, volume)

    stage(backend, volume, tmp_path / "staging")
    assert (tmp_path / "staging" / "file").read_text() == "data"
    unstage(backend, volume, tmp_path / "staging")
    assert backend.find_device(volume) is None


def lose_notes() -> None:
    """Empty the driver's part of /dev and let it start, as a boot does with what is attached."""
    shutil.rmtree(f"/dev/{blankness.NOTES_DIRECTORY}")
    DeviceManager(NvmeKernel()).blankness.begin()


@pytest.mark.parametrize("raw", [False, True])
def test_a_used_volume_that_shows_nothing_at_its_start_is_never_formatted(
    backend: EbsBackend, plug: Plug, bus: ServerProxy, tmp_path: Path, raw: bool
) -> None:
    volume, staging = plug(), tmp_path / "staging"
    stage(backend, volume, staging, RAW if raw else EXT4)
    if not raw:
        for number in range(300):
            (staging / str(number)).write_text("data")
    unstage(backend, volume, staging)
    path = open_device(DeviceManager(NvmeKernel()), volume).path
    with path.open("r+b", buffering=0) as disk:
        if raw:
            disk.seek((20 << 20) + 4096)
            disk.write(b"raw data".ljust(4096, b"\0"))
        else:
            disk.write(bytes(1 << 20))
        os.fsync(disk.fileno())
    backend.close_device(volume)
    before = digest(path)

    def refused(context: Strings) -> None:
        with pytest.raises(FailedPrecondition):
            stage(backend, volume, staging, EXT4, context)
        assert digest(path) == before
        backend.close_device(volume)

    refused(CONTEXT)  # kubelet repeats the context of the attachment
    lose_notes()
    refused(CONTEXT)  # and does so after a boot
    bus.unplug(volume)
    plugged(bus, volume)
    refused(LATER)
    lose_notes()
    refused(LATER)


def test_a_volume_whose_first_mkfs_never_ran_is_formatted_on_the_next_node(
    backend: EbsBackend, plug: Plug, tmp_path: Path
) -> None:
    volume = plug()
    while not mounts.at(tmp_path / "staging"):
        with suppress(Unavailable):  # all of it is read, in as many calls as that takes
            stage(backend, volume, tmp_path / "staging", EXT4, LATER)
    (tmp_path / "staging" / "file").write_text("data")
    unstage(backend, volume, tmp_path / "staging")
    lose_notes()
    stage(backend, volume, tmp_path / "staging", EXT4, LATER)
    assert (tmp_path / "staging" / "file").read_text() == "data"
    unstage(backend, volume, tmp_path / "staging")


def digest(path: Path) -> str:
    """Return a digest of where mkfs would write first, and of where the test has written."""
    with path.open("rb") as disk:
        return hashlib.sha256(disk.read(24 << 20)).hexdigest()


def test_raw_blocks_are_published(backend: EbsBackend, plug: Plug, tmp_path: Path) -> None:
    volume, target = plug(), tmp_path / "target"
    stage(backend, volume, tmp_path / "staging", RAW)
    request = PublishRequest(handle=volume, staging=tmp_path / "staging", target=target, capability=RAW)
    publish.publish(LocalHost(), backend, request)
    write(target, b"raw")
    publish.unpublish(LocalHost(), backend, volume, target)
    unstage(backend, volume, tmp_path / "staging")

    assert read(open_device(DeviceManager(NvmeKernel()), volume).path) == b"raw"
    backend.close_device(volume)


def test_a_volume_whose_device_vanished_under_the_mount_can_be_unstaged_and_staged_again(
    backend: EbsBackend, plug: Plug, bus: ServerProxy, tmp_path: Path
) -> None:
    volume = plug()
    stage(backend, volume, tmp_path / "staging")
    bus.unplug(volume)
    assert backend.find_device(volume) is None
    plugged(bus, volume)
    with pytest.raises(FailedPrecondition, match="occupied"):
        stage(backend, volume, tmp_path / "staging")

    unstage(backend, volume, tmp_path / "staging")
    stage(backend, volume, tmp_path / "staging")
    unstage(backend, volume, tmp_path / "staging")


def test_a_lost_note_costs_nothing_while_the_volume_is_mounted(backend: EbsBackend, plug: Plug, tmp_path: Path) -> None:
    volume = plug()
    stage(backend, volume, tmp_path / "staging")
    Path(f"/dev/csi-multi-ebs/{volume}").unlink()

    stage(backend, volume, tmp_path / "staging")
    unstage(backend, volume, tmp_path / "staging")
    assert not mounts.at(tmp_path / "staging")


def test_an_encrypted_volume_is_noise_on_its_disk_and_grows(backend: EbsBackend, tmp_path: Path) -> None:
    volume, staging, mark = new(), tmp_path / "staging", b"the plain text of a secret letter"
    staging.mkdir()
    layer = EncryptionLayer(LocalHost(), backend)
    request = StageRequest(
        handle=volume,
        staging=staging,
        capability=EXT4,
        volume_context={"encryption": "luks2", "encryptionPbkdf": "pbkdf2", "encryptionPbkdfTime": "100"},
        publish_context=CONTEXT,
        secrets={"passphrase": "correct horse battery staple"},
    )
    with growing(volume, Path(tempfile.gettempdir()), 64 * MIB) as disk:
        node_stage.stage(LocalHost(), layer, request)
        (staging / "letter").write_bytes(mark * 1000)
        disk.resize(128 * MIB)
        size = grow.expand(LocalHost(), layer, volume, staging, SizeRange(required=100 * MIB))
        node_unstage.unstage(LocalHost(), layer, volume, staging)
        device = backend.open_device(OpenRequest(handle=volume, read_only=True, publish_context=CONTEXT))
        content = device.path.read_bytes()
        backend.close_device(volume)

        assert (size, content[:4]) == (128 * MIB - HEADER, b"LUKS")
        assert mark not in content
        node_stage.stage(LocalHost(), layer, request)
        assert (staging / "letter").read_bytes() == mark * 1000
        node_unstage.unstage(LocalHost(), layer, volume, staging)


def test_a_mounted_volume_grows(backend: EbsBackend, tmp_path: Path) -> None:
    volume = new()
    directory = Path(tempfile.gettempdir())  # on the guest's own disk: what is served must not be on tmpfs
    with growing(volume, directory, GIB) as disk:
        stage(backend, volume, tmp_path / "staging")
        device = backend.find_device(volume)
        assert device
        disk.resize(2 * GIB)
        before = os.statvfs(tmp_path / "staging").f_blocks
        assert sysfs.size_of(device.number) == GIB
        assert list(
            Path(f"/sys/block/{device.path.name}/device").glob("nvme*/rescan_controller")
        )  # what refresh writes

        backend.refresh_device(volume)
        assert sysfs.size_of(device.number) == 2 * GIB
        size = grow.expand(LocalHost(), backend, volume, tmp_path / "staging", SizeRange(required=2 * GIB))
        assert size == 2 * GIB
        assert os.statvfs(tmp_path / "staging").f_blocks > 1.8 * before
        assert backend.find_device(volume) == device
        sysfs.verify(device)
        unstage(backend, volume, tmp_path / "staging")


def test_a_disk_that_is_not_of_ebs_has_no_statistics_and_no_error(
    backend: EbsBackend, devices: DeviceManager, plug: Plug
) -> None:
    volume = plug()
    disk = devices.open_attached(volume, CONTEXT, read_only=False).path
    health = NvmeKernel().log_page(disk.name, disk, 0x02)  # a page that every controller has

    assert health
    assert int.from_bytes(health[1:3], "little") > 273  # its temperature in kelvin: the command is understood
    assert NvmeKernel().log_page(disk.name, disk, LOG_PAGE) is None
    assert backend.metrics((volume,)) == ()
    devices.close(volume)


def test_the_controllers_own_word_about_the_size_is_read(plug: Plug, devices: DeviceManager) -> None:
    volume = plug()
    device = open_device(devices, volume)
    started = time.monotonic()

    assert NvmeKernel().bytes_behind(device.path.name, device.path) == GIB
    devices.refresh(volume)
    assert time.monotonic() - started < GROW_SECONDS
    devices.close(volume)
