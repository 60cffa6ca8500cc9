"""A process may die at any call while it opens, closes or notes something on this node, or while it starts."""

from __future__ import annotations

from csi_multi.contract import backend as b

from ..assertions import same
from ..check import On, check
from ..context import CheckContext
from ..disturbance import Disturbance, reborn
from ..fault_injection import Fault
from ..operations.base import firmly
from ..operations.device import CloseDevice, Formatted, Formatting, OpenDevice, RefreshDevice
from ..operations.starting import Start
from .crashes import recovers


@check(needs=("devices",), data=True, on=On.BACKEND)
def opening_a_device_completes_after_a_crash_at_any_call(t: CheckContext) -> None:
    recovers(OpenDevice(t))


@check(needs=("devices",), data=True, on=On.BACKEND)
def a_device_can_be_closed_after_a_crash_at_any_call_of_opening_it(t: CheckContext) -> None:
    """The pod is gone before the device was there."""
    opening = OpenDevice(t)
    deaths = Disturbance(opening, Fault.DEATH)
    for call in deaths:
        deaths.strike(call)
        what = f"{deaths.where}, then close_device"
        reborn(t, what, resume=False)
        firmly(lambda: t.backend.close_device(opening.volume.handle), what)
        same(opening.found(), None, f"{what}: find_device")
        opening.finish(what)


@check(needs=("devices",), data=True, on=On.BACKEND)
def closing_a_device_completes_after_a_crash_at_any_call(t: CheckContext) -> None:
    recovers(CloseDevice(t))


@check(b.Expand, needs=("devices",), data=True, on=On.BACKEND)
def refreshing_a_device_completes_after_a_crash_at_any_call(t: CheckContext) -> None:
    recovers(RefreshDevice(t))


@check(needs=("devices",), data=True, on=On.BACKEND)
def the_formatting_note_is_old_or_new_after_a_crash_at_any_call(t: CheckContext) -> None:
    recovers(Formatting(t))


@check(needs=("devices",), data=True, on=On.BACKEND)
def the_formatted_note_is_old_or_new_after_a_crash_at_any_call(t: CheckContext) -> None:
    recovers(Formatted(t))


@check(on=On.BACKEND)
def a_crash_at_any_call_of_resume_is_repaired_by_the_next_start(t: CheckContext) -> None:
    recovers(Start(t))
