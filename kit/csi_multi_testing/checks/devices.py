"""Devices: present while open, with a correct proof and the reported read-only state (contract.Device)."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from pathlib import Path

from csi_multi.contract import Device, FailedPrecondition, InUse, NotFound, OpenRequest, SizeRange, Strings, Volume
from csi_multi.contract import backend as b
from csi_multi.host import sysfs

from ..assertions import CheckFailed, CheckSkipped, expect, same
from ..check import check
from ..context import BLOCK_SIZE, CheckContext, pattern
from ..dead_devices import DeadDevice, are_gone, dead_devices
from ..marked_secrets import given_secrets
from ..operations.base import PAUSES, attempt, describe_error
from ..protocol import Target, read_from, write_to
from ..random_blocks import random_blocks, write_blocks, wrong_blocks
from .sources import expect_success


def attach_here(t: CheckContext, volume: Volume) -> Strings:
    """Attach the volume to this node if the backend attaches, and return the publish context."""
    context: Strings = t.attach(volume, t.in_process.node()) if b.Attach in t.features else {}
    return context


def open_device(t: CheckContext, volume: Volume, *, read_only: bool = False, block: bool = True) -> Device:
    """Open a volume's device, to be closed at the end; `block`: for a raw block volume, not for a filesystem."""
    context = attach_here(t, volume)
    t.close_at_end(volume)
    device: Device = t.backend.open_device(
        OpenRequest(
            handle=volume.handle,
            read_only=read_only,
            block=block,
            volume_context=volume.stamp.context,
            publish_context=context,
            secrets=t.storage.secrets,
        )
    )
    return device


def size_of(device: Device) -> int:
    with device.path.open("rb") as file:
        return file.seek(0, os.SEEK_END)


def expect_bytes(device: Device, seed: str, what: str) -> None:
    found = read_from(device.path, 0, BLOCK_SIZE)
    expect(found == pattern(seed), f"{what}: {device.path} has other data than was written")


@check(needs=("devices",), data=True, target=Target.BACKEND)
def a_device_is_found_while_it_is_open(t: CheckContext) -> None:
    """find_device changes nothing, and close_device can be repeated."""
    volume, other = t.volume(), t.volume()
    attach_here(t, volume)
    closed = t.new_resources()
    same(t.backend.find_device(volume.handle), None, "find_device before open_device")
    device = open_device(t, volume)
    before = t.new_resources()

    for _ in range(2):
        same(t.backend.find_device(volume.handle), device, "find_device after open_device")
        same(t.backend.find_device(other.handle), None, "find_device of a volume that is not open, beside an open one")
    same(t.new_resources(), before, "find_device: the resources on the storage")
    for when in ("close_device", "close_device, twice"):
        t.backend.close_device(volume.handle)
        same(t.backend.find_device(volume.handle), None, f"{when}, then find_device")
        same(t.new_resources(), closed, f"{time}: the resources on the storage")


@check(needs=("devices",), data=True, target=Target.BACKEND)
def opening_twice_gives_the_same_device(t: CheckContext) -> None:
    volume = t.volume()
    first = open_device(t, volume)
    write_to(first.path, 0, pattern("kit device"))

    second = open_device(t, volume)
    same(second, first, "open_device, a second time")
    expect_bytes(second, "kit device", "open_device, a second time")


@check(needs=("devices",), data=True, target=Target.BACKEND)
def blocks_written_at_the_same_time_are_read_back(t: CheckContext) -> None:
    """As a database writes: random blocks, 32 at a time, past the page cache."""
    volume = t.volume()
    blocks = random_blocks(volume.size)
    device = open_device(t, volume)
    _expect_none(write_blocks(device.path, blocks), device, "while others are written")
    _expect_none(wrong_blocks(device.path, blocks), device, "afterwards")

    t.backend.close_device(volume.handle)
    device = open_device(t, volume)
    _expect_none(wrong_blocks(device.path, blocks), device, "after the device was closed and opened again")


def _expect_none(wrong: list[int], device: Device, when: str) -> None:
    expect(
        not wrong,
        f"open_device: {len(wrong)} of the blocks that were written to {device.path} at the same time have other data "
        f"when they are read {when}, the first of them block {min(wrong, default=0)}; is direct I/O safe on what is "
        "below?",
    )


@check(needs=("devices",), data=True, target=Target.BACKEND)
def written_data_survives_closing_the_device(t: CheckContext) -> None:
    volume = t.volume()
    write_to(open_device(t, volume).path, 0, pattern("kit device"))
    t.backend.close_device(volume.handle)

    expect_bytes(open_device(t, volume), "kit device", "open_device, written, close_device, open_device")


