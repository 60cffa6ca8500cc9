"""Attach: device names, where a volume is, and waiting until it is there.

Nothing is kept: EC2's own record of attachments says which names are taken and where a volume is. The
names of read-only attachments are of a series of their own, so that they are known again. What a look shows may be
as old as some seconds: AttachVolume is called also for what shows as attached, and then it is EC2 that says so.
"""

from __future__ import annotations

import string
import threading
import time
from datetime import UTC, datetime

from csi_multi.contract import (
    AlreadyExists,
    AttachRequest,
    Busy,
    FailedPrecondition,
    Node,
    NotFound,
    ResourceExhausted,
    Strings,
    Timeout,
    Unavailable,
)

from .account import Account
from .detaching import Detaching, at
from .ec2_errors import Attached, DeviceTaken, Full, WrongState
from .nodes import Nodes
from .rows import Attachment, InstanceRow, VolumeRow

# EC2 takes /dev/xvdaa to /dev/xvddx.
WRITABLE = tuple(f"/dev/xvd{series}{letter}" for series in "bca" for letter in string.ascii_lowercase)
READ_ONLY = tuple(f"/dev/xvdd{letter}" for letter in string.ascii_lowercase[:24])
LEAVING = ("detaching", "busy")
STUCK = 90.0  # seconds after which an attachment under way is begun anew, under another device name
TRIES = 5  # device names per call
TAKEN_NAME = 60.0  # seconds for which a name is left alone after it was asked for: EC2 shows it by then
STUCK_NAME = 600.0  # the same for a name that EC2 refused
INSTANCES = 1000  # whose names are remembered before those of idle ones are forgotten


