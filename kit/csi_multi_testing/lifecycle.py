"""A volume's whole life, one call after the other, in words that are the same for every such life."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from csi_multi.contract import Expansion, GroupSnapshot, Page, SizeRange, Snapshot, StorageError, Volume
from csi_multi.contract import backend as b
from csi_multi.core.idempotent import UNSETTLED

from .assertions import CheckFailed
from .context import CheckContext, source
from .operations.base import PAUSES, attempt, describe_error, wait_until_ready


class Lifecycle:
    """`between` is called before each call. `told` has (what was asked, what came back) when it is over."""

    def __init__(self, t: CheckContext, between: Callable[[], None]) -> None:
        self.t = t
        self.between = between
        self.told: list[tuple[str, Any]] = []
        self._own: set[str] = set()  # handles

    def run(self) -> None:
        t = self.t
        spec = t.spec()
        volume = self.make("create_volume", lambda: t.create(spec))
        self.ask("get_volume", lambda: t.client.get(volume.handle))
        if b.Attach in t.features and t.storage.nodes:
            self.attachment(volume)
        if b.ListVolumes in t.features:
            self.ask("list_volumes", lambda: t.client.list_volumes())
        if b.VolumeHealthReporter in t.features:
            self.ask("volume_health", lambda: t.client.health(volume.handle))
        if b.Clone in t.features:
            self.copy(volume, "clone_volume")
        if b.Snapshots in t.features:
            self.snapshot(volume)
        if b.GroupSnapshots in t.features:
            self.group(volume)
        if b.Modify in t.features and (mutable := t.storage.other_mutable):
            self.twice("modify_volume", lambda: t.client.modify(volume.handle, mutable))
        if b.Expand in t.features:
            self.twice("expand_volume", lambda: t.client.expand(volume.handle, SizeRange(required=2 * t.size)))
        self.ask("get_volume, at the end", lambda: t.client.get(volume.handle))
        self.twice("delete_volume", lambda: t.client.delete(volume.handle))
        self.ask("get_volume, of what was deleted", lambda: t.client.get(volume.handle))

    def attachment(self, volume: Volume) -> None:
        t, node = self.t, self.t.storage.nodes[0]
        self.twice("attach", lambda: sorted(t.attach(volume, node)))
        self.ask("get_volume, attached", lambda: t.client.get(volume.handle))
        self.twice("detach", lambda: t.client.detach(volume.handle, node))

    def copy(self, of: Volume | Snapshot, method: str) -> None:
        spec = self.t.spec(size=0, source=source(of))
        copy = self.make(method, lambda: self.t.create(spec))
        self.twice(f"delete_volume after {method}", lambda: self.t.client.delete(copy.handle))

    def snapshot(self, volume: Volume) -> None:
        t, name = self.t, self.t.name("cut")
        cut = self.make("create_snapshot", lambda: t.snapshot(volume, name))
        self.ask("get_snapshot", lambda: t.client.get_snapshot(cut.handle))
        if b.ListSnapshots in t.features:
            self.ask("list_snapshots", lambda: t.client.list_snapshots(source=volume.handle))
        wait_until_ready(t, cut)
        self.copy(cut, "restore_volume")
        self.twice("delete_snapshot", lambda: t.client.delete_snapshot(cut.handle))
        self.ask("get_snapshot, of what was deleted", lambda: t.client.get_snapshot(cut.handle))

    def group(self, volume: Volume) -> None:
        t, name = self.t, self.t.name("group")
        group = self.make("create_group_snapshot", lambda: t.group([volume], name))
        self.ask("get_group_snapshot", lambda: t.client.get_group(group.handle))
        self.twice("delete_group_snapshot", lambda: t.client.delete_group(group.handle))

    def make(self, words: str, act: Callable[[], Any]) -> Any:
        """Ask for something twice and return it. Raises Broken when there is no answer."""
        made, error = self.ask(words, act)
        if error:
            raise CheckFailed(f"{words}: raised {describe_error(error)}, the rule wants it to succeed") from error
        self._own.add(made.handle)
        self.told[-1] = (words, self.shape(made))
        self.ask(f"{words}, repeated", act)
        return made

    def twice(self, words: str, act: Callable[[], Any]) -> None:
        self.ask(words, act)
        self.ask(f"{words}, repeated", act)

    def ask(self, words: str, act: Callable[[], Any]) -> tuple[Any, Exception | None]:
        """Make a call, again while it is not settled, and keep what came back."""
        self.between()
        answer, error = attempt(act)
        for pause in PAUSES:
            if not isinstance(error, UNSETTLED):
                break
            time.sleep(pause)
            answer, error = attempt(act)
        if error and not isinstance(error, StorageError):
            raise error
        self.told.append((words, type(error).__name__ if error else self.shape(answer)))
        return answer, error

    def shape(self, answer: Any) -> Any:
        """Return an answer without what differs between two lives: handles, names, times."""
        if isinstance(answer, Volume):
            nodes, context = answer.published_nodes, dict(answer.stamp.context)
            return "volume", self.own(answer), answer.size, nodes, context, self.kind(answer), len(answer.topology)
        if isinstance(answer, Snapshot):
            return "snapshot", self.own(answer), answer.size, answer.source in self._own, bool(answer.group)
        if isinstance(answer, GroupSnapshot):
            return "group", self.own(answer), [self.shape(one) for one in answer.snapshots]
        if isinstance(answer, Page):
            return "listing", sorted(str(self.shape(one)) for one in answer.items if self.own(one))
        return ("expansion", answer.size) if isinstance(answer, Expansion) else answer

    def own(self, thing: Any) -> bool:
        """Whether it was made in this life."""
        return thing.handle in self._own

    def kind(self, volume: Volume) -> str:
        return volume.stamp.source.kind.value if volume.stamp.source else ""
