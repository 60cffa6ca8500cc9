"""Detach: from the node, from an instance that had the node's name before, and waiting until it is off.

What a look shows may be as old as some seconds, so EC2 is asked to detach also what does not seem to be attached.
"""

from __future__ import annotations

import time
from contextlib import suppress

from csi_multi.contract import FailedPrecondition, Node, NotFound, PermissionDenied, Timeout, Unavailable

from .account import Account
from .ec2_errors import WrongState
from .nodes import Nodes
from .rows import Attachment, VolumeRow

RUNNING = ("pending", "running")


class Detaching:
    def __init__(self, account: Account, nodes: Nodes) -> None:
        self._account = account
        self._nodes = nodes

    def detach(self, handle: str, node: Node | None) -> None:
        """Detach from the node (None: from all). Raises NotFound when it is not attached there."""
        row = self._account.volume(handle)
        shown = {one.instance for one in row.attachments if one.state != "detached"}
        wanted = self._of(handle, node, shown) if node else shown
        ends = self._account.ends(None)
        begun = {instance for instance in wanted if self.begin(handle, instance)}
        if not begun | (wanted & shown):
            raise NotFound(f"volume {handle!r} is not attached {f'to {node.name!r}' if node else 'anywhere'}")
        unseen = time.monotonic() + self._account.config.consistency_seconds
        for instance in begun - shown:
            self.wait(handle, instance, ends, unseen)
        for instance in wanted & shown:
            self.wait(handle, instance, ends)

    def begin(self, handle: str, instance: str) -> bool:
        """Begin to detach, and return whether EC2 did: not if it is not attached there, or on its way off."""
        try:
            self._account.ec2.detach(handle, instance)
        except (NotFound, WrongState):  # EC2 says WrongState also of what is on its way off: then a look shows it
            return False
        except PermissionDenied:  # also of an instance that is gone, where a policy goes by its tags
            self._account.instance(instance, instance, anew=True)  # NotFound
            raise
        return True

    def wait(self, handle: str, instance: str, ends: float, unseen: float = 0.0) -> None:
        """Wait until it is off. Until `unseen` (time.monotonic()) it is not believed to be before it was seen there.

        Raises Unavailable when that takes longer than the caller waits.
        """
        seen = False

        def done(row: VolumeRow | None) -> bool:
            nonlocal seen
            there = at(row, instance) is not None
            seen = seen or there
            return not there and (seen or row is None or time.monotonic() > unseen)

        try:
            row = self._account.watch.wait(handle, done, ends)
        except Timeout as error:
            raise Unavailable(
                f"volume {handle!r} is still being detached from {instance!r}; if that lasts, the node may still "
                f"use it: {error}"
            ) from error
        if row:
            self._account.saw(row)

    def _of(self, handle: str, node: Node, shown: set[str]) -> set[str]:
        """Return the node's instance, and of those where the volume shows the ones that had the node's name before it.

        A node id without our fact tells no more than the name. Raises FailedPrecondition when two run under one name.
        """
        if not node.fact:
            return set(self._nodes.called(node.name, shown))
        if not shown - {node.fact}:
            return {node.fact}
        called = self._nodes.called(node.name, shown - {node.fact})
        running = {one for one, row in called.items() if row.state in RUNNING}
        if running and self._runs(node.fact):
            raise FailedPrecondition(
                f"volume {handle!r} is attached to {', '.join(running)}, which is called node {node.name!r} as "
                f"{node.fact} is, and runs; stop or terminate it, and the volume is detached"
            )
        return {node.fact} | called.keys() - running  # one that runs came later, if the node's own does not

    def _runs(self, instance: str) -> bool:
        with suppress(NotFound):
            return self._account.instance(instance, instance, anew=True).state in RUNNING
        return False


def at(row: VolumeRow | None, instance: str) -> Attachment | None:
    """Return the attachment to the instance, if it is not over."""
    there = row.attachments if row else ()
    return next((one for one in there if one.instance == instance and one.state != "detached"), None)