@check(needs=("devices",), data=True, target=Target.BACKEND)
def two_volumes_have_different_devices(t: CheckContext) -> None:
    first, second = (open_device(t, volume) for volume in (t.volume(), t.volume()))

    for name in ("path", "number", "proof"):
        found = getattr(first, name)
        expect(found != getattr(second, name), f"open_device of two volumes: Device.{name} of both is {found!r}")
    write_to(first.path, 0, pattern("kit first"))
    write_to(second.path, 0, pattern("kit second"))
    expect_bytes(first, "kit first", "open_device of two volumes, both written, then the first")


@check(needs=("devices",), data=True, target=Target.BACKEND)
def the_proof_of_a_device_matches_the_kernel(t: CheckContext) -> None:
    """The node engine checks this right before it formats, mounts or binds."""
    device = open_device(t, t.volume())

    try:
        number = sysfs.number_of(device.path)
    except sysfs.DeviceGone as error:
        raise CheckFailed(f"open_device: Device.path: {error}") from None
    same(device.number, number, f"open_device: Device.number, compared with the number of {device.path}")
    expect(device.proof, "open_device: Device.proof is empty, so this device cannot be distinguished from another")
    for name, text in device.proof.items():
        expect(text, f"open_device: Device.proof says that {name} is empty; a proof needs a value")
        same(sysfs.attribute(number, name), text, f"open_device: what /sys/dev/block/{number}/{name} holds")
    same(device.read_only, sysfs.read_only(number), "open_device: Device.read_only, compared with the kernel")


@check(needs=("devices",), data=True, target=Target.BACKEND)
def a_device_opened_read_only_refuses_writes(t: CheckContext) -> None:
    _expect_writes_refused(t, block=True)


@check(needs=("devices",), data=True, target=Target.BACKEND)
def a_device_opened_read_only_for_a_filesystem_refuses_writes(t: CheckContext) -> None:
    """A mount that is read-only writes too, when it replays a journal."""
    _expect_writes_refused(t, block=False)


def _expect_writes_refused(t: CheckContext, *, block: bool) -> None:
    volume = t.volume()
    write_to(open_device(t, volume).path, 0, pattern("kit before"))
    t.backend.close_device(volume.handle)
    device = open_device(t, volume, read_only=True, block=block)

    same(device.read_only, True, "open_device, with read_only: Device.read_only")
    try:
        write_to(device.path, 0, pattern("kit written"))
    except OSError:
        refused = True
    else:
        refused = False
    expect(refused, f"open_device, with read_only: {device.path} accepts writes")
    expect_bytes(device, "kit before", "open_device, with read_only, after an attempt to write")
    t.backend.close_device(volume.handle)
    same(open_device(t, volume).read_only, False, "open_device, then without read_only: Device.read_only")


@check(needs=("devices",), data=True, target=Target.BACKEND)
def an_open_device_is_found_after_a_restart(t: CheckContext) -> None:
    """The driver is restarted while pods continue to run."""
    volume = t.volume()
    device = open_device(t, volume)
    write_to(device.path, 0, pattern("kit device"))

    t.client.restart()
    same(t.backend.find_device(volume.handle), device, "find_device after a restart")
    expect_bytes(device, "kit device", "open_device, then a restart")
    same(open_device(t, volume), device, "open_device after a restart, while the device is open")
    t.backend.close_device(volume.handle)
    same(t.backend.find_device(volume.handle), None, "close_device after a restart, then find_device")


@check(needs=("devices",), data=True, target=Target.BACKEND)
def a_deleted_volume_has_no_device(t: CheckContext) -> None:
    """A node may not know whether a volume exists. close_device must succeed, or nodes could never be cleaned up."""
    volume = t.volume()
    t.client.delete(volume.handle)

    with t.refused(NotFound, what="open_device of a volume that was deleted"):
        t.close_at_end(volume)
        t.backend.open_device(OpenRequest(handle=volume.handle, block=True, secrets=t.storage.secrets))
    try:
        found = t.backend.find_device(volume.handle)
    except NotFound:
        found = None
    same(found, None, "find_device of a volume that was deleted")
    expect_success("close_device of a volume that was deleted", t.backend.close_device, volume.handle)


@check(needs=("devices",), data=True, target=Target.BACKEND)
def a_volume_whose_device_is_open_is_not_deleted(t: CheckContext) -> None:
    volume = t.volume()
    device = open_device(t, volume)
    write_to(device.path, 0, pattern("kit device"))

    what = "delete_volume of a volume whose device is open"
    with t.refused(InUse, FailedPrecondition, what=what):
        t.client.delete(volume.handle)
    same(t.backend.find_device(volume.handle), device, f"{what}: refused, then find_device")
    same(t.client.get(volume.handle).stamp, volume.stamp, f"{what}: refused, then the stamp of get_volume")
    expect_bytes(device, "kit device", f"{what}: refused")


