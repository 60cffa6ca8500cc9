"""Loop devices: the right one, one at most, none left behind. Needs root."""

import dataclasses
import os
import threading
from pathlib import Path

import pytest
from csi_multi_loop.client import has_data

from csi_multi.contract import Blank, Busy, CommandTimedOut, FailedPrecondition, InUse, NotFound, Unavailable
from csi_multi.host import loopdev, sysfs
from csi_multi.host.loopfile import in_use
from tests.host.hanging import hanging_loop, within

MIB = 2**20
pytestmark = pytest.mark.root


def test_a_device_is_opened_once_found_and_closed(backend, requests, image, volume):
    assert backend.find_device(volume) is None
    device = backend.open_device(requests.open(volume))
    again = backend.open_device(requests.open(volume))

    assert device == again == backend.find_device(volume)
    sysfs.verify(device)
    assert device.proof == {"loop/backing_file": str(image(backend, volume))}
    assert (device.blank, device.read_only) == (Blank.ZEROED, False)
    assert sysfs.size_of(device.number) == 32 * MIB
    assert sysfs.attribute(device.number, "loop/dio") == "1"
    for _ in range(2):
        backend.close_device(volume)
        assert backend.find_device(volume) is None
    with pytest.raises(NotFound):
        backend.open_device(requests.open("node-1/nothing"))
    with pytest.raises(NotFound):
        backend.find_device("node-1/nothing")
    backend.close_device("node-1/nothing")


def test_how_blank_a_device_is_comes_from_its_label(backend, requests, volume, opened):
    opened(backend, volume)
    backend.formatting(volume)
    assert backend.find_device(volume).blank is Blank.INTERRUPTED
    backend.formatted(volume)
    assert backend.open_device(requests.open(volume)).blank is Blank.NEVER


@pytest.mark.parametrize("sector_size", [512, 4096])
def test_a_device_has_the_sector_size_asked_for(backend, requests, opened, sector_size):
    parameters = backend.Parameters(sector_size=sector_size)
    handle = backend.create_volume(requests.volume("s", parameters=parameters)).handle
    device = opened(backend, handle)

    assert sysfs.attribute(sysfs.number_of(device), "queue/logical_block_size") == str(sector_size)


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs"])
def test_direct_io_works_by_default_on(kind, filesystem, connect, requests, opened, caplog):
    backend = connect(filesystem(kind) / "pool")
    device = opened(backend, backend.create_volume(requests.volume("v")).handle)

    assert sysfs.attribute(sysfs.number_of(device), "loop/dio") == "1"
    assert "direct I/O" not in caplog.text


def test_an_unused_device_is_opened_again_the_way_it_is_asked_for(backend, requests, volume, opened):
    opened(backend, volume, read_only=True)
    assert backend.find_device(volume).read_only
    device = backend.open_device(requests.open(volume))

    assert not device.read_only
    with device.path.open("r+b") as file:
        file.write(b"x")


def test_a_read_only_device_cannot_be_written(backend, volume, opened):
    device = opened(backend, volume, read_only=True)
    with pytest.raises(OSError, match=r"not permitted|Read-only"):  # noqa: SIM117
        with device.open("r+b", buffering=0) as file:
            file.write(b"x" * 4096)


def test_a_mounted_device_is_neither_closed_nor_reopened_otherwise_nor_deleted(backend, requests, volume, mounted):
    device = backend.find_device(volume)
    for attempt in (
        lambda: backend.close_device(volume),
        lambda: backend.open_device(requests.open(volume, read_only=True)),
        lambda: backend.delete_volume(volume, {}),
    ):
        with pytest.raises(FailedPrecondition, match=str(device.path)):
            attempt()

    assert backend.open_device(requests.open(volume)) == device
    (mounted / "file").write_text("still writable")


def test_a_mount_in_another_namespace_keeps_a_device(backend, volume, opened, host, tmp_path):
    device = opened(backend, volume)
    host.run("mkfs.ext4", "-q", str(device))
    (tmp_path / "mnt").mkdir()
    descriptor = os.open(device, os.O_RDONLY | os.O_EXCL)  # what a mount elsewhere does to it
    try:
        assert in_use(device)
        with pytest.raises(InUse):
            backend.close_device(volume)
    finally:
        os.close(descriptor)


