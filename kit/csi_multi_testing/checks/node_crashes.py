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


@check(given=("devices",), data=True, on=On.BACKEND)
def an_opening_that_died_anywhere_is_finished(t: CheckContext) -> None:
    recovers(OpenDevice(t))


@check(given=("devices",), data=True, on=On.BACKEND)
def an_opening_that_died_anywhere_can_be_closed(t: CheckContext) -> None:
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


@check(given=("devices",), data=True, on=On.BACKEND)
def a_closing_that_died_anywhere_is_finished(t: CheckContext) -> None:
    recovers(CloseDevice(t))


@check(b.Expand, given=("devices",), data=True, on=On.BACKEND)
def a_refresh_that_died_anywhere_is_finished(t: CheckContext) -> None:
    recovers(RefreshDevice(t))


@check(given=("devices",), data=True, on=On.BACKEND)
def a_note_about_formatting_that_died_anywhere_is_old_or_new(t: CheckContext) -> None:
    recovers(Formatting(t))


@check(given=("devices",), data=True, on=On.BACKEND)
def a_note_about_use_that_died_anywhere_is_old_or_new(t: CheckContext) -> None:
    recovers(Formatted(t))


@check(on=On.BACKEND)
def a_start_that_died_anywhere_is_made_good_by_the_next(t: CheckContext) -> None:
    recovers(Start(t))
