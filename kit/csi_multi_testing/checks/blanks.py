"""Device.blank, which decides whether a device is formatted: a wrong value destroys data (contract.Blank)."""

from __future__ import annotations

from contextlib import suppress

from csi_multi.contract import Blank, FailedPrecondition, SizeRange, Volume
from csi_multi.contract import backend as b

from ..assertions import CheckSkipped, expect, same
from ..check import check
from ..context import BLOCK_SIZE, CheckContext, pattern
from ..marked_secrets import given_secrets
from ..protocol import Target, read_from, write_to
from .devices import open_device
from .sources import ChooseSource, snapshot_as_source, volume_as_source

BLANK_STATES = (Blank.ZEROED, Blank.STAMPED)


def blank_of(t: CheckContext, volume: Volume, what: str) -> Blank:
    """Open and close a volume's device; return Device.blank, the same from open_device and find_device."""
    device = open_device(t, volume)
    found = t.backend.find_device(volume.handle)
    same(found and found.blank, device.blank, f"{what}: Device.blank of find_device, against open_device's")
    t.backend.close_device(volume.handle)
    return device.blank


def volume_with_notes(t: CheckContext) -> Volume:
    """Return a new volume of a backend that keeps both format notes.

    Without `formatted` a used volume stays as blank as a new one; without `formatting` the rest of a killed mkfs is
    taken for data. Reads do not show the difference: data may begin anywhere.
    """
    own = type(t.backend)
    absent = [name for name in ("formatting", "formatted") if getattr(own, name) is getattr(b.Backend, name)]
    expect(
        not absent,
        f"{' and '.join(absent)} not overridden: the backend keeps no format notes, so the driver would format volumes "
        "with data",
    )
    volume = t.volume()
    blank_of(t, volume, "a new volume")  # a note is taken of a volume that was opened
    return volume


@check(needs=("devices",), data=True, target=Target.BACKEND)
def a_new_volume_is_as_blank_as_its_device_reports(t: CheckContext) -> None:
    """Its space may have held the bytes of a volume that was deleted."""
    used = t.volume()
    t.fill(used, "kit used")
    t.client.delete(used.handle)
    volume = t.volume()

    device = open_device(t, volume)
    message = f"open_device of a new volume: Device.blank is {device.blank}"
    expect(
        device.blank in BLANK_STATES,
        f"{message}, the contract requires one of {BLANK_STATES}: otherwise the volume can never be formatted",
    )
    if device.blank is Blank.ZEROED:
        for offset in (0, volume.size - BLOCK_SIZE):
            found = read_from(device.path, offset, BLOCK_SIZE)
            expect(not any(found), f"{message}, but the block is not zero at {offset}")


@check(needs=("devices",), data=True, target=Target.BACKEND)
def formatting_notes_survive_a_restart(t: CheckContext) -> None:
    """INTERRUPTED from before mkfs, NEVER from after it, also after a restart."""
    volume = volume_with_notes(t)
    for method, wanted in (("formatting", Blank.INTERRUPTED), ("formatted", Blank.NEVER), ("formatted", Blank.NEVER)):
        given_secrets(t, getattr(t.backend, method))(volume.handle)
        for when in (method, f"{method} and a restart"):
            same(blank_of(t, volume, when), wanted, f"{when}, then Device.blank")
            t.client.restart()


@check(needs=("devices",), data=True, target=Target.BACKEND)
def formatting_notes_can_be_written_while_the_device_is_open(t: CheckContext) -> None:
    """The node engine calls open_device, formatting, mkfs, formatted in this order."""
    volume = volume_with_notes(t)
    open_device(t, volume)
    for method, wanted in (("formatting", Blank.INTERRUPTED), ("formatted", Blank.NEVER)):
        given_secrets(t, getattr(t.backend, method))(volume.handle)
        same(open_device(t, volume).blank, wanted, f"{method} of an open device, then Device.blank of open_device")


@check(needs=("devices",), data=True, target=Target.BACKEND)
def a_formatted_volume_is_never_blank_again(t: CheckContext) -> None:
    """Not even if formatting is called once more, with its device open or closed; it may be refused."""
    volume = volume_with_notes(t)
    given_secrets(t, t.backend.formatted)(volume.handle)

    with suppress(FailedPrecondition):
        given_secrets(t, t.backend.formatting)(volume.handle)
    same(blank_of(t, volume, "formatted, then formatting"), Blank.NEVER, "formatted, then formatting: Device.blank")
    open_device(t, volume)
    with suppress(FailedPrecondition):
        given_secrets(t, t.backend.formatting)(volume.handle)
    what = "formatted, then formatting with the device open"
    found = t.backend.find_device(volume.handle)
    same(found and found.blank, Blank.NEVER, f"{what}: Device.blank of find_device")
    t.backend.close_device(volume.handle)
    same(blank_of(t, volume, what), Blank.NEVER, f"{what}, then closed: Device.blank")


