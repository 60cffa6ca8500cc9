"""Count the calls through the boundary that each method of a backend makes in a volume's lifecycle."""

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
from .marked_secrets import given_secrets
from .operations.base import wait_until_ready
from .protocol import BLOCK

T = TypeVar("T")


class CallCounter:
    """`calls` has, for each method, the boundary calls of its most expensive run."""

    def __init__(self, t: CheckContext) -> None:
        self.t = t
        self.secrets = t.storage.secrets
        self.calls: dict[str, list[str]] = {}

    def count(self, method: str, act: Callable[[], T]) -> T:
        """Run one method and count its calls."""
        with self.t.injector.inject(0):
            answer = act()
        calls = self.t.injector.calls
        if len(calls) >= len(self.calls.get(method, [])):
            self.calls[method] = calls
        return answer

    def run_lifecycle(self) -> None:
        """Call every method of the backend's features once. All that it creates is deleted."""
        t, features = self.t, self.t.features
        self.count("check", t.backend.check)
        spec = t.spec()
        volume = self.count("create_volume", lambda: t.create(spec))
        self.count("find_volume", lambda: t.backend.find_volume(spec.name))
        self.reads(volume)
        if b.Attach in features and t.storage.nodes:
            self.attachment(volume, t.storage.nodes[0])
        if t.storage.devices and not t.no_data_reason():
            self.device(volume)
        if b.Clone in features:
            self.copy("clone_volume", volume)
        if b.Snapshots in features:
            self.snapshot(volume)
        if b.GroupSnapshots in features:
            self.group(volume)
        if b.Modify in features and (mutable := t.storage.other_mutable):
            self.count("modify_volume", lambda: t.client.modify(volume.handle, mutable))
        if b.Expand in features:
            self.expansion(volume)
        self.count("delete_volume", lambda: t.backend.delete_volume(volume.handle, self.secrets))
        t.forget(volume)

    def reads(self, volume: Volume) -> None:
        t, features = self.t, self.t.features
        self.count("get_volume", lambda: t.backend.get_volume(volume.handle))
        if b.ListVolumes in features:
            self.count("list_volumes", lambda: t.backend.list_volumes(PageRequest()))
        if b.Capacity in features:
            self.count("capacity", lambda: t.backend.capacity(CapacityRequest()))
        if b.VolumeHealthReporter in features:
            self.count("volume_health", lambda: t.backend.volume_health(volume.handle, self.secrets))
        if b.VolumeHealthLister in features:
            self.count("list_volume_health", lambda: t.backend.list_volume_health(PageRequest(), self.secrets))

    def attachment(self, volume: Volume, node: Node) -> None:
        capability = self.t.storage.capability or BLOCK
        wanted = AttachRequest(handle=volume.handle, node=node, capability=capability, secrets=self.secrets)
        self.count("attach", lambda: self.t.backend.attach(wanted))
        self.count("detach", lambda: self.t.backend.detach(volume.handle, node, self.secrets))

    def device(self, volume: Volume) -> None:
        t, handle = self.t, volume.handle
        context = t.attach(volume, t.in_process.node()) if b.Attach in t.features else {}
        t.close_at_end(volume)
        self.count("formatting", lambda: given_secrets(t, t.backend.formatting)(handle))
        self.count("formatted", lambda: given_secrets(t, t.backend.formatted)(handle))
        request = OpenRequest(handle=handle, block=True, publish_context=context, secrets=self.secrets)
        self.count("open_device", lambda: t.backend.open_device(request))
        self.count("find_device", lambda: t.backend.find_device(handle))
        self.count("has_data", lambda: given_secrets(t, t.backend.has_data)(handle))
        if b.Expand in t.features:
            self.count("refresh_device", lambda: given_secrets(t, t.backend.refresh_device)(handle))
        self.count("close_device", lambda: t.backend.close_device(handle))
        t.detach(volume)

    def copy(self, method: str, of: Any) -> None:
        spec = self.t.spec(size=0, source=source(of))
        copy = self.count(method, lambda: self.t.create(spec))
        self.t.client.delete(copy.handle)
        self.t.forget(copy)

    def snapshot(self, volume: Volume) -> None:
        t, name = self.t, self.t.name("snapshot")
        snapshot = wait_until_ready(t, self.count("create_snapshot", lambda: t.snapshot(volume, name)))
        self.count("find_snapshot", lambda: t.backend.find_snapshot(name))
        self.count("get_snapshot", lambda: t.backend.get_snapshot(snapshot.handle))
        if b.ListSnapshots in t.features:
            self.count("list_snapshots", lambda: t.backend.list_snapshots(PageRequest()))
        if b.ChangedBlocks in t.features:
            self.count("allocated_blocks", lambda: t.client.allocated(snapshot.handle))
        self.copy("restore_volume", snapshot)
        self.count("delete_snapshot", lambda: t.backend.delete_snapshot(snapshot.handle, self.secrets))
        t.forget(snapshot)

    def group(self, volume: Volume) -> None:
        t, name = self.t, self.t.name("group")
        group = self.count("create_group_snapshot", lambda: t.group([volume], name))
        self.count("find_group_snapshot", lambda: t.backend.find_group_snapshot(name))
        self.count("get_group_snapshot", lambda: t.backend.get_group_snapshot(group.handle))
        self.count("delete_group_snapshot", lambda: t.backend.delete_group_snapshot(group.handle, self.secrets))
        t.forget(group)

    def expansion(self, volume: Volume) -> None:
        wanted = SizeRange(required=2 * self.t.size)
        request = ExpandRequest(handle=volume.handle, size=wanted, capability=BLOCK, secrets=self.secrets)
        self.count("expand_volume", lambda: self.t.backend.expand_volume(request))
