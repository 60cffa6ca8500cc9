"""Loop devices on filesystems of all sorts."""

from __future__ import annotations

import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from csi_multi_testing.fault_injection import Fault, FaultInjector

from csi_multi.contract import CommandFailed, Result, Unavailable
from csi_multi.host import loopdev, sysfs
from csi_multi.host.command import LocalHost

pytestmark = pytest.mark.root


class NoDirectIo(LocalHost):
    """The real machine, where no filesystem has direct I/O, as losetup words it."""

    def run(self, *argv: str, **options: Any) -> Result:
        if "--direct-io=on" in argv:
            raise CommandFailed(argv, Result(1, "", "losetup: image: failed to set up loop device: Invalid argument"))
        return super().run(*argv, **options)


@pytest.fixture
def image(tmp_path: Path) -> Path:
    file = tmp_path / "image"
    file.write_bytes(bytes(1 << 20))
    return file


def test_a_file_is_attached_with_direct_io(image: Path) -> None:
    device = loopdev.attach(LocalHost(), image)

    assert sysfs.attribute(sysfs.number_of(device), "loop/dio") == "1"
    loopdev.detach(LocalHost(), device)


def test_a_file_where_there_is_no_direct_io_is_attached_without(image: Path) -> None:
    device = loopdev.attach(NoDirectIo(), image)

    assert loopdev.find(image) == [device]
    assert sysfs.attribute(sysfs.number_of(device), "loop/dio") == "0"
    loopdev.detach(LocalHost(), device)
    assert loopdev.find(image) == []


def test_a_file_that_is_not_there_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed):
        loopdev.attach(LocalHost(), tmp_path / "absent")

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