def test_a_raw_volume_that_is_still_published_is_not_closed(backend, volume, opened, mount, host, tmp_path):
    device = opened(backend, volume)
    target = tmp_path / "target"
    target.touch()
    host.run("mount", "--bind", str(device), str(target))
    try:
        with pytest.raises(InUse):
            backend.close_device(volume)
    finally:
        host.run("umount", str(target))


def test_closing_a_device_that_a_process_reads_fails_until_it_is_detached(backend, volume, opened, monkeypatch):
    monkeypatch.setattr("csi_multi.host.loopdev.DETACH_TIMEOUT", 0.3)
    device = opened(backend, volume)
    descriptor = os.open(device, os.O_RDONLY)
    try:
        with pytest.raises(InUse, match="held open"):
            backend.close_device(volume)
    finally:
        os.close(descriptor)
    backend.close_device(volume)

    assert backend.find_device(volume) is None


def test_a_device_that_is_being_detached_is_not_opened(backend, requests, volume, opened, host, monkeypatch):
    monkeypatch.setattr("csi_multi.host.loopdev.DETACH_TIMEOUT", 0.3)
    device = opened(backend, volume)
    descriptor = os.open(device, os.O_RDONLY)
    try:
        host.run("losetup", "--detach", str(device))  # lazily: a process has it open
        with pytest.raises(InUse, match="held open"):
            backend.open_device(requests.open(volume))
    finally:
        os.close(descriptor)

    assert backend.open_device(requests.open(volume))


def test_a_mounted_device_that_is_being_detached_stays_while_it_is_mounted(backend, requests, volume, mounted, host):
    device = backend.find_device(volume)
    host.run("losetup", "--detach", str(device.path))

    assert backend.open_device(requests.open(volume)) == device
    (mounted / "file").write_text("still writable")


def test_extra_devices_of_an_image_are_removed(backend, requests, image, volume, host, opened):
    for _ in range(3):
        loopdev.attach(host, image(backend, volume), sector_size=512)
    assert len(loopdev.find(image(backend, volume))) == 3
    assert [entry.reason for entry in backend.node_volume_health(volume)] == ["AttachedTwice"]
    opened(backend, volume)

    assert len(loopdev.find(image(backend, volume))) == 1
    assert backend.node_volume_health(volume) == ()


def test_the_mounted_one_of_two_devices_is_kept(backend, requests, image, volume, mounted, host):
    mine = backend.find_device(volume)
    loopdev.attach(host, image(backend, volume), sector_size=512)

    assert backend.open_device(requests.open(volume)) == mine
    assert loopdev.find(image(backend, volume)) == [mine.path]


def test_two_devices_in_use_are_refused(backend, requests, image, volume, mounted, host):
    other = loopdev.attach(host, image(backend, volume), sector_size=512)
    descriptor = os.open(other, os.O_RDONLY | os.O_EXCL)
    try:
        with pytest.raises(FailedPrecondition, match="at the same time"):
            backend.open_device(requests.open(volume))
    finally:
        os.close(descriptor)
        loopdev.detach(host, other)


def test_a_device_attached_in_a_mount_namespace_that_is_gone_is_found(backend, requests, image, volume, host, tmp_path):
    inside = tmp_path / "inside"
    inside.mkdir()
    folder = image(backend, volume).parent
    script = f"mount --make-rprivate / && mount --bind {folder} {inside} && losetup -f --direct-io=on {inside}/image"
    host.run("unshare", "--mount", "sh", "-c", script)
    device = backend.find_device(volume)

    assert device.proof == {"loop/backing_file": "/image"}
    assert backend.open_device(requests.open(volume)) == device
    sysfs.verify(device)
    backend.close_device(volume)
    assert loopdev.find(image(backend, volume)) == []


def test_an_unreadable_label_does_not_keep_a_volume_open(backend, image, volume, opened):
    opened(backend, volume)
    (image(backend, volume).parent / "volume.json").write_text("{")

    assert backend.find_device(volume).blank is Blank.NEVER
    backend.close_device(volume)
    assert loopdev.find(image(backend, volume)) == []


def test_an_open_device_grows_with_its_volume(backend, requests, volume, mounted):
    expansion = backend.expand_volume(requests.expand(volume, 64 * MIB))
    before = sysfs.size_of(backend.find_device(volume).number)
    backend.refresh_device(volume)
    device = backend.find_device(volume)

    assert expansion.node_required
    assert (before, sysfs.size_of(device.number)) == (32 * MIB, 64 * MIB)
    (mounted / "file").write_text("still writable")