class Attaching:
    def __init__(self, account: Account, nodes: Nodes) -> None:
        self._account = account
        self._nodes = nodes
        self._detaching = Detaching(account, nodes)
        self._guard = threading.Lock()
        self._held: dict[str, dict[str, float]] = {}  # by instance, by name: until when it is not used again

    def attach(self, request: AttachRequest) -> Strings:
        """Attach, or find it attached, and return the publish context. Raises what Attach.attach says."""
        account = self._account
        row = account.free.take(request.handle) or account.volume(request.handle)
        node = account.instance(request.node.fact, request.node.id)
        self._refuse_elsewhere(row, node, request)
        ends = account.ends(request.deadline)
        shown = self._under_way(row, node.id, ends)
        new = shown is None or shown.state == "attached"  # which may have ended since it was so: EC2 knows
        device = self._begin(row, node, request, shown) if new else ""
        here = self._wait(row.id, node.id, device, ends)
        if (here.device in READ_ONLY) != request.read_only:
            asked = "read-only" if request.read_only else "writable"
            raise AlreadyExists(f"volume {row.id!r} is attached to node {request.node.name!r}, but not {asked}")
        self._nodes.remember(node, request.node.id)
        stamp = account.stamp("volume", row)
        fresh = stamp.source is None and not row.snapshot and not stamp.imported
        context = {"device": here.device, "blank": "zeroed" if fresh else "never"}
        return context | ({"readOnly": "true"} if request.read_only else {})

    def detach(self, handle: str, node: Node | None) -> None:
        self._detaching.detach(handle, node)

    def _refuse_elsewhere(self, row: VolumeRow, node: InstanceRow, request: AttachRequest) -> None:
        elsewhere = [one for one in row.attachments if one.instance != node.id and one.state != "detached"]
        if elsewhere and (request.capability.mode.single_node or not row.multi_attach):
            where = ", ".join(self._nodes.names([one.instance for one in elsewhere]).values())
            first = elsewhere[0]
            raise FailedPrecondition(
                f"volume {row.id!r} is attached to {where} ({first.instance}, {first.state}); detach it there first"
            )
        if row.zone != node.zone:
            raise FailedPrecondition(
                f"volume {row.id!r} is in zone {row.zone!r}, node {request.node.name!r} in {node.zone!r}: "
                "it can never be attached there"
            )

    def _under_way(self, row: VolumeRow, instance: str, ends: float) -> Attachment | None:
        """Return where it is, or is going, there. First ends what is on its way off, or stuck on its way there."""
        here = at(row, instance)
        if here is None:
            return None
        if here.state in LEAVING:
            self._detaching.wait(row.id, instance, ends)
            return None
        if here.state == "attaching" and _age(here) > STUCK:
            self._detaching.begin(row.id, instance)
            self._detaching.wait(row.id, instance, ends)
            return None
        return here

    def _begin(self, row: VolumeRow, node: InstanceRow, request: AttachRequest, shown: Attachment | None) -> str:
        """Ask EC2 for the attachment and return its device name; "" when EC2 says that it is there already.

        The name is that of the attachment that shows, which may have ended meanwhile, or else a free one.
        """
        series = READ_ONLY if request.read_only else WRITABLE
        if node.devices.keys() >= set(series):  # as it was a while ago
            node = self._account.instance(node.id, request.node.id, anew=True)
        name = shown.device if shown and (shown.device in READ_ONLY) == request.read_only else ""
        for _ in range(TRIES):
            device, name = name or self._name(node, series), ""
            try:
                return self._account.ec2.attach(row.id, node.id, device).device
            except DeviceTaken:  # EC2 may show it as free for ever: a name that is stuck
                self._hold(node.id, device, STUCK_NAME)
                node = self._account.instance(node.id, request.node.id, anew=True)
                continue
            except Attached:  # here or elsewhere
                self._refuse_elsewhere(self._account.volume(row.id), node, request)
            except Full:
                if not shown:  # else it may be one of those that fill the instance
                    raise
            except WrongState as error:
                row = self._account.volume(row.id)  # either may be gone, or have changed since it was seen
                node = self._account.instance(node.id, request.node.id, anew=True)
                if not shown:
                    raise Unavailable(
                        f"volume {row.id!r} is {row.state} and instance {node.id!r} is {node.state}: {error}"
                    ) from error
            return ""
        raise Busy(f"{TRIES} device names of instance {node.id!r} were taken by others meanwhile; try again")

    def _name(self, node: InstanceRow, series: tuple[str, ...]) -> str:
        """Take a free device name. Raises ResourceExhausted when there is none.

        What other calls took since EC2 was asked is not free either.
        """
        with self._guard:
            now = time.monotonic()
            held = {name: until for name, until in self._held.get(node.id, {}).items() if until > now}
            free = [name for name in series if name not in node.devices]
            if not free:
                raise ResourceExhausted(f"all {len(series)} device names of instance {node.id!r} are in use")
            device = min(free, key=lambda name: held.get(name, 0.0))
            if len(self._held) > INSTANCES:  # most are long gone
                self._held = {one: names for one, names in self._held.items() if max(names.values()) > now}
            self._held[node.id] = held | {device: now + TAKEN_NAME}
            return device

    def _hold(self, instance: str, device: str, seconds: float) -> None:
        with self._guard:
            self._held.setdefault(instance, {})[device] = time.monotonic() + seconds

    def _wait(self, handle: str, instance: str, device: str, ends: float) -> Attachment:
        """Return the attachment when it is done. `device`: its name, so that it is not one before it; "": any.

        Raises Unavailable when that takes longer than the caller waits.
        """

        def done(row: VolumeRow | None) -> bool:
            here = at(row, instance)
            return row is None or (here is not None and here.state == "attached" and device in ("", here.device))

        try:
            row = self._account.watch.wait(handle, done, ends)
        except Timeout as error:
            raise Unavailable(f"volume {handle!r} is not attached to {instance!r} yet: {error}") from error
        here = at(row, instance)
        if here is None:
            raise NotFound(f"volume {handle!r} vanished while it was being attached")
        return here


def _age(one: Attachment) -> float:
    """Return for how many seconds EC2 has been at it."""
    return (datetime.now(UTC) - one.since).total_seconds() if one.since else 0.0