@check(b.Attach, needs=("devices",), data=True, target=Target.BACKEND)
def a_volume_that_was_detached_while_its_device_is_open_is_not_deleted(t: CheckContext) -> None:
    """An orchestrator detaches by force from a node that it takes for dead, and whoever has it open may write."""
    volume = t.volume()
    open_device(t, volume)
    _, error = attempt(lambda: t.detach(volume))
    if error:
        expect(isinstance(error, InUse), f"detach while the device is open: raised {describe_error(error)}")
        return
    for pause in PAUSES:
        if t.backend.find_device(volume.handle) is None:
            raise CheckSkipped("a device vanishes with the attachment of its volume")
        time.sleep(pause)
    with t.refused(InUse, what="delete_volume of a volume that was detached while its device is open"):
        t.client.delete(volume.handle)


@check(b.Expand, needs=("devices",), data=True, target=Target.BACKEND)
def an_open_device_grows_with_its_volume(t: CheckContext) -> None:
    """It must be the same device: it may have a mounted filesystem."""
    if not t.backend.online:
        raise CheckSkipped("the backend expands only volumes that are not in use (Expand.online is False)")
    volume = t.volume()
    device = open_device(t, volume)
    write_to(device.path, volume.size - BLOCK_SIZE, pattern("kit end"))
    done = t.client.expand(volume.handle, SizeRange(required=volume.size + t.size))
    again = t.client.expand(volume.handle, SizeRange(required=volume.size + t.size))
    what = "expand_volume of an open device, repeated as after a lost answer: node_required"
    expect(again.node_required or not done.node_required, f"{what} is False, so its node never learns the new size")
    if done.node_required:
        given_secrets(t, t.backend.refresh_device)(volume.handle)

    what = f"expand_volume of an open device{', refresh_device' if done.node_required else ''}"
    same(t.backend.find_device(volume.handle), device, f"{what}, then find_device")
    expect_ends(device, volume.size, done.size, what)


def expect_ends(device: Device, old: int, new: int, what: str) -> None:
    """Require the new size, what was written at the old end, and that the new end can be written."""
    same(size_of(device), new, f"{what}: the size of {device.path}")
    found = read_from(device.path, old - BLOCK_SIZE, BLOCK_SIZE)
    expect(found == pattern("kit end"), f"{what}: data written at the old end cannot be read back")
    write_to(device.path, new - BLOCK_SIZE, pattern("kit new end"))
    found = read_from(device.path, new - BLOCK_SIZE, BLOCK_SIZE)
    expect(found == pattern("kit new end"), f"{what}: data written at the new end cannot be read back")


@check(needs=("devices",), data=True, target=Target.BACKEND)
def dead_loop_devices_of_somebody_else_change_nothing(t: CheckContext) -> None:
    """Their files, directories or disks are gone. Who looks at every device of the machine meets them."""
    old = t.volume()
    name = file_name(open_device(t, old))
    t.backend.close_device(old.handle)
    with ExitStack() as undo:
        theirs: dict[Path, DeadDevice] = {}
        t.create_foreign(lambda: theirs.update(undo.enter_context(dead_devices(name))))
        states = "; ".join(f"{device}: {one.what}" for device, one in theirs.items())
        for volume, what in ((old, "an existing volume"), (t.volume(), "a new volume")):
            what = f"{what}, beside dead loop devices of others ({states})"
            found = expect_success(f"find_device of {what}", t.backend.find_device, volume.handle)
            same(found, None, f"find_device of {what}")
            device = expect_success(f"open_device of {what}", open_device, t, volume)
            expect(device.path not in theirs, f"open_device of {what}: returned {device.path}")
            write_to(device.path, 0, pattern("kit beside"))
            expect_bytes(device, "kit beside", f"open_device of {what}")
            found = expect_success(f"find_device of {what}", t.backend.find_device, volume.handle)
            same(found, device, f"find_device of {what}, that is open")
            expect_success(f"close_device of {what}", t.backend.close_device, volume.handle)
            if b.Attach in t.features:
                t.client.detach(volume.handle, None)
            expect_success(f"delete_volume of {what}", t.client.delete, volume.handle)
            t.forget(volume)
            with t.refused(NotFound, what=f"get_volume of {what}, that was deleted"):
                t.client.get(volume.handle)
        t.client.restart()  # resume() looks for what an earlier process left
        gone = {str(device): one.what for device, one in are_gone(theirs).items()}
        expect(not gone, f"loop devices of somebody else were detached: {gone}")


def file_name(device: Device) -> str:
    """Return the name of the file that a loop device shows; some name for any other device."""
    backing = sysfs.attribute(device.number, "loop/backing_file")
    return Path(backing).name if backing else "volume.img"