@check(b.Expand, needs=("devices",), data=True, target=Target.BACKEND)
def an_expanded_volume_is_as_blank_as_before(t: CheckContext) -> None:
    volume = volume_with_notes(t)
    given_secrets(t, t.backend.formatted)(volume.handle)

    t.client.expand(volume.handle, SizeRange(required=volume.size + t.size))
    same(blank_of(t, volume, "expand_volume"), Blank.NEVER, "formatted, then expand_volume: Device.blank")


@check(b.Snapshots, needs=("devices",), data=True, target=Target.BACKEND)
def a_restored_volume_is_never_blank(t: CheckContext) -> None:
    copy = t.copy(snapshot_as_source(t, t.volume()))

    same(blank_of(t, copy, "restore_volume"), Blank.NEVER, "restore_volume, then Device.blank")


@check(b.Clone, needs=("devices",), data=True, target=Target.BACKEND)
def a_cloned_volume_is_never_blank(t: CheckContext) -> None:
    copy = t.copy(t.volume())

    same(blank_of(t, copy, "clone_volume"), Blank.NEVER, "clone_volume, then Device.blank")


@check(needs=("devices",), data=True, target=Target.BACKEND)
def has_data_tells_a_written_volume_from_a_new_one(t: CheckContext) -> None:
    """One block, wherever it is: what somebody wrote past the driver is formatted otherwise."""
    size = t.volume().size
    for offset in (0, size // 2 // BLOCK_SIZE * BLOCK_SIZE, size - BLOCK_SIZE):
        volume = t.volume(size=size)
        device = open_device(t, volume)
        found = given_secrets(t, t.backend.has_data)(volume.handle)
        if found is None:
            raise CheckSkipped("the storage does not know what was written: has_data returns None")
        same(found, False, "a new volume, then has_data")
        write_to(device.path, offset, pattern("kit written"))
        found = given_secrets(t, t.backend.has_data)(volume.handle)
        same(found, True, f"one block was written at {offset}, then has_data")


def delete_opened(t: CheckContext, volume: Volume) -> None:
    """Delete a volume whose device was opened and closed."""
    if b.Attach in t.features:
        t.client.detach(volume.handle, None)
    t.delete(volume)


@check(needs=("devices",), data=True, target=Target.BACKEND)
def a_volume_that_is_made_again_under_its_name_is_as_blank_as_a_new_one(t: CheckContext) -> None:
    """The notes go with the volume that they were about, and are taken of the new one again."""
    new = blank_of(t, volume_with_notes(t), "a new volume")
    for method, wanted in (("formatting", Blank.INTERRUPTED), ("formatted", Blank.NEVER)):
        volume = t.volume()
        blank_of(t, volume, "a new volume")
        given_secrets(t, getattr(t.backend, method))(volume.handle)
        delete_opened(t, volume)
        again = t.volume(volume.stamp.name)
        what = f"{method}, delete_volume, and create_volume under the name: Device.blank"
        same(blank_of(t, again, "create_volume under the name of a deleted volume"), new, what)
        given_secrets(t, getattr(t.backend, method))(again.handle)
        what = f"{method}, of a second volume of the name too: Device.blank"
        same(blank_of(t, again, f"{method} of a second volume of the name"), wanted, what)


def _expect_never_blank_again(t: CheckContext, choose_source: ChooseSource) -> None:
    of = choose_source(t, t.volume())
    for method in ("", "formatting"):
        volume = volume_with_notes(t)
        if method:
            given_secrets(t, getattr(t.backend, method))(volume.handle)
        delete_opened(t, volume)
        copy = t.copy(of, volume.stamp.name)
        what = f"a copy under the name of a deleted volume{f' that had the note {method}' if method else ''}"
        same(blank_of(t, copy, what), Blank.NEVER, f"{what}: Device.blank")


@check(b.Snapshots, needs=("devices",), data=True, target=Target.BACKEND)
def a_volume_restored_under_the_name_of_a_blank_one_is_never_blank(t: CheckContext) -> None:
    _expect_never_blank_again(t, snapshot_as_source)


@check(b.Clone, needs=("devices",), data=True, target=Target.BACKEND)
def a_clone_under_the_name_of_a_blank_volume_is_never_blank(t: CheckContext) -> None:
    _expect_never_blank_again(t, volume_as_source)
