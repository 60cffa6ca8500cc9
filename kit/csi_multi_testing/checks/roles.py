"""Controller and node as processes of their own: what is open is known to the one, what is to be done to the other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from csi_multi.contract import Blank, Device, FailedPrecondition, InUse, SizeRange, Snapshot, Strings, Volume
from csi_multi.contract import backend as b

from ..assertions import CheckSkipped, expect, same
from ..check import check
from ..context import BLOCK_SIZE, CheckContext, pattern, source
from ..in_process import InProcessClient
from ..marked_secrets import given_secrets
from ..operations.base import wait_until_ready
from ..other_owners import client_of
from ..processes import (
    ANOTHER_NODE,
    controllers,
    expect_held,
    hide_from_other_nodes,
    node_process,
    open_on,
    require_other_nodes,
    require_record,
)
from ..protocol import Target, write_to
from .devices import expect_bytes, open_device, size_of
from .sources import expect_success

CONTROLLER = {"serves_node": False, "node": "controller"}
NODE_ONLY = {"controller": False}


@check(target=Target.BACKEND)
def a_volume_that_a_node_uses_is_not_deleted_by_a_controller(t: CheckContext) -> None:
    """A controller has the name of its node, and sees neither its devices nor those of other nodes."""
    require_record(t)
    volume, what = t.volume(), "a volume that is attached"
    if b.Attach in t.features:
        t.attach(volume, t.in_process.node())
    else:
        what = "a volume that is open"
        device = _opened(t, volume)
        for where, controller in controllers(t):
            with t.refused(InUse, FailedPrecondition, what=f"{what}: delete_volume by a controller {where}"):
                controller.delete(volume.handle)
        if hide_from_other_nodes(t, volume, device):
            expect_bytes(device, "kit role", f"{what}: delete_volume by a controller, refused")
    expect_held(t, volume, what)

    same(t.client.get(volume.handle).stamp, volume.stamp, f"{what}: delete_volume, refused, then get_volume")
    if b.Attach in t.features:
        t.client.detach(volume.handle, None)
    else:
        t.backend.close_device(volume.handle)
    what = f"{what}, and then no more: delete_volume by a controller"
    expect_success(what, client_of(t, CONTROLLER).delete, volume.handle)
    t.forget(volume)


def _opened(t: CheckContext, volume: Volume) -> Device:
    """Open a device and write to it. Raises CheckSkipped where there are none."""
    if not t.storage.devices:
        raise CheckSkipped("Storage.devices not given")
    if reason := t.no_data_reason():
        raise CheckSkipped(reason)
    device = open_device(t, volume)
    write_to(device.path, 0, pattern("kit role"))
    return device


@check(needs=("devices",), data=True, target=Target.BACKEND)
def a_process_that_starts_elsewhere_leaves_what_is_open_on_a_node(t: CheckContext) -> None:
    """It knows what it has open itself, and nothing of the others."""
    require_record(t)
    volume = t.volume()
    device = _opened(t, volume)
    here = hide_from_other_nodes(t, volume, device)
    for where, process in (*controllers(t), ("of another node", node_process(t, ANOTHER_NODE))):
        what = f"resume and check of a process {where}, while a volume is open on this node"
        expect_success(what, process.backend.resume)
        expect_success(what, process.backend.check)
        expect_held(t, volume, what)
        if here:
            same(t.backend.find_device(volume.handle), device, f"{what}, then find_device on this node")
            write_to(device.path, 0, pattern("kit role"))
    t.backend.close_device(volume.handle)
    expect_bytes(open_device(t, volume), "kit role", "a volume that was open while other processes started")


@dataclass(frozen=True)
class _ControllerAndNode:
    """A volume that a controller made and a node has open. The two processes share the storage only."""

    controller: InProcessClient
    node: InProcessClient
    volume: Volume
    context: Strings  # of the attachment
    device: Device

    def opened_again(self, t: CheckContext) -> Device:
        self.node.backend.close_device(self.volume.handle)
        return open_on(t, self.node, self.volume, self.context)


@contextmanager
def _controller_and_node(t: CheckContext) -> Iterator[_ControllerAndNode]:
    require_other_nodes(t)
    controller, node = client_of(t, CONTROLLER), client_of(t, NODE_ONLY)
    for process in (controller, node):
        expect_success("resume of a process that is only controller or only node", process.backend.resume)
        expect_success("check of a process that is only controller or only node", process.backend.check)
    volume = controller.create(t.spec())
    t.register(volume)
    t.close_at_end(volume)
    with ExitStack() as undo:
        if b.Attach in t.features:
            undo.callback(controller.detach, volume.handle, None)
        undo.callback(node.backend.close_device, volume.handle)
        what = "open_device by a process of the node, of a volume that a controller created"
        context = controller.attach(volume.handle, node.node()) if b.Attach in t.features else {}
        device = expect_success(what, open_on, t, node, volume, context)
        yield _ControllerAndNode(controller, node, volume, context, device)


@check(needs=("devices",), data=True, target=Target.BACKEND)
def a_volume_of_a_controller_is_formatted_and_used_by_a_node(t: CheckContext) -> None:
    """All other checks have one process for both. In a cluster no node is a controller."""
    with _controller_and_node(t) as made:
        handle = made.volume.handle
        for method, blank in (("formatting", Blank.INTERRUPTED), ("formatted", Blank.NEVER)):
            what = f"{method} by a process of the node"
            expect_success(what, given_secrets(t, getattr(made.node.backend, method)), handle)
            device = made.opened_again(t)
            same(device.blank, blank, f"{what}, then close_device and open_device: Device.blank")
        same(made.node.backend.find_device(handle), device, "find_device by a process of the node, of an open volume")
        write_to(device.path, 0, pattern("kit role"))
        device = made.opened_again(t)
        expect_bytes(device, "kit role", "a volume of a controller, written, closed and opened by a node")
    expect_success("delete_volume by a controller after the node closed it", made.controller.delete, handle)
    t.forget(made.volume)


@check(b.Expand, needs=("devices",), data=True, target=Target.BACKEND)
def a_device_grows_that_a_node_has_open_while_a_controller_expands(t: CheckContext) -> None:
    if not t.backend.online:
        raise CheckSkipped("the backend expands only volumes that are not in use (Expand.online is False)")
    with _controller_and_node(t) as made:
        wanted = SizeRange(required=made.volume.size + t.size)
        done = expect_success("expand_volume by a controller", made.controller.expand, made.volume.handle, wanted)
        if done.node_required:
            refresh = given_secrets(t, made.node.backend.refresh_device)
            expect_success("refresh_device by a process of the node", refresh, made.volume.handle)
        what = "expand_volume by a controller, then refresh_device by a process of the node"
        same(size_of(made.device), done.size, f"{what}: the size of {made.device.path}")


@check(needs=("devices",), data=True, target=Target.BACKEND)
def a_copy_by_a_controller_holds_what_a_node_has_synced_or_is_refused(t: CheckContext) -> None:
    """The controller cannot ask for what the node has in memory: what was synced must be on the storage."""
    kinds: dict[type[b.Backend], str] = {b.Snapshots: "create_snapshot", b.Clone: "clone_volume"}
    wanted = {feature: method for feature, method in kinds.items() if feature in t.features}
    if not wanted:
        raise CheckSkipped("the backend declares neither Snapshots nor Clone")
    with _controller_and_node(t) as made:
        texts = [pattern("kit role"), pattern("kit role, too")]
        for number, text in enumerate(texts):
            write_to(made.device.path, number * BLOCK_SIZE, text)
        for feature, method in wanted.items():
            copy = _copied(t, made, feature)
            if copy is None:
                t.note(f"{method} by a controller: refused while the volume is open")
                continue
            expect(
                t.read_pieces(copy, (0, BLOCK_SIZE), (BLOCK_SIZE, BLOCK_SIZE)) == texts,
                f"{method} by a controller, of a volume that a node has open: what was synced before is missing",
            )


def _copied(t: CheckContext, made: _ControllerAndNode, feature: type[b.Backend]) -> Volume | None:
    """Return a volume with the copied data, None where the copy is refused."""
    origin: Volume | Snapshot = made.volume
    try:
        if feature is b.Snapshots:
            origin = made.controller.snapshot(t.name("snapshot"), made.volume.handle)
            t.register(origin)
            origin = wait_until_ready(t, origin)
        copy = made.controller.create(t.spec(size=0, source=source(origin)))
    except FailedPrecondition:  # InUse is one of them
        return None
    t.register(copy)
    return copy