@pytest.mark.parametrize("state", ["hanging", "failing"])
def test_a_loop_device_of_somebody_else_that_does_not_answer_holds_up_no_volume(backend, requests, tmp_path, state):
    def lifecycle():
        handle = backend.create_volume(requests.volume("v")).handle
        backend.open_device(requests.open(handle))
        backend.expand_volume(requests.expand(handle, 32 * MIB))
        backend.refresh_device(handle)
        assert backend.node_volume_health(handle) == ()
        backend.close_device(handle)
        backend.clone_volume(requests.copy("c", "volume", handle))
        backend.delete_volume(handle, {})

    with hanging_loop(tmp_path / "elsewhere" / "w") as foreign, getattr(foreign, state)():
        within(30, lifecycle)


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "tmpfs"])
def test_one_byte_written_anywhere_is_seen_before_a_volume_is_formatted(
    filesystem, connect, requests, opened, image, kind
):
    backend = connect(filesystem(kind) / "pool", overprovision=100)
    for number, offset in enumerate((None, 0, 100 * MIB + 7, 512 * MIB - 1)):
        for into in ("image", "device"):
            handle = backend.create_volume(requests.volume(f"{into}-{number}", 512 * MIB)).handle
            device = opened(backend, handle)
            assert backend.has_data(handle) is False
            if offset is not None:
                with (image(backend, handle) if into == "image" else device).open("r+b") as file:
                    file.seek(offset)
                    file.write(b"x")
                assert backend.has_data(handle) is True
            backend.close_device(handle)


def test_a_volume_that_is_full_has_data(backend, requests, image):
    handle = backend.create_volume(requests.volume("v", MIB)).handle
    image(backend, handle).write_bytes(bytes(MIB))

    assert backend.has_data(handle) is True


def test_a_filesystem_that_does_not_know_holes_says_nothing_about_data(tmp_path):
    with hanging_loop(tmp_path / "fuse") as foreign:
        assert has_data(Path(f"/proc/{foreign.server}/root/{tmp_path}/fuse/image")) is None


class Faulty:
    """Lets the kernel do its work, and then fails."""

    def __init__(self, host, word):
        self.host, self.word = host, word

    def call(self, function, *words, **options):
        result = self.host.call(function, *words, **options)
        if self.word in words:
            raise CommandTimedOut(words, 1.0)
        return result


def test_a_call_that_fails_after_its_work_leaks_no_device(connect, setting, host, requests, image):
    backend = connect(setting=dataclasses.replace(setting, host=Faulty(host, "--find")))
    handle = backend.create_volume(requests.volume("v")).handle
    with pytest.raises(CommandTimedOut):
        backend.open_device(requests.open(handle))

    assert loopdev.find(image(backend, handle)) == []


def test_a_device_of_the_wrong_size_is_refused_and_detached(backend, requests, image, volume, monkeypatch):
    monkeypatch.setattr("csi_multi.host.sysfs.size_of", lambda _: 1)
    with pytest.raises(Unavailable, match="has 1 bytes, but"):
        backend.open_device(requests.open(volume))

    assert loopdev.find(image(backend, volume)) == []


def test_two_backends_opening_at_once_share_one_device(backend, connect, requests, image, volume, opened):
    found, busy = [], []

    def open_device():
        try:
            found.append(connect().open_device(requests.open(volume)).path)
        except Busy:
            busy.append(1)

    threads = [threading.Thread(target=open_device) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(found) + len(busy) == 6
    assert len(set(found)) == len(loopdev.find(image(backend, volume))) == 1
    backend.close_device(volume)


@pytest.mark.parametrize("used", [0, 1])
def test_of_two_devices_the_one_in_use_is_the_volumes(
    backend, requests, volume, image, host, mount, undo, tmp_path, used
):
    """An attach whose driver was killed may come after the next driver has attached, and mounted."""
    host.run("mkfs.ext4", "-q", str(image(backend, volume)))
    words = ("losetup", "--find", "--show", "--direct-io=on", "--sector-size=512", str(image(backend, volume)))
    devices = sorted(Path(host.run(*words).stdout.strip()) for _ in range(2))
    undo.callback(backend.close_device, volume)
    mount(devices[used], tmp_path / "m")

    assert backend.find_device(volume).path == devices[used]
    assert backend.open_device(requests.open(volume)).path == devices[used]
    assert loopdev.find(image(backend, volume)) == [devices[used]]
