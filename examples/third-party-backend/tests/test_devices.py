"""The loop devices of volumes: one, the right one, and none left behind."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from csi_multi.contract import Blank, ExpandRequest, FailedPrecondition, InUse, NotFound, OpenRequest, SizeRange
from csi_multi.host import loopdev, sysfs
from csi_multi.host.command import LocalHost

pytestmark = pytest.mark.root
MIB = 2**20


@pytest.fixture
def handle(backend: Any, volume_request: Any) -> str:
    return backend.create_volume(volume_request("pvc-1")).handle


def test_a_device_shows_the_volume_and_proves_which_it_is(backend: Any, handle: str, memory: Path) -> None:
    device = backend.open_device(OpenRequest(handle=handle))

    sysfs.verify(device)
    assert device.proof == {"loop/backing_file": f"{memory}/pvc-1.ramdisk"}
    assert sysfs.size_of(device.number) == MIB
    assert backend.open_device(OpenRequest(handle=handle)) == backend.find_device(handle) == device
    backend.close_device(handle)
    backend.close_device(handle)
    assert backend.find_device(handle) is None
    assert loopdev.find(memory / "pvc-1.ramdisk") == []


def test_an_attached_volume_is_neither_deleted_nor_copied(backend: Any, handle: str, volume_request: Any) -> None:
    backend.open_device(OpenRequest(handle=handle))

    for attempt in (
        lambda: backend.delete_volume(handle, {}),
        lambda: backend.clone_volume(volume_request("clone", of=handle)),
    ):
        with pytest.raises(InUse):
            attempt()
    with pytest.raises(NotFound):
        backend.find_volume("clone")
    backend.close_device(handle)


def test_a_mounted_device_is_not_closed(backend: Any, handle: str, tmp_path: Path) -> None:
    device = backend.open_device(OpenRequest(handle=handle))
    LocalHost().run("mkfs.ext4", "-q", str(device.path))
    LocalHost().run("mount", str(device.path), str(tmp_path))

    with pytest.raises(InUse):
        backend.close_device(handle)
    with pytest.raises(InUse):
        backend.open_device(OpenRequest(handle=handle, read_only=True))
    assert backend.open_device(OpenRequest(handle=handle)).path == device.path

    LocalHost().run("umount", str(tmp_path))
    assert backend.find_device(handle) == device, "it was not marked to go with the mount"
    backend.close_device(handle)


def test_a_device_that_is_not_in_use_changes_between_read_only_and_writable(
    backend: Any, handle: str, memory: Path
) -> None:
    for read_only in (False, True, False):
        device = backend.open_device(OpenRequest(handle=handle, read_only=read_only))

        assert sysfs.read_only(device.number) == device.read_only == read_only
        assert loopdev.find(memory / "pvc-1.ramdisk") == [device.path]
    backend.close_device(handle)


def test_a_second_device_of_an_image_is_detached(backend: Any, handle: str, memory: Path) -> None:
    for _ in range(2):  # as after a losetup that timed out, and attached nevertheless
        loopdev.attach(LocalHost(), memory / "pvc-1.ramdisk")

    device = backend.open_device(OpenRequest(handle=handle))

    assert loopdev.find(memory / "pvc-1.ramdisk") == [device.path]
    backend.close_device(handle)


def test_of_two_devices_the_one_in_use_stays(backend: Any, handle: str, memory: Path) -> None:
    image = memory / "pvc-1.ramdisk"
    for used in (0, -1):
        while len(loopdev.find(image)) < 2:
            loopdev.attach(LocalHost(), image)
        device = loopdev.find(image)[used]
        user = os.open(device, os.O_RDONLY | os.O_EXCL)
        try:
            assert backend.open_device(OpenRequest(handle=handle)).path == device
        finally:
            os.close(user)
        assert loopdev.find(image) == [device]
    backend.close_device(handle)


def test_a_device_that_is_being_detached_is_not_opened(
    backend: Any, handle: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loopdev, "DETACH_TIMEOUT", 0.1)
    device = backend.open_device(OpenRequest(handle=handle))

    with device.path.open("rb"):
        for attempt in (lambda: backend.close_device(handle), lambda: backend.open_device(OpenRequest(handle=handle))):
            with pytest.raises(InUse, match="held open by a process"):
                attempt()

    assert backend.find_device(handle) is None
    backend.open_device(OpenRequest(handle=handle))
    backend.close_device(handle)


def test_a_device_of_a_file_that_was_replaced_is_not_the_volumes(
    backend: Any, handle: str, memory: Path, volume_request: Any
) -> None:
    backend.open_device(OpenRequest(handle=handle))
    for name in os.listdir(memory):
        (memory / name).unlink()
    backend.create_volume(volume_request("pvc-1"))

    fresh = backend.open_device(OpenRequest(handle=handle))

    assert loopdev.is_bound_to(fresh.path, memory / "pvc-1.ramdisk")
    assert loopdev.find(memory / "pvc-1.ramdisk") == [fresh.path]
    backend.close_device(handle)


def test_an_open_device_grows_with_its_volume(backend: Any, handle: str) -> None:
    device = backend.open_device(OpenRequest(handle=handle))

    for size, show in (
        (2 * MIB, lambda: backend.refresh_device(handle)),
        (3 * MIB, lambda: backend.open_device(OpenRequest(handle=handle))),
    ):
        assert backend.expand_volume(ExpandRequest(handle=handle, size=SizeRange(required=size))).node_required
        show()
        assert sysfs.size_of(device.number) == size
    backend.close_device(handle)


def test_the_format_state_says_whether_it_may_be_formatted(
    backend: Any, handle: str, memory: Path, connect: Any, volume_request: Any
) -> None:
    def blank() -> Blank:
        device = connect(memory).open_device(OpenRequest(handle=handle))
        if device.blank is Blank.ZEROED:
            assert not any(device.path.read_bytes())
        return device.blank

    assert blank() is Blank.ZEROED
    backend.formatting(handle)
    assert blank() is Blank.INTERRUPTED
    for _ in range(2):
        backend.formatted(handle)
        assert blank() is Blank.NEVER
    with pytest.raises(FailedPrecondition):
        backend.formatting(handle)
    assert blank() is Blank.NEVER
    backend.close_device(handle)


def test_a_clone_is_never_blank(backend: Any, handle: str, volume_request: Any) -> None:
    clone = backend.clone_volume(volume_request("clone", of=handle)).handle

    assert backend.open_device(OpenRequest(handle=clone)).blank is Blank.NEVER
    backend.close_device(clone)


def test_what_is_written_to_the_device_is_in_memory_and_gone_with_the_volume(
    backend: Any, handle: str, memory: Path
) -> None:
    device = backend.open_device(OpenRequest(handle=handle))
    with device.path.open("r+b") as disk:
        disk.write(b"hello")
        disk.flush()
        os.fsync(disk.fileno())

    assert (memory / "pvc-1.ramdisk").read_bytes()[:5] == b"hello"
    backend.close_device(handle)
    backend.delete_volume(handle, {})
    assert os.listdir(memory) == []
