"""Attach and detach: where a volume is attached, and waiting until EC2 is done.

Nothing is stored: EC2's own record of attachments says which device names are taken and where a volume is attached.
Read-only attachments have device names of their own, by which they are recognized. A lookup may be some seconds old.
So AttachVolume is called also for a volume that shows as attached, and DetachVolume for one that does not: EC2 decides.
"""

from __future__ import annotations

import time
from contextlib import suppress

from csi_multi.contract import (
    AlreadyExists,
    AttachRequest,
    Busy,
    FailedPrecondition,
    Node,
    NotFound,
    PermissionDenied,
    Strings,
    Timeout,
    Unavailable,
)

from . import attachment_limits, outposts
from .device_names import READ_ONLY, WRITABLE, DeviceNames, DeviceSlot
from .ec2_cache import Ec2Cache
from .errors import DeviceNameTaken, IncorrectState, InstanceFull, VolumeAttached
from .first_attachment import FirstAttachments
from .initialization import InitializationGate
from .node_names import NodeNames
from .resources import DETACHING_STATES, Ec2Attachment, Ec2Instance, Ec2Volume

RUNNING_STATES = ("pending", "running")
STUCK_SECONDS = 90.0  # age at which an attachment that is still `attaching` is restarted under another device name
TRIES = 5  # device names per call


