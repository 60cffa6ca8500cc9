"""Another node beside the one that has a volume open: it is refused, and what it does takes nothing away."""

from __future__ import annotations

from contextlib import ExitStack, suppress

from csi_multi.contract import Device, FailedPrecondition, InUse, Volume
from csi_multi.contract import backend as b

from ..assertions import CheckFailed, CheckSkipped, expect, same
from ..check import check
from ..concurrency import CallResult, expect_answers
from ..context import BLOCK_SIZE, CheckContext, pattern
from ..interleaving import Encounter, expect_order
from ..operations.base import attempt
from ..processes import (
    ANOTHER_NODE,
    THIRD_NODE,
    expect_held,
    hide_from_other_nodes,
    node_process,
    open_on,
    require_other_nodes,
    require_record,
)
from ..protocol import Target, read_from, write_to
from .devices import expect_bytes, open_device
from .interleaved_copies import delete_all
from .sources import expect_success


def require_exclusive(t: CheckContext) -> None:
    require_other_nodes(t)
    if b.Attach in t.features or not t.backend.opens_exclusively:
        raise CheckSkipped(
            "only for a backend without Attach whose open_device keeps a volume to one node (opens_exclusively)"
        )


def open_with_data(t: CheckContext) -> tuple[Volume, Device]:
    volume = t.volume()
    device = open_device(t, volume)
    write_to(device.path, 0, pattern("kit node"))
    return volume, device


def expect_works(t: CheckContext, volume: Volume, device: Device, what: str) -> None:
    """Require that a device is still open, and that what is written to it is kept."""
    same(t.backend.find_device(volume.handle), device, f"{what}, then find_device on the node that has it open")
    expect_bytes(device, "kit node", f"{what}, then the device of the node that has it open")
    try:
        write_to(device.path, BLOCK_SIZE, pattern("kit after"))
    except OSError as error:
        raise CheckFailed(f"{what}, then a write on the node that has it open failed: {error}") from error


def expect_data(device: Device, *, after: bool, what: str) -> None:
    expect_bytes(device, "kit node", what)
    if after:
        found = read_from(device.path, BLOCK_SIZE, BLOCK_SIZE)
        expect(found == pattern("kit after"), f"{what}: what was written after it was refused elsewhere is lost")


@check(needs=("devices",), data=True, target=Target.BACKEND)
def a_volume_that_is_open_on_one_node_is_refused_on_another_one(t: CheckContext) -> None:
    """And by name, because an operator must find that node. The engine relies on opens_exclusively."""
    require_exclusive(t)
    volume, device = open_with_data(t)
    here = hide_from_other_nodes(t, volume, device)
    other, what = node_process(t, THIRD_NODE), f"open_device on node {THIRD_NODE!r} of a volume that is open here"
    with ExitStack() as undo:
        undo.callback(other.backend.close_device, volume.handle)
        with t.refused(InUse, FailedPrecondition, what=what):
            _, error = attempt(lambda: open_on(t, other, volume))
            if error:
                name = t.backend.setting.node
                expect(name in str(error), f"{what}: refused with {str(error)!r}, which does not name node {name!r}")
                raise error
        same(other.backend.find_device(volume.handle), None, f"{what}: refused, then find_device there")
        if here:
            expect_works(t, volume, device, f"{what}: refused")
        t.backend.close_device(volume.handle)

        what = "open_device after another node closed the volume"
        expect_data(expect_success(what, open_on, t, other, volume), after=here, what=what)
        with t.refused(InUse, FailedPrecondition, what=f"{what}, then on the first node"):
            open_device(t, volume)


@check(needs=("devices",), data=True, target=Target.BACKEND)
def closing_a_volume_on_another_node_leaves_it_open_on_this_one(t: CheckContext) -> None:
    """kubelet unstages on every node where a staging was tried, also where it failed."""
    require_record(t)
    volume, device = open_with_data(t)
    here = hide_from_other_nodes(t, volume, device)
    other, what = node_process(t, ANOTHER_NODE).backend, f"close_device on node {ANOTHER_NODE!r}"
    for _ in range(2):
        expect_success(f"{what} of a volume that is open here", other.close_device, volume.handle)
        expect_held(t, volume, f"{what} of a volume that is open here")
    if here:
        expect_works(t, volume, device, what)
    t.backend.close_device(volume.handle)
    expect_data(open_device(t, volume), after=here, what=f"{what}, then closed and opened here")


class OpenBesideOpen(Encounter):
    methods = ("open_device", "open_device")

    def prepare(self) -> None:
        self.volume = self.t.volume()
        self.t.close_at_end(self.volume)

    def first(self) -> Device:
        return open_on(self.t, self.t.in_process, self.volume)

    def second(self) -> Device:
        return open_on(self.t, self.other, self.volume)

    def verify(self, first: CallResult, second: CallResult, what: str) -> None:
        opened = [one for one in (first, second) if not one.error]
        expect(len(opened) < 2, f"{what}: both nodes have the volume open")
        expect_answers(self.t, [first, second], InUse, FailedPrecondition)
        self.release()
        delete_all(self.t, what, self.volume)

    def release(self) -> None:
        for client in (self.t.in_process, self.other):
            with suppress(Exception):
                client.backend.close_device(self.volume.handle)


@check(needs=("devices",), data=True, target=Target.BACKEND)
def two_nodes_that_open_a_volume_at_any_call_do_not_both_have_it(t: CheckContext) -> None:
    """A look for the holder and the record of the new one must be one step."""
    require_exclusive(t)
    volume, device = open_with_data(t)
    hide_from_other_nodes(t, volume, device)  # skips the check where one machine cannot be two
    other = node_process(t, THIRD_NODE, t.injector)
    expect_order(OpenBesideOpen(t, other))
