"""Loop devices on filesystems of all sorts."""

from __future__ import annotations

import fcntl
import subprocess
import sys
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from csi_multi_testing.fault_injection import Fault, FaultInjector

from csi_multi.contract import CommandFailed, Result, Unavailable
from csi_multi.host import loop_calls, loopdev, loopfile, sysfs
from csi_multi.host.command import LocalHost

pytestmark = pytest.mark.root


class OldHost(LocalHost):
    """The real machine, where the kernel has no single call to attach, and losetup fails with direct I/O."""

    def __init__(self, *, direct_io: bool) -> None:
        self._direct_io = direct_io

    def call(self, function: Any, *words: str, **options: Any) -> Any:
        if "--find" in words:
            raise loop_calls.NotKnown
        return super().call(function, *words, **options)

    def run(self, *argv: str, **options: Any) -> Result:
        result = super().run(*argv, **options)
        if "--direct-io=on" in argv and not self._direct_io:  # after the device was bound, as losetup does it
            raise CommandFailed(argv, Result(1, "", "losetup: image: failed to set up loop device: Invalid argument"))
        return result


@pytest.fixture
def ramfs(tmp_path: Path) -> Iterator[Path]:
    """A filesystem without direct I/O."""
    directory = tmp_path / "ramfs"
    directory.mkdir()
    subprocess.run(("mount", "-t", "ramfs", "none", str(directory)), check=True)
    yield directory
    subprocess.run(("umount", str(directory)), check=True)


@pytest.fixture
def image(tmp_path: Path) -> Path:
    file = tmp_path / "image"
    file.write_bytes(bytes(1 << 20))
    return file


def test_a_file_is_attached_with_direct_io(image: Path) -> None:
    device = loopdev.attach(LocalHost(), image)

    assert sysfs.attribute(sysfs.number_of(device), "loop/dio") == "1"
    loopdev.detach(LocalHost(), device)


def test_a_file_where_there_is_no_direct_io_is_attached_without(ramfs: Path) -> None:
    file = ramfs / "image"
    file.write_bytes(bytes(1 << 20))
    device = loopdev.attach(LocalHost(), file, direct_io=True)

    assert loopdev.find(file) == [device]
    assert sysfs.attribute(sysfs.number_of(device), "loop/dio") == "0"
    loopdev.detach(LocalHost(), device)
    assert loopdev.find(file) == []


@pytest.mark.parametrize("direct_io", [True, False])
def test_where_the_kernel_has_no_single_call_losetup_attaches(image: Path, direct_io: bool) -> None:
    device = loopdev.attach(OldHost(direct_io=direct_io), image, read_only=True, sector_size=4096)

    assert loopdev.find(image) == [device]
    number = sysfs.number_of(device)
    assert sysfs.attribute(number, "loop/dio") == str(int(direct_io))
    assert (sysfs.read_only(number), sysfs.sector_size(number)) == (True, 4096)
    loopdev.detach(LocalHost(), device)


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("sector_size", [512, 4096])
def test_a_device_has_the_properties_asked_for(image: Path, read_only: bool, sector_size: int) -> None:
    device = loopdev.attach(LocalHost(), image, read_only=read_only, sector_size=sector_size)

    assert loopfile.has_properties(device, image, sector_size, read_only)
    assert not loopfile.autoclears(device)
    assert sysfs.size_of(sysfs.number_of(device)) == 1 << 20
    loopdev.detach(LocalHost(), device)


def test_the_kernel_explains_a_sector_size_that_it_does_not_have_by_losetup(image: Path) -> None:
    with pytest.raises(CommandFailed, match="losetup"):
        loopdev.attach(LocalHost(), image, sector_size=513)

    assert loopdev.find(image) == []


def test_many_files_attached_at_once_get_a_device_each(tmp_path: Path) -> None:
    files = [tmp_path / f"image-{number}" for number in range(8)]
    for file in files:
        file.write_bytes(bytes(1 << 20))
    with ThreadPoolExecutor(len(files)) as pool:
        devices = list(pool.map(lambda file: loopdev.attach(LocalHost(), file), files))
        assert [loopdev.find(file) for file in files] == [[device] for device in devices]
        list(pool.map(lambda device: loopdev.detach(LocalHost(), device), devices))

    assert [file for file in loopdev.bound_devices().values() if file.startswith(f"{tmp_path}/")] == []


def test_a_device_that_another_took_meanwhile_is_not_waited_for(image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the kernel's answer which device is free and the call that binds it."""
    taken = loopdev.attach(LocalHost(), image)
    real, answers = fcntl.ioctl, [int(taken.name.removeprefix("loop"))]

    def ioctl(descriptor: int, request: int, *arguments: Any) -> Any:
        free = request == loop_calls._GET_FREE and answers
        return answers.pop() if free else real(descriptor, request, *arguments)

    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    other = loopdev.attach(LocalHost(), image)

    assert (other != taken, answers) == (True, [])
    for device in (taken, other):
        loopdev.detach(LocalHost(), device)


def test_a_device_that_is_not_bound_any_more_is_detached(image: Path) -> None:
    device = loopdev.attach(LocalHost(), image)
    for _ in range(2):
        loopdev.detach(LocalHost(), device)

    assert loopdev.find(image) == []


def test_a_file_that_is_not_there_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    absent = tmp_path / "absent"
    with pytest.raises(Unavailable, match=f"{absent} cannot be attached to a loop device: .*no such file"):
        loopdev.attach(LocalHost(), absent)

    assert [file for file in loopdev.bound_devices().values() if file.startswith(f"{tmp_path}/")] == []


@pytest.mark.parametrize("call", [1, 2], ids=["open", "ioctl"])
def test_a_device_that_cannot_be_asked_is_not_taken_for_another(image: Path, call: int) -> None:
    """Else a volume that is attached would seem free: it could be deleted, or attached twice."""
    device = loopdev.attach(LocalHost(), image)
    injector = FaultInjector((device,))
    with injector.inject(call, Fault.ERROR), pytest.raises(Unavailable, match="cannot read the backing file"):
        loopdev.find(image)
    loopdev.detach(LocalHost(), device)

    assert injector.happened


FIND = """
import sys
from pathlib import Path
from csi_multi.contract import Unavailable
from csi_multi.host import loopdev

try:
    print(loopdev.find(Path(sys.argv[1])))
except Unavailable as error:
    print("Unavailable:", error)
"""


def test_a_device_that_this_container_has_no_node_of_is_not_taken_for_another(image: Path) -> None:
    """As in the container of a controller, whose /sys shows the devices of the machine."""
    image = image.rename(image.with_name(f"image-{uuid.uuid4()}"))  # the machine may have a device of another "image"
    device = loopdev.attach(LocalHost(), image)
    script = 'mount -t tmpfs none /dev && mknod -m 666 /dev/null c 1 3 && exec "$0" -c "$@"'
    words = ("unshare", "--mount", "sh", "-c", script, sys.executable, FIND, str(image))
    found = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    loopdev.detach(LocalHost(), device)

    assert found.startswith(f"Unavailable: {device} is attached, but has no node here")
