"""A loss of power after a success loses nothing (Storage.power_cut): what was not made durable in time is gone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from csi_multi.contract import Volume
from csi_multi.contract import backend as b

from ..assertions import CheckFailed, expect
from ..check import check
from ..context import CheckContext, pattern
from ..fault_injection import Fault
from ..fault_sweep import FaultSweep, restart_process
from ..operations.base import Operation, retry, wait_until_ready
from ..operations.change import DeleteGroupSnapshot, DeleteSnapshot, DeleteVolume, ExpandToTheEnd, ModifyVolume
from ..operations.create import CreateVolume
from ..operations.device import NoteFormatted, NoteFormatting
from ..protocol import Target, read_from, write_to
from .after_crash import creations
from .devices import open_device
from .modify import effects, in_use, wait_for_effect


def cut_power(t: CheckContext, what: str) -> None:
    """Cut the power, and start the next process."""
    assert t.storage.power_cut, "the check needs it"
    t.storage.power_cut()
    restart_process(t, what, resume=True)


@contextmanager
def advised() -> Iterator[None]:
    """Add to the message of a failure what to do about it."""
    try:
        yield
    except CheckFailed as error:
        raise CheckFailed(f"{error}; is everything synced before the answer, its directory too") from error


def expect_durable(operation: Operation) -> None:
    """Require of an operation that succeeded that a power cut right after it changes nothing."""
    for power_fails in (False, True):  # the first run shows how many resources there are without
        operation.begin()
        answer = operation.act()
        what = f"{operation.method} succeeded"
        if not power_fails:
            operation.verify(answer, what)
        else:
            what = f"{what}, then the power failed"
            with advised():
                cut_power(operation.t, what)
                operation.verify(answer, what)
        operation.clean_up(what)


def deletions(t: CheckContext) -> Iterator[Operation]:
    """Yield every deletion that the backend supports."""
    yield DeleteVolume(t)
    if b.Snapshots in t.features:
        yield DeleteSnapshot(t)
    if b.GroupSnapshots in t.features:
        yield DeleteGroupSnapshot(t)


@check(needs=("power_cut",), target=Target.BACKEND)
def what_was_created_survives_a_power_cut(t: CheckContext) -> None:
    """Volumes, copies and snapshots, with their data."""
    for creation in creations(t):
        expect_durable(creation)


@check(needs=("power_cut",), target=Target.BACKEND)
def what_was_deleted_stays_deleted_after_a_power_cut(t: CheckContext) -> None:
    """The orchestrator has forgotten it, and would never delete it again."""
    for deletion in deletions(t):
        expect_durable(deletion)


@check(b.Expand, needs=("power_cut",), target=Target.BACKEND)
def an_expansion_survives_a_power_cut(t: CheckContext) -> None:
    expect_durable(ExpandToTheEnd(t))


@check(b.Modify, needs=("power_cut", "other_mutable"), target=Target.BACKEND)
def the_record_of_a_modified_volume_survives_a_power_cut(t: CheckContext) -> None:
    expect_durable(ModifyVolume(t))


@check(b.Modify, needs=("power_cut", "other_mutable", "effect"), target=Target.BACKEND)
def a_modification_survives_a_power_cut(t: CheckContext) -> None:
    """Of a volume that was used, and is used again after it."""
    wanted = {**t.storage.mutable, **(t.storage.other_mutable or {})}
    volume, beside, model = t.volume(), t.volume(), t.volume(mutable=wanted)
    with ExitStack() as uses:
        for one in (volume, beside, model):
            uses.enter_context(in_use(t, one))
        _, in_force = effects(t, (volume, beside), model)
        t.client.modify(volume.handle, dict(t.storage.other_mutable or {}))
        what = "Storage.effect after modify_volume succeeded"
        wait_for_effect(t, volume, in_force, what)
    with advised():
        what = f"{what}, then the power failed"
        cut_power(t, what)
        with in_use(t, volume):
            wait_for_effect(t, volume, in_force, what)


@check(needs=("power_cut", "devices"), data=True, target=Target.BACKEND)
def the_notes_about_formatting_survive_a_power_cut(t: CheckContext) -> None:
    """Without them a volume with data would be formatted after the power is back."""
    for note in (NoteFormatting(t), NoteFormatted(t)):
        expect_durable(note)


@check(needs=("power_cut", "devices"), data=True, target=Target.BACKEND)
def data_that_was_synced_to_a_device_survives_a_power_cut(t: CheckContext) -> None:
    """Of a new volume, and of a copy: its blocks may be allocated, or shared, and not be written yet."""
    volume = t.volume()
    for number, one in enumerate(_with_copies(t, volume)):
        seed = f"kit synced {number}"
        write_to(open_device(t, one).path, one.size // 2, pattern(seed))
        cut_power(t, "data was written to a device and synced, then the power failed")
        found = read_from(open_device(t, one).path, one.size // 2, len(pattern(seed)))
        kind = "of a new volume" if one is volume else "of a copy"
        expect(found == pattern(seed), f"data written to a device {kind} and synced, then the power failed: it is lost")
        t.backend.close_device(one.handle)
        t.detach(one)  # a backend may refuse to copy what is attached: a controller sees no devices


def _with_copies(t: CheckContext, volume: Volume) -> Iterator[Volume]:
    yield volume
    if b.Clone in t.features:
        yield t.copy(volume)
    if b.Snapshots in t.features:
        yield t.copy(wait_until_ready(t, t.snapshot(volume)))


@check(needs=("power_cut",), target=Target.BACKEND)
def a_creation_completes_once_after_a_power_cut_at_any_call(t: CheckContext) -> None:
    """Unlike a crash, it may leave files without their contents, and undo what was not synced."""
    creation = CreateVolume(t)
    cuts = FaultSweep(creation, Fault.DEATH)
    for call in cuts:
        cuts.inject(call)
        what = f"{cuts.where}, because the power failed; repeated"
        with advised():
            cut_power(t, what)
            creation.verify(retry(creation.act, what), what)
        creation.clean_up(what)
