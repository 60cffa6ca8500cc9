"""Attachment: to one node at a time, reported correctly, removed completely (csi-spec ControllerPublishVolume)."""

from __future__ import annotations

from dataclasses import replace

from csi_multi.contract import (
    AccessMode,
    AlreadyExists,
    AttachRequest,
    Capability,
    FailedPrecondition,
    Node,
    NotFound,
    OpenRequest,
    StorageError,
    Strings,
    Volume,
)
from csi_multi.contract import backend as b

from ..assertions import CheckSkipped, expect, same
from ..check import check
from ..context import CheckContext
from ..operations.base import attempt, describe_error
from ..protocol import BLOCK, Target

MAX_CONTEXT = 4096  # bytes of a publish context, keys and values (csi-spec 2.2)
UNKNOWN_NODE = Node(name="no-such-node", id="no-such-node")
OTHER_FACT = "kit-other=fact-1"  # of an instance that is not tested (contract.ids.join_node)


def single_node_use(t: CheckContext) -> Capability:
    """Return Storage.capability with a single-node access mode."""
    return replace(t.storage.capability or BLOCK, mode=AccessMode.SINGLE_NODE_WRITER)


def two_nodes(t: CheckContext) -> tuple[Node, Node]:
    expect(len(t.storage.nodes) > 1, "Storage.nodes has one node; give two")
    return t.storage.nodes[0], t.storage.nodes[1]


def attach(t: CheckContext, volume: Volume, node: Node, *, read_only: bool = False) -> Strings:
    context: Strings = t.attach(volume, node, capability=single_node_use(t), read_only=read_only)
    return context


def expect_only_at(t: CheckContext, volume: Volume, node: Node, what: str) -> None:
    """Require that the volume is attached to this node: another node is refused, and the error names this node."""
    other = next(one for one in t.storage.nodes if one != node)
    refusals: list[str] = []
    with t.refused(FailedPrecondition, what=f"{what}: attach to {other.id!r}, while it is attached to {node.id!r}"):
        try:
            attach(t, volume, other)
        except StorageError as error:
            refusals.append(str(error))
            raise
    names = [name for name in (node.name, node.id, node.fact) if name]
    expect(
        any(name in refusals[0] for name in names),
        f"{what}: attach to {other.id!r} was refused with {refusals[0]!r}, which does not name node {node.id!r}",
    )


@check(b.Attach, needs=("nodes",))
def a_repeated_attachment_returns_the_same_publish_context(t: CheckContext) -> None:
    node, volume = t.storage.nodes[0], t.volume()

    first = attach(t, volume, node)

    for key, value in first.items():
        good = isinstance(key, str) and isinstance(value, str)
        expect(good, f"attach gave the context {key!r}: {value!r}: keys and values must be strings")
    size = sum(len(text.encode()) for item in first.items() for text in item)
    expect(size <= MAX_CONTEXT, f"attach gave a context of {size} bytes: the maximum is {MAX_CONTEXT}")
    same(attach(t, volume, node), first, "attach, repeated")
    t.client.restart()
    same(attach(t, volume, node), first, "attach, repeated after a restart")


@check(b.Attach, needs=("nodes",))
def a_single_node_volume_is_not_attached_to_a_second_node(t: CheckContext) -> None:
    node, _ = two_nodes(t)
    volume = t.volume()
    attach(t, volume, node)

    expect_only_at(t, volume, node, "a volume with one writer")


@check(b.Attach, needs=("nodes",))
def attaching_to_an_unknown_node_is_not_found(t: CheckContext) -> None:
    volume = t.volume()

    with t.refused(NotFound, what=f"attach to {UNKNOWN_NODE.id!r}, a node that does not exist"):
        attach(t, volume, UNKNOWN_NODE)

    attach(t, volume, t.storage.nodes[0])  # the refused request leaves nothing behind


@check(b.Attach, needs=("nodes",), target=Target.BACKEND)
def a_deleted_volume_can_neither_be_attached_nor_detached(t: CheckContext) -> None:
    node, volume = t.storage.nodes[0], t.volume()
    t.client.delete(volume.handle)

    wanted = AttachRequest(handle=volume.handle, node=node, capability=single_node_use(t), secrets=t.storage.secrets)
    with t.refused(NotFound, what="attach of a volume that was deleted"):
        t.backend.attach(wanted)
    for where in (node, None):
        with t.refused(NotFound, what="detach of a volume that was deleted"):
            t.backend.detach(volume.handle, where, t.storage.secrets)


@check(b.ReadOnlyAttach, needs=("nodes",))
def attaching_again_with_another_access_is_refused(t: CheckContext) -> None:
    node, volume = t.storage.nodes[0], t.volume()
    for read_only in (True, False):
        first = attach(t, volume, node, read_only=read_only)
        what = f"attach with read_only {not read_only}, while it is attached with read_only {read_only}"
        with t.refused(AlreadyExists, what=what):
            attach(t, volume, node, read_only=not read_only)
        same(attach(t, volume, node, read_only=read_only), first, f"attach, repeated after: {what}")
        t.client.detach(volume.handle, node)


