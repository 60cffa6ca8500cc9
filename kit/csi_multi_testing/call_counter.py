"""Count the calls through the boundary that each method of a backend makes in a normal life."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from csi_multi.contract import (
    AttachRequest,
    CapacityRequest,
    ExpandRequest,
    Node,
    OpenRequest,
    PageRequest,
    SizeRange,
    Volume,
)
from csi_multi.contract import backend as b

from .context import CheckContext, source
from .operations.base import wait_until_ready
from .protocol import BLOCK

T = TypeVar("T")


class CallCounter:
    """`made` has the calls of the costliest call of each method, in words."""

    def __init__(self, t: CheckContext) -> None:
        self.t = t
        self.secrets = t.storage.secrets
        self.made: dict[str, list[str]] = {}

    def of(self, method: str, act: Callable[[], T]) -> T:
        """Run one method and count its calls."""
        with self.t.injector.inject(0):
            answer = act()
        calls = self.t.injector.calls
        if len(calls) >= len(self.made.get(method, [])):
            self.made[method] = calls
        return answer

    def life(self) -> None:
        """Call every method of the backend's features once. Ends with as many volumes as it began with."""
        t, features = self.t, self.t.features
        self.of("check", t.backend.check)
        spec = t.spec()
        volume = self.of("create_volume", lambda: t.create(spec))
        self.of("find_volume", lambda: t.backend.find_volume(spec.name))
        self.looks(volume)
        if b.Attach in features and t.storage.nodes:
            self.attachment(volume, t.storage.nodes[0])
        if t.storage.devices and not t.no_data():
            self.device(volume)
        if b.Clone in features:
            self.copy("clone_volume", volume)
        if b.Snapshots in features:
            self.snapshot(volume)
        if b.GroupSnapshots in features:
            self.group(volume)
        if b.Modify in features and (mutable := t.storage.other_mutable):
            self.of("modify_volume", lambda: t.client.modify(volume.handle, mutable))
        if b.Expand in features:
            self.expansion(volume)
        self.of("delete_volume", lambda: t.backend.delete_volume(volume.handle, self.secrets))
        t.forget(volume)

    def looks(self, volume: Volume) -> None:
        t, features = self.t, self.t.features
        self.of("get_volume", lambda: t.backend.get_volume(volume.handle))
        if b.ListVolumes in features:
            self.of("list_volumes", lambda: t.backend.list_volumes(PageRequest()))
        if b.Capacity in features:
            self.of("capacity", lambda: t.backend.capacity(CapacityRequest()))
        if b.VolumeHealthReporter in features:
            self.of("volume_health", lambda: t.backend.volume_health(volume.handle, self.secrets))
        if b.VolumeHealthLister in features:
            self.of("list_volume_health", lambda: t.backend.list_volume_health(PageRequest(), self.secrets))

    def attachment(self, volume: Volume, node: Node) -> None:
        capability = self.t.storage.capability or BLOCK
        wanted = AttachRequest(handle=volume.handle, node=node, capability=capability, secrets=self.secrets)
        self.of("attach", lambda: self.t.backend.attach(wanted))
        self.of("detach", lambda: self.t.backend.detach(volume.handle, node, self.secrets))

    def device(self, volume: Volume) -> None:
        t, handle = self.t, volume.handle
        t.opens(volume)
        self.of("formatting", lambda: t.backend.formatting(handle))
        self.of("formatted", lambda: t.backend.formatted(handle))
        request = OpenRequest(handle=handle, block=True, secrets=self.secrets)
        self.of("open_device", lambda: t.backend.open_device(request))
        self.of("find_device", lambda: t.backend.find_device(handle))
        if b.Expand in t.features:
            self.of("refresh_device", lambda: t.backend.refresh_device(handle))
        self.of("close_device", lambda: t.backend.close_device(handle))

    def copy(self, method: str, of: Any) -> None:
        spec = self.t.spec(size=0, source=source(of))
        copy = self.of(method, lambda: self.t.create(spec))
        self.t.client.delete(copy.handle)
        self.t.forget(copy)

    def snapshot(self, volume: Volume) -> None:
        t, name = self.t, self.t.name("cut")
        cut = wait_until_ready(t, self.of("create_snapshot", lambda: t.snapshot(volume, name)))
        self.of("find_snapshot", lambda: t.backend.find_snapshot(name))
        self.of("get_snapshot", lambda: t.backend.get_snapshot(cut.handle))
        if b.ListSnapshots in t.features:
            self.of("list_snapshots", lambda: t.backend.list_snapshots(PageRequest()))
        if b.ChangedBlocks in t.features:
            self.of("allocated_blocks", lambda: t.client.allocated(cut.handle))
        self.copy("restore_volume", cut)
        self.of("delete_snapshot", lambda: t.backend.delete_snapshot(cut.handle, self.secrets))
        t.forget(cut)

    def group(self, volume: Volume) -> None:
        t, name = self.t, self.t.name("group")
        group = self.of("create_group_snapshot", lambda: t.group([volume], name))
        self.of("find_group_snapshot", lambda: t.backend.find_group_snapshot(name))
        self.of("get_group_snapshot", lambda: t.backend.get_group_snapshot(group.handle))
        self.of("delete_group_snapshot", lambda: t.backend.delete_group_snapshot(group.handle, self.secrets))
        t.forget(group)

    def expansion(self, volume: Volume) -> None:
        wanted = SizeRange(required=2 * self.t.size)
        request = ExpandRequest(handle=volume.handle, size=wanted, capability=BLOCK, secrets=self.secrets)
        self.of("expand_volume", lambda: self.t.backend.expand_volume(request))