class AttachmentManager:
    def __init__(self, cache: Ec2Cache, node_names: NodeNames) -> None:
        self._cache = cache
        self._node_names = node_names
        self._first = FirstAttachments(cache)
        self._initialization = InitializationGate(cache)
        self._device_names = DeviceNames()

    def attach(self, request: AttachRequest) -> Strings:
        """Attach the volume, or find it attached, and return the publish context. Raises what Attach.attach says."""
        cache = self._cache
        volume = cache.take_known(request.handle, request.node.fact) or cache.volume(request.handle)
        instance = cache.instance(request.node.fact, request.node.id)
        self._refuse_elsewhere(volume, instance, request)
        deadline = cache.wait_deadline(request.deadline)
        shown = self._current(volume, instance.id, deadline)
        if shown is None:
            self._initialization.require(volume)
        unconfirmed = shown is None or shown.state == "attached"  # the lookup may be old: EC2 has to confirm it
        unknown: tuple[str, Ec2Volume | None] = "", None
        device, seen = self._begin_attach(volume, instance, request, shown, deadline) if unconfirmed else unknown
        volume, attachment = self._wait_attached(volume.id, instance.id, device, deadline, seen)
        self._cache.remember(volume)
        if (attachment.device in READ_ONLY) != request.read_only:
            mode = "read-only" if request.read_only else "writable"
            raise AlreadyExists(
                f"volume {volume.id!r} is attached to node {request.node.name!r}, but not {mode}; detach it first"
            )
        self._node_names.remember(instance, request.node.id)
        contents = self._first.contents(volume, attachment, deadline, new=bool(device), read_only=request.read_only)
        context = {"device": attachment.device, "attachment": attachment.description, "blank": contents}
        return context | ({"readOnly": "true"} if request.read_only else {})

    def detach(self, handle: str, node: Node | None) -> None:
        """Detach from the node (None: from all). Raises NotFound when it is not attached there."""
        if node and self._detach_known(handle, node):
            return
        volume = self._cache.shown_volume(handle)  # without one it may still exist, and be attached
        shown = {one.instance for one in volume.attachments if one.state != "detached"} if volume else set()
        wanted = self._instances_of(handle, node, shown) if node else shown
        deadline = self._cache.wait_deadline(None)
        begun = {instance for instance in wanted if self._begin_detach(handle, instance, shown=instance in shown)}
        if not begun | (wanted & shown):
            if node is None and self._begin_detach(handle, ""):
                raise Unavailable(
                    f"volume {handle!r} is being detached from an instance that EC2 does not name yet; try again"
                )
            raise NotFound(f"volume {handle!r} is not attached to {repr(node.name) if node else 'any node'}")
        for instance in begun | (wanted & shown):
            self._wait_detached(handle, instance, deadline, shown=instance in shown)

    def _detach_known(self, handle: str, node: Node) -> bool:
        """Detach a volume whose last row shows it on the node's own instance, if EC2 agrees that it is there.

        Such a volume has one attachment at most (Ec2Cache.remember), so it is on no other instance of the node's name.
        """
        volume, begun = self._cache.take_known(handle, node.fact), False
        if volume and volume.attachments:
            with suppress(NotFound):  # the instance is gone
                begun = self._begin_detach(handle, node.fact)
        if begun:
            self._wait_detached(handle, node.fact, self._cache.wait_deadline(None))
        return begun

    def _refuse_elsewhere(self, volume: Ec2Volume, instance: Ec2Instance, request: AttachRequest) -> None:
        elsewhere = [one for one in volume.attachments if one.instance != instance.id and one.state != "detached"]
        if elsewhere and (request.capability.mode.single_node or not volume.multi_attach):
            nodes = ", ".join(self._node_names.names([one.instance for one in elsewhere]).values())
            first = elsewhere[0]
            raise FailedPrecondition(
                f"volume {volume.id!r} is attached to {nodes} ({first.instance}, {first.state}); detach it there first"
            )
        if volume.zone != instance.zone:
            raise FailedPrecondition(
                f"volume {volume.id!r} is in zone {volume.zone!r}, and node {request.node.name!r} in "
                f"{instance.zone!r}: a volume can only be attached in its own zone; run the pod there, or restore a "
                "snapshot of the volume"
            )
        outposts.refuse_elsewhere(volume, instance)

    def _current(self, volume: Ec2Volume, instance: str, deadline: float) -> Ec2Attachment | None:
        """Return the attachment to the instance, attached or attaching. Ends one that is detaching or stuck."""
        current = volume.attachment_to(instance)
        if current is None:
            return None
        if current.state in DETACHING_STATES:
            self._wait_detached(volume.id, instance, deadline)
            return None
        if current.state == "attaching" and current.age() > STUCK_SECONDS:
            self._begin_detach(volume.id, instance)
            self._wait_detached(volume.id, instance, deadline)
            return None
        return current

    def _begin_attach(
        self,
        volume: Ec2Volume,
        instance: Ec2Instance,
        request: AttachRequest,
        shown: Ec2Attachment | None,
        deadline: float,
    ) -> tuple[str, Ec2Volume | None]:
        """Call AttachVolume and return the device name; "" when EC2 says that the volume is attached already.

        With it goes the volume, where it was looked up after that answer.
        Name and card are those of the attachment that shows, which may have ended meanwhile, or else free ones.
        """
        cards = attachment_limits.cards(instance.type)
        series = READ_ONLY if request.read_only else WRITABLE
        if instance.devices.keys() >= set(series):  # as cached
            instance = self._cache.instance(instance.id, request.node.id, refresh=True)
        usable = shown and (shown.device in READ_ONLY) == request.read_only
        known = DeviceSlot(shown.device, instance.cards.get(shown.device)) if shown and usable else None
        for _ in range(TRIES):
            slot, known = known or self._device_names.reserve(instance, series, cards), None
            try:
                return self._cache.client.attach(volume.id, instance.id, slot.name, slot.card).device, None
            except DeviceNameTaken:  # the name may be stuck: EC2 can refuse it for ever and still show it as free
                self._device_names.refused(instance.id, slot.name)
                instance = self._cache.instance(instance.id, request.node.id, refresh=True)
                continue
            except VolumeAttached:  # to this instance or to another
                volume = self._cache.volume(volume.id)
                self._refuse_elsewhere(volume, instance, request)
                shown = volume.attachment_to(instance.id)
                if shown and self._current(volume, instance.id, deadline) is None:
                    shown = None  # it was on its way off
                    continue
                return "", volume
            except InstanceFull:
                if not shown:  # else this volume may be one of those that fill the instance
                    raise
            except IncorrectState as error:
                volume = self._cache.volume(volume.id)  # NotFound when it was deleted
                instance = self._cache.instance(instance.id, request.node.id, refresh=True)
                if not shown:
                    raise Unavailable(
                        f"volume {volume.id!r} is {volume.state} and instance {instance.id!r} is {instance.state}: "
                        f"{error}; try again"
                    ) from error
            return "", None
        raise Busy(f"{TRIES} device names of instance {instance.id!r} were taken by other attachments; try again")

    def _wait_attached(
        self, handle: str, instance: str, device: str, deadline: float, seen: Ec2Volume | None
    ) -> tuple[Ec2Volume, Ec2Attachment]:
        """Return the attachment once it is `attached` under this device name ("": any), not an earlier attachment.

        It may be `seen` already, in a lookup that began after EC2 said so.
        Raises Unavailable at the deadline, also for a volume that lookups do not show: it may still exist.
        """

        def done(volume: Ec2Volume | None) -> bool:
            current = volume.attachment_to(instance) if volume else None
            return current is not None and current.state == "attached" and device in ("", current.device)

        try:
            volume = seen if done(seen) else self._cache.volume_poller.wait(handle, done, deadline)
        except Timeout as error:
            raise Unavailable(f"volume {handle!r} is not attached to {instance!r} yet: {error}") from error
        attachment = volume.attachment_to(instance) if volume else None
        assert volume  # `done` accepts nothing else
        assert attachment
        return volume, attachment

    def _begin_detach(self, handle: str, instance: str, *, shown: bool = False) -> bool:
        """Call DetachVolume; return False when EC2 says that the volume is not attached there.

        `shown`: a lookup shows it there, so that a refusal does not mean that the instance is gone.
        """
        self._first.end(handle)
        try:
            self._cache.client.detach(handle, instance)
        except NotFound:
            return False
        except IncorrectState as error:  # attached to nothing, or being detached already
            return "'available'" not in str(error)
        except PermissionDenied:  # EC2's answer also for a missing instance, where a policy has a condition on its tags
            if instance and not shown:
                self._cache.instance(instance, instance, refresh=True)  # raises NotFound
            raise
        return True

    def _wait_detached(self, handle: str, instance: str, deadline: float, *, shown: bool = True) -> None:
        """Wait until the volume is detached. Raises Unavailable at the deadline.

        EC2 may not show the attachment, or the volume, yet: that it shows none only counts after it was `shown` once,
        or after `consistency_seconds`.
        """
        seen, visible = shown, time.monotonic() + self._cache.config.consistency_seconds

        def done(volume: Ec2Volume | None) -> bool:
            nonlocal seen
            attached = volume is not None and volume.attachment_to(instance) is not None
            seen = seen or attached
            return not attached and ((seen and volume is not None) or time.monotonic() > visible)

        try:
            volume = self._cache.volume_poller.wait(handle, done, deadline)
        except Timeout as error:
            raise Unavailable(
                f"volume {handle!r} is still being detached from {instance!r}; if this goes on, the node may still "
                f"use the volume: {error}"
            ) from error
        if volume:
            self._cache.remember(volume)
        elif self._begin_detach(handle, instance):
            raise Unavailable(f"volume {handle!r} is still being detached from {instance!r}; try again")

    def _instances_of(self, handle: str, node: Node, shown: set[str]) -> set[str]:
        """Return the instances to detach from: the node's own, and those of `shown` that had the node's name before it.

        A node id without an instance id: the instances of `shown` with the node's name; when there is none, all
        instances whose tags have that name. Raises FailedPrecondition when the node's instance and another one of
        that name are both running.
        """
        if not node.fact:
            return set(self._node_names.with_name(node.name, shown) or self._node_names.with_name(node.name))
        if not shown - {node.fact}:
            return {node.fact}
        namesakes = self._node_names.with_name(node.name, shown - {node.fact})
        running = {id for id, instance in namesakes.items() if instance.state in RUNNING_STATES}
        if running and self._is_running(node.fact):
            others = ", ".join(running)
            raise FailedPrecondition(
                f"volume {handle!r} is attached to {others}: instances {others} and {node.fact} both claim node "
                f"{node.name!r}, and both are running; stop or terminate {others}, then the volume is detached"
            )
        return {node.fact} | namesakes.keys() - running  # when only a namesake runs, it replaced the node's instance

    def _is_running(self, instance: str) -> bool:
        with suppress(NotFound):
            return self._cache.instance(instance, instance, refresh=True).state in RUNNING_STATES
        return False