@check(b.Attach, needs=("nodes",), target=Target.BACKEND)
def a_node_whose_id_has_changed_is_the_same_node(t: CheckContext) -> None:
    """An id has the facts of all instances of a driver: it changes when one is added, while volumes are attached."""
    node, volume = t.storage.nodes[0], t.volume()
    earlier = replace(node, id=f"{node.id};{OTHER_FACT}")
    first = attach(t, volume, earlier)

    same(attach(t, volume, node), first, f"attach to node {node.name!r}, repeated with its new id {node.id!r}")
    if b.PublishedNodes in t.features:
        same(t.client.get(volume.handle).published_nodes, (node.id,), "published_nodes, after that")

    t.client.detach(volume.handle, earlier)
    with t.refused(NotFound, what=f"detach from node {node.name!r}, after it was detached by its earlier id"):
        t.backend.detach(volume.handle, node, t.storage.secrets)


@check(b.Attach, needs=("nodes",))
def a_detached_volume_can_be_attached_to_another_node(t: CheckContext) -> None:
    one, other = two_nodes(t)
    volume = t.volume()
    for node, where in ((one, one), (other, None)):
        attach(t, volume, node)
        t.client.detach(volume.handle, where)
        t.client.detach(volume.handle, where)  # an orchestrator may repeat the call
    attach(t, volume, one)
    expect_only_at(t, volume, one, "attached again")


@check(b.Attach, needs=("nodes",), target=Target.BACKEND)
def detaching_what_is_not_attached_is_not_found(t: CheckContext) -> None:
    one, other = two_nodes(t)
    volume = t.volume()
    requests: list[tuple[Node | None, str]] = [(one, "not attached"), (None, "not attached")]
    for node, state in requests:
        with t.refused(NotFound, what=f"detach from {node and node.id!r} of a volume that is {state}"):
            t.backend.detach(volume.handle, node, t.storage.secrets)
    attach(t, volume, one)
    with t.refused(NotFound, what=f"detach from {other.id!r} of a volume that is attached to {one.id!r}"):
        t.backend.detach(volume.handle, other, t.storage.secrets)


@check(b.Attach, needs=("nodes",))
def detaching_from_another_node_leaves_the_attachment(t: CheckContext) -> None:
    one, other = two_nodes(t)
    volume = t.volume()
    attach(t, volume, one)

    t.client.detach(volume.handle, other)

    expect_only_at(t, volume, one, f"after a detach from {other.id!r}")


@check(b.Attach, needs=("nodes",))
def an_attached_volume_is_not_deleted(t: CheckContext) -> None:
    node, _ = two_nodes(t)
    volume = t.volume()
    if has_data := not t.no_data_reason():
        t.fill(volume, "attached")
    attach(t, volume, node)

    with t.refused(FailedPrecondition, what=f"delete_volume, while it is attached to {node.id!r}"):
        t.client.delete(volume.handle)

    expect_only_at(t, volume, node, "after a refused delete_volume")
    t.client.detach(volume.handle, node)
    if has_data:
        t.expect_filled(volume, "attached", volume.size, "after a refused delete_volume")


@check(b.Attach, needs=("nodes", "devices"), data=True, target=Target.BACKEND)
def a_volume_that_is_attached_to_another_node_is_not_opened_here(t: CheckContext) -> None:
    """A node that came back late, or acts on an old request, would write beside the one that has the volume."""
    here, volume = t.in_process.node(), t.volume()
    other = next((one for one in t.storage.nodes if one.name != here.name), None)
    if other is None:
        raise CheckSkipped(f"Storage.nodes has no node but {here.name!r}, which is this one")
    context = attach(t, volume, other)
    t.close_at_end(volume)
    request = OpenRequest(handle=volume.handle, block=True, publish_context=context, secrets=t.storage.secrets)
    device, error = attempt(lambda: t.backend.open_device(request))
    outcome = describe_error(error) if error else f"opened {device}"
    expect(
        isinstance(error, StorageError),
        f"open_device on {here.name!r} of a volume that is attached to {other.name!r}: {outcome}, the contract "
        "requires FailedPrecondition",
    )


@check(b.ReadOnlyAttach, needs=("nodes", "devices"), data=True, target=Target.BACKEND)
def a_volume_that_was_attached_read_only_is_not_opened_writable(t: CheckContext) -> None:
    """The attachment says who may write, and not the node that opens the device."""
    volume = t.volume()
    context = attach(t, volume, t.in_process.node(), read_only=True)
    t.close_at_end(volume)
    request = OpenRequest(handle=volume.handle, block=True, publish_context=context, secrets=t.storage.secrets)
    device, _ = attempt(lambda: t.backend.open_device(request))
    expect(
        device is None or device.read_only,
        f"open_device of a volume that was attached read-only: opened {device}, which can be written",
    )
