"""Devices that are opened while they are open: as requested now, and with the size that the volume has now."""

from __future__ import annotations

from functools import partial

from csi_multi.contract import FailedPrecondition, SizeRange
from csi_multi.contract import backend as b
from csi_multi.host import sysfs

from ..assertions import expect, same
from ..check import check
from ..context import BLOCK_SIZE, CheckContext, pattern
from ..operations.base import attempt, describe_error
from ..protocol import Target, write_to
from .devices import expect_ends, open_device


@check(needs=("devices",), data=True, target=Target.BACKEND)
def an_open_device_is_opened_again_as_requested_or_not_at_all(t: CheckContext) -> None:
    """A pod that only reads may start where one that wrote was killed."""
    volume = t.volume()
    for first, second in ((False, True), (True, False)):
        open_device(t, volume, read_only=first)
        what = f"open_device with read_only={second} of a device that was opened with read_only={first}"
        device, error = attempt(partial(open_device, t, volume, read_only=second))
        if device:
            same(device.read_only, second, f"{what}: Device.read_only")
            same(sysfs.read_only(sysfs.number_of(device.path)), second, f"{what}: whether the kernel refuses writes")
        refused = isinstance(error, FailedPrecondition)  # InUse is one, too
        expect(device or refused, f"{what}: raised {error and describe_error(error)}, the contract requires InUse")
        t.backend.close_device(volume.handle)


@check(b.Expand, needs=("devices",), data=True, target=Target.BACKEND)
def a_device_that_is_opened_again_has_the_new_size_of_its_volume(t: CheckContext) -> None:
    """Nothing on the node may have learned of the expansion: a volume is staged again after a crash, or was closed."""
    volume = t.volume()
    device = open_device(t, volume)
    write_to(device.path, volume.size - BLOCK_SIZE, pattern("kit end"))
    if not t.backend.online:
        t.backend.close_device(volume.handle)
    done = t.client.expand(volume.handle, SizeRange(required=volume.size + t.size))
    device = open_device(t, volume)
    expect_ends(device, volume.size, done.size, "open_device, expand_volume, open_device again")


@check(needs=("devices",), data=True, target=Target.BACKEND)
def what_was_not_synced_survives_closing_the_device(t: CheckContext) -> None:
    """Nobody has to sync a raw block device before it is closed. The next process opens it, or copies it."""
    volume, block = t.volume(), pattern("kit unsynced")
    device = open_device(t, volume)
    with device.path.open("r+b") as file:
        for offset in (0, volume.size - BLOCK_SIZE):
            file.seek(offset)
            file.write(block)
    t.backend.close_device(volume.handle)
    t.detach(volume)  # a backend may refuse to copy what is attached: a controller sees no devices
    t.client.restart()

    what = "written without a sync, then close_device"
    images = {what: volume}
    if b.Clone in t.features:
        images[f"{what}, then a clone"] = t.copy(volume)
    for text, image in images.items():
        for offset in (0, volume.size - BLOCK_SIZE):
            found = t.read(image, BLOCK_SIZE, offset)
            expect(found == block, f"{text}: what was written at {offset} is lost")
