"""A volume's whole lifecycle, call by call, with answers in a form that is comparable between two runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from csi_multi.contract import Expansion, GroupSnapshot, Page, SizeRange, Snapshot, StorageError, Volume
from csi_multi.contract import backend as b
from csi_multi.contract.errors import NOT_FINAL

from .assertions import CheckFailed
from .context import CheckContext, source
from .operations.base import PAUSES, attempt, describe_error, wait_until_ready


class Lifecycle:
    """`between` is called before each call. `transcript` has (call, comparable answer) for every call."""

    def __init__(self, t: CheckContext, between: Callable[[], None]) -> None:
        self.t = t
        self.between = between
        self.transcript: list[tuple[str, Any]] = []
        self._own: set[str] = set()  # handles

    def run(self) -> None:
        t = self.t
        spec = t.spec()
        volume = self.make("create_volume", lambda: t.create(spec))
        self.call("get_volume", lambda: t.client.get(volume.handle))
        if b.Attach in t.features and t.storage.nodes:
            self.attachment(volume)
        if b.ListVolumes in t.features:
            self.call("list_volumes", lambda: t.client.list_volumes())
        if b.VolumeHealthReporter in t.features:
            self.call("volume_health", lambda: t.client.health(volume.handle))
        if b.Clone in t.features:
            self.copy(volume, "clone_volume")
        if b.Snapshots in t.features:
            self.snapshot(volume)
        if b.GroupSnapshots in t.features:
            self.group(volume)
        if b.Modify in t.features and (mutable := t.storage.other_mutable):
            self.call_twice("modify_volume", lambda: t.client.modify(volume.handle, mutable))
        if b.Expand in t.features:
            self.call_twice("expand_volume", lambda: t.client.expand(volume.handle, SizeRange(required=2 * t.size)))
        self.call("get_volume, at the end", lambda: t.client.get(volume.handle))
        self.call_twice("delete_volume", lambda: t.client.delete(volume.handle))
        self.call("get_volume, after the deletion", lambda: t.client.get(volume.handle))

    def attachment(self, volume: Volume) -> None:
        t, node = self.t, self.t.storage.nodes[0]
        self.call_twice("attach", lambda: sorted(t.attach(volume, node)))
        self.call("get_volume, attached", lambda: t.client.get(volume.handle))
        self.call_twice("detach", lambda: t.client.detach(volume.handle, node))

    def copy(self, of: Volume | Snapshot, method: str) -> None:
        spec = self.t.spec(size=0, source=source(of))
        copy = self.make(method, lambda: self.t.create(spec))
        self.call_twice(f"delete_volume after {method}", lambda: self.t.client.delete(copy.handle))

    def snapshot(self, volume: Volume) -> None:
        t, name = self.t, self.t.name("snapshot")
        snapshot = self.make("create_snapshot", lambda: t.snapshot(volume, name))
        self.call("get_snapshot", lambda: t.client.get_snapshot(snapshot.handle))
        if b.ListSnapshots in t.features:
            self.call("list_snapshots", lambda: t.client.list_snapshots(source=volume.handle))
        wait_until_ready(t, snapshot)
        self.copy(snapshot, "restore_volume")
        self.call_twice("delete_snapshot", lambda: t.client.delete_snapshot(snapshot.handle))
        self.call("get_snapshot, after the deletion", lambda: t.client.get_snapshot(snapshot.handle))

    def group(self, volume: Volume) -> None:
        t, name = self.t, self.t.name("group")
        group = self.make("create_group_snapshot", lambda: t.group([volume], name))
        self.call("get_group_snapshot", lambda: t.client.get_group(group.handle))
        self.call_twice("delete_group_snapshot", lambda: t.client.delete_group(group.handle))

    def make(self, label: str, act: Callable[[], Any]) -> Any:
        """Create something, repeat the request, and return the resource. Raises CheckFailed for an error."""
        made, error = self.call(label, act)
        if error:
            raise CheckFailed(
                f"{label}: raised {describe_error(error)}, the contract requires it to succeed"
            ) from error
        self._own.add(made.handle)
        self.transcript[-1] = (label, self.comparable(made))
        self.call(f"{label}, repeated", act)
        return made

    def call_twice(self, label: str, act: Callable[[], Any]) -> None:
        self.call(label, act)
        self.call(f"{label}, repeated", act)

    def call(self, label: str, act: Callable[[], Any]) -> tuple[Any, Exception | None]:
        """Make a call, repeat it while its error is retryable, and record the answer."""
        self.between()
        answer, error = attempt(act)
        for pause in PAUSES:
            if not isinstance(error, NOT_FINAL):
                break
            time.sleep(pause)
            answer, error = attempt(act)
        if error and not isinstance(error, StorageError):
            raise error
        self.transcript.append((label, type(error).__name__ if error else self.comparable(answer)))
        return answer, error

    def comparable(self, answer: Any) -> Any:
        """Return an answer without what differs between two runs: handles, names, times."""
        if isinstance(answer, Volume):
            nodes, context = answer.published_nodes, dict(answer.stamp.context)
            return "volume", self.is_own(answer), answer.size, nodes, context, self.kind(answer), len(answer.topology)
        if isinstance(answer, Snapshot):
            return "snapshot", self.is_own(answer), answer.size, answer.source in self._own, bool(answer.group)
        if isinstance(answer, GroupSnapshot):
            return "group", self.is_own(answer), [self.comparable(one) for one in answer.snapshots]
        if isinstance(answer, Page):
            return "listing", sorted(str(self.comparable(one)) for one in answer.items if self.is_own(one))
        return ("expansion", answer.size) if isinstance(answer, Expansion) else answer

    def is_own(self, resource: Any) -> bool:
        """Whether this run created it."""
        return resource.handle in self._own

    def kind(self, volume: Volume) -> str:
        return volume.stamp.source.kind.value if volume.stamp.source else ""
