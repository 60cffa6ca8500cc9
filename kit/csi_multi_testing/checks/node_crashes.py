"""A process may die at any call while it opens or closes a device, writes a format note, or starts."""

from __future__ import annotations

from csi_multi.contract import backend as b

from ..assertions import same
from ..check import check
from ..context import CheckContext
from ..fault_injection import Fault
from ..fault_sweep import FaultSweep, restart_process
from ..operations.base import retry
from ..operations.device import CloseDevice, NoteFormatted, NoteFormatting, OpenDevice, RefreshDevice
from ..operations.startup import ResumeProcess
from ..protocol import Target
from .crashes import expect_recovery


@check(needs=("devices",), data=True, target=Target.BACKEND)
def opening_a_device_completes_after_a_crash_at_any_call(t: CheckContext) -> None:
    expect_recovery(OpenDevice(t))


@check(needs=("devices",), data=True, target=Target.BACKEND)
def a_device_can_be_closed_after_a_crash_at_any_call_of_opening_it(t: CheckContext) -> None:
    """The pod was deleted before the device was open."""
    opening = OpenDevice(t)
    deaths = FaultSweep(opening, Fault.DEATH)
    for call in deaths:
        deaths.inject(call)
        what = f"{deaths.where}, then close_device"
        restart_process(t, what, resume=False)
        retry(lambda: t.backend.close_device(opening.volume.handle), what)
        same(opening.found(), None, f"{what}: find_device")
        opening.clean_up(what)


@check(needs=("devices",), data=True, target=Target.BACKEND)
def closing_a_device_completes_after_a_crash_at_any_call(t: CheckContext) -> None:
    expect_recovery(CloseDevice(t))


@check(b.Expand, needs=("devices",), data=True, target=Target.BACKEND)
def refreshing_a_device_completes_after_a_crash_at_any_call(t: CheckContext) -> None:
    expect_recovery(RefreshDevice(t))


@check(needs=("devices",), data=True, target=Target.BACKEND)
def the_formatting_note_is_old_or_new_after_a_crash_at_any_call(t: CheckContext) -> None:
    expect_recovery(NoteFormatting(t))


@check(needs=("devices",), data=True, target=Target.BACKEND)
def the_formatted_note_is_old_or_new_after_a_crash_at_any_call(t: CheckContext) -> None:
    expect_recovery(NoteFormatted(t))


@check(target=Target.BACKEND)
def a_crash_at_any_call_of_resume_is_repaired_by_the_next_start(t: CheckContext) -> None:
    expect_recovery(ResumeProcess(t))
