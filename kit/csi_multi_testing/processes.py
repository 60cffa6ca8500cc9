"""Processes as in a cluster: controllers and nodes on machines of their own, which the kit has only one of.

Where a process would find the device that another node has open, because both ask one kernel, the kit detaches it: what
remains is what the storage knows, which is all that a process on another machine has. It can do that with loop devices.
"""

from __future__ import annotations

from collections.abc import Iterator

from csi_multi.contract import Device, FailedPrecondition, InUse, NodeLocal, OpenRequest, Strings, Volume
from csi_multi.contract import backend as b
from csi_multi.host import loopdev, sysfs
from csi_multi.host.command import LocalHost

from .assertions import CheckSkipped, expect
from .context import CheckContext
from .fault_injection import FaultInjector
from .in_process import InProcessClient
from .other_owners import client_of
from .storage import NODE

# The first one begins with the name of the kit's node.
OTHER_NODES = ANOTHER_NODE, THIRD_NODE = f"{NODE}0", "node-2"


def node_process(t: CheckContext, node: str, injector: FaultInjector | None = None) -> InProcessClient:
    """Return a client of the process on another node, which is no controller."""
    return client_of(t, {"node": node, "controller": False}, injector)


def controllers(t: CheckContext) -> Iterator[tuple[str, InProcessClient]]:
    """Yield controllers that do not serve the node that they run on: the kit's node, and another one."""
    yield "on this node", client_of(t, {"serves_node": False})
    yield "on another node", client_of(t, {"serves_node": False, "node": ANOTHER_NODE})


def require_other_nodes(t: CheckContext) -> None:
    """Raise CheckSkipped for a backend that has one process for all."""
    if NodeLocal in t.features:
        raise CheckSkipped("the volumes are on one node, whose process is its controller too (NodeLocal)")


def require_record(t: CheckContext) -> None:
    """Raise CheckSkipped for a backend whose storage does not know which node has a volume."""
    require_other_nodes(t)
    if b.Attach not in t.features and not t.backend.opens_exclusively:
        raise CheckSkipped(
            "neither Attach nor opens_exclusively is declared: the storage does not know which node uses a volume"
        )


def hide_from_other_nodes(t: CheckContext, volume: Volume, device: Device) -> bool:
    """Make the open device one that no other node finds. Returns whether it is still there.

    Raises CheckSkipped where the kit cannot do that.
    """
    if not (finders := _finders(t, volume)):
        return True
    expect(
        len(finders) == len(OTHER_NODES),
        f"find_device on node {' and '.join(map(repr, finders))} returns the device that another node has open, and "
        "on other nodes it does not: compare the names of nodes as a whole",
    )
    if sysfs.attribute(device.number, "loop/backing_file"):
        loopdev.detach(LocalHost(), device.path)
    if _finders(t, volume):
        raise CheckSkipped(
            f"processes of other nodes find {device.path} too, so this machine cannot stand for several nodes"
        )
    return False


def _finders(t: CheckContext, volume: Volume) -> list[str]:
    """Return the other nodes whose processes find a device of the volume."""
    return [node for node in OTHER_NODES if node_process(t, node).backend.find_device(volume.handle)]


def open_on(t: CheckContext, client: InProcessClient, volume: Volume, context: Strings | None = None) -> Device:
    """Open a volume's device as another process. The caller closes it."""
    device: Device = client.backend.open_device(
        OpenRequest(
            handle=volume.handle,
            block=True,
            volume_context=volume.stamp.context,
            publish_context=context or {},
            secrets=t.storage.secrets,
        )
    )
    return device


def expect_held(t: CheckContext, volume: Volume, what: str) -> None:
    """Require that other processes know that this node has the volume: it is not deleted, nor opened exclusively."""
    for where, controller in controllers(t):
        with t.refused(InUse, FailedPrecondition, what=f"{what}, then delete_volume by a controller {where}"):
            controller.delete(volume.handle)
    if t.backend.opens_exclusively and b.Attach not in t.features:
        other = node_process(t, THIRD_NODE)
        try:
            with t.refused(InUse, FailedPrecondition, what=f"{what}, then open_device on node {THIRD_NODE!r}"):
                open_on(t, other, volume)
        except BaseException:
            other.backend.close_device(volume.handle)
            raise
