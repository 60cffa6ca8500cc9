"""A storage that is away (unmounted, not reachable, another one in its place) answers nothing, and loses nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from csi_multi.contract import Blank, CapacityReport, GroupSnapshot, OpenRequest, SizeRange, Snapshot, Strings, Volume
from csi_multi.contract import backend as b
from csi_multi.contract.errors import NOT_FINAL
from csi_multi.process.driver_process import NotServing

from ..assertions import CheckFailed, expect, same
from ..check import check
from ..context import CheckContext, pages, pattern
from ..marked_secrets import given_secrets
from ..operations.base import RETRYABLE_ERRORS, attempt, describe_error
from ..operations.create import SEED, as_ready, source_volume
from ..protocol import Target
from ..waiting import BACK_SECONDS, wait_for
from .devices import open_device
from .sources import expect_success, snapshot_as_source

Act = Callable[[], Any]


@dataclass(frozen=True, kw_only=True)
class Present:
    """What is on the storage while it is away."""

    volume: Volume
    snapshot: Snapshot | None
    group: GroupSnapshot | None
    resources: set[str]
    capacity: CapacityReport | None  # an answer may be a few minutes old, or one without a limit
    publish_context: Strings | None  # None: the device cannot be opened on this node

    @classmethod
    def on(cls, t: CheckContext) -> Present:
        volume = source_volume(t)
        snapshot = snapshot_as_source(t, volume) if b.Snapshots in t.features else None
        group = t.group([volume]) if b.GroupSnapshots in t.features else None
        here, context = t.storage.devices and t.client.target is Target.BACKEND, {}
        if b.Attach in t.features and t.storage.nodes:
            node = t.storage.nodes[0]
            context = t.attach(volume, node)
            here = here and node.id == t.in_process.node().id
        return cls(
            volume=t.client.get(volume.handle),
            snapshot=snapshot,
            group=group,
            resources=t.new_resources(),
            capacity=t.client.capacity() if b.Capacity in t.features else None,
            publish_context=context if here and not t.no_data_reason() else None,
        )

    def expect_all_as_before(self, t: CheckContext, what: str) -> None:
        same(_once_back(t, lambda: t.client.get(self.volume.handle), what), self.volume, f"{what}, then get_volume")
        if self.snapshot:
            found = _once_back(t, lambda: t.client.get_snapshot(self.snapshot.handle), what)  # type: ignore[union-attr]
            same(as_ready(found), as_ready(self.snapshot), f"{what}, then get_snapshot")
        if self.group:
            members = {one.handle for one in t.client.get_group(self.group.handle).snapshots}
            same(members, {one.handle for one in self.group.snapshots}, f"{what}, then get_group_snapshot: members")
        same(t.new_resources(), self.resources, f"{what}, then the resources")
        if b.Attach in t.features and t.storage.nodes:
            t.client.detach(self.volume.handle, None)  # its device may be opened on this node now
        if not t.no_data_reason():
            t.expect_filled(self.volume, SEED, self.volume.size, f"{what}, then the volume")


def reads(t: CheckContext, present: Present) -> Iterator[tuple[str, Act]]:
    """Yield every method that only reads, and a call of it."""
    handle = present.volume.handle
    yield "get_volume", lambda: t.client.get(handle)
    if t.client.target is Target.BACKEND:
        yield "find_volume", lambda: t.backend.find_volume(present.volume.stamp.name)
        yield "check", lambda: t.backend.check()
    if b.ListVolumes in t.features:
        yield "list_volumes", lambda: pages(t.client.list_volumes)
    if b.ListSnapshots in t.features:
        yield "list_snapshots", lambda: pages(t.client.list_snapshots)
        yield "list_snapshots of a volume", lambda: pages(t.client.list_snapshots, source=handle)
    if snapshot := present.snapshot:
        yield "get_snapshot", lambda: t.client.get_snapshot(snapshot.handle)
        if t.client.target is Target.BACKEND:
            yield "find_snapshot", lambda: t.backend.find_snapshot(snapshot.stamp.name)
        if b.ChangedBlocks in t.features:
            yield "allocated_blocks", lambda: t.client.allocated(snapshot.handle)
            yield "changed_blocks", lambda: t.client.changed(snapshot.handle, snapshot.handle)
    if group := present.group:
        yield "get_group_snapshot", lambda: t.client.get_group(group.handle)
        if t.client.target is Target.BACKEND:
            yield "find_group_snapshot", lambda: t.backend.find_group_snapshot(group.stamp.name)


def health_reads(t: CheckContext, present: Present) -> Iterator[tuple[str, Act]]:
    """Yield the methods of health: they raise, or report the problem."""
    handle = present.volume.handle
    if b.VolumeHealthReporter in t.features:
        yield "volume_health", lambda: t.client.health(handle)
    if b.VolumeHealthLister in t.features:
        yield "list_volume_health", lambda: [one for one in pages(t.client.list_health) if one.handle == handle]
    if b.NodeHealthReporter in t.features and t.client.target is Target.BACKEND:
        yield "node_volume_health", lambda: t.backend.node_volume_health(handle)
        yield "node_storage_health", lambda: t.backend.node_storage_health(t.storage.secrets)


def changes(t: CheckContext, present: Present) -> Iterator[tuple[str, Act]]:
    """Yield every method that changes something, and a call of it. A deletion that succeeds makes a resource lost."""
    volume, size = present.volume, SizeRange(required=2 * t.size)
    yield "delete_volume", lambda: t.client.delete(volume.handle)
    yield "create_volume", t.volume
    if b.Clone in t.features:
        yield "clone_volume", lambda: t.copy(volume)
    if b.Expand in t.features:
        yield "expand_volume", lambda: t.client.expand(volume.handle, size)
    if b.Modify in t.features and t.storage.other_mutable:
        yield "modify_volume", lambda: t.client.modify(volume.handle, t.storage.other_mutable or {})
    if b.Attach in t.features and t.storage.nodes:
        yield "attach", lambda: t.client.attach(volume.handle, t.storage.nodes[0])
        yield "detach", lambda: t.client.detach(volume.handle, t.storage.nodes[0])
    if snapshot := present.snapshot:
        yield "create_snapshot", lambda: t.snapshot(volume)
        yield "delete_snapshot", lambda: t.client.delete_snapshot(snapshot.handle)
        yield "restore_volume", lambda: t.copy(snapshot)
    if (context := present.publish_context) is not None:
        t.close_at_end(volume)
        wanted = OpenRequest(
            handle=volume.handle,
            block=True,
            volume_context=volume.stamp.context,
            publish_context=context,
            secrets=t.storage.secrets,
        )
        yield "open_device", lambda: t.backend.open_device(wanted)
    if group := present.group:
        yield "create_group_snapshot", lambda: t.group([volume])
        yield "delete_group_snapshot", lambda: t.client.delete_group(group.handle)


def retryable_errors(t: CheckContext) -> tuple[type[Exception], ...]:
    return tuple(t.client.kind_of(kind) for kind in NOT_FINAL)


def wrong_answers(
    t: CheckContext, acts: Iterator[tuple[str, Act]], is_right: Callable[[Any], object] = lambda _answer: False
) -> list[str]:
    """Make the calls; return what is wrong. `is_right`: whether an answer is right too, in place of an error."""
    wrong = []
    for name, act in acts:
        found, error = attempt(act)
        if error is None and not is_right(found):
            wrong.append(f"{name} answered {found!r}")
        elif error and not isinstance(error, retryable_errors(t)):
            wrong.append(f"{name} raised {describe_error(error)}")
    return wrong


def expect_no_answer(t: CheckContext, present: Present, when: str) -> None:
    """Require that every method says that the storage is not there; all that do not are in one message."""
    wrong = wrong_answers(t, reads(t, present)) + wrong_answers(t, health_reads(t, present), bool)
    if present.capacity:
        wrong += wrong_answers(t, iter([("capacity", t.client.capacity)]), present.capacity.__eq__)
    wrong += wrong_answers(t, changes(t, present))
    expect(not wrong, f"{when}: {'; '.join(wrong)}; the contract requires {RETRYABLE_ERRORS}: prove that it is there")


def ways(t: CheckContext) -> Iterator[tuple[str, AbstractContextManager[object]]]:
    """Yield each way to be away, with a word for messages."""
    every = [one for one in (t.storage.away, *t.storage.also_away) if one]
    for number, way in enumerate(every, 1):
        yield f" (way {number} of {len(every)})" if len(every) > 1 else "", way()


def use(t: CheckContext, present: Present) -> None:
    """Call every method that reads, so that the process has an answer to remember."""
    for name, act in (*reads(t, present), *health_reads(t, present)):
        expect_success(f"{name}, before the storage is away", act)


@check(needs=("away",))
def a_storage_that_is_away_is_never_taken_for_empty(t: CheckContext) -> None:
    """Not by a process that has used it before. An orchestrator forgets what is not found."""
    for way, away in ways(t):
        present = Present.on(t)
        use(t, present)
        with away:
            expect_no_answer(t, present, f"while the storage is away{way}")
        present.expect_all_as_before(t, f"the storage was away{way} and is back")


@check(needs=("away",))
def a_process_that_starts_while_the_storage_is_away_does_not_take_it_for_empty(t: CheckContext) -> None:
    """A node that boots without its disk. The process needs no restart when the storage is back."""
    for way, away in ways(t):
        present = Present.on(t)
        with away:
            error = attempt(t.client.restart)[1]
            if isinstance(error, NotServing):
                raise CheckFailed(f"while the storage is away{way}, the driver does not start: {error}") from error
            text = f"resume raised {describe_error(error) if error else ''}, the contract requires {RETRYABLE_ERRORS}"
            expect(error is None or isinstance(error, retryable_errors(t)), text)
            expect_no_answer(t, present, f"in a process that started while the storage is away{way}")
        present.expect_all_as_before(t, f"a process started while the storage was away{way}, which is back")


@check(needs=("away", "devices"), data=True, target=Target.BACKEND)
def an_open_device_is_not_taken_for_closed_while_the_storage_is_away(t: CheckContext) -> None:
    """find_device finds it or fails; has_data does not say that it is unwritten; a note is stored or fails."""
    for way, away in ways(t):
        _expect_open(t, way, away)


def _expect_open(t: CheckContext, way: str, away: AbstractContextManager[object]) -> None:
    volume = t.volume()
    t.fill(volume, SEED)
    open_device(t, volume)
    acts = (("find_device", t.backend.find_device), ("has_data", given_secrets(t, t.backend.has_data)))

    with away:
        wrong = []
        for name, method in acts:
            found, error = attempt(lambda method=method: method(volume.handle))  # type: ignore[misc]
            if error and not isinstance(error, retryable_errors(t)):
                wrong.append(f"{name} raised {describe_error(error)}")
            elif not error and (found is False or (name == "find_device" and found is None)):
                wrong.append(f"{name} answered {found!r}")
        noted = attempt(lambda: given_secrets(t, t.backend.formatted)(volume.handle))[1] is None
    text = f"while the storage is away{way}, of an open device: {'; '.join(wrong)}"
    expect(not wrong, f"{text}; the contract requires the true answer or {RETRYABLE_ERRORS}")
    what = f"the storage was away{way} and is back"
    device = _once_back(t, lambda: t.backend.find_device(volume.handle), what)
    expect(device, f"{what}, then find_device of an open device: None")
    if noted:
        same(device.blank, Blank.NEVER, f"formatted succeeded while the storage was away; {what}: Device.blank")
    t.backend.close_device(volume.handle)
    t.expect_filled(volume, SEED, volume.size, f"{what}, then the volume")


@check(needs=("away", "devices"), data=True, target=Target.BACKEND)
def what_was_written_survives_a_close_that_fails_while_the_storage_is_away(t: CheckContext) -> None:
    """Nobody has synced it. A device that is closed holds nothing back, so a close that cannot store it fails."""
    for way, away in ways(t):
        volume = t.volume()
        device, block = open_device(t, volume), pattern("kit unsynced")
        with device.path.open("r+b") as file:
            file.write(block)
        with away:
            for _ in range(2):
                attempt(lambda: t.backend.close_device(volume.handle))  # noqa: B023 - called here
        what = f"close_device, twice while the storage was away{way}, and once it is back"
        _once_back(t, lambda: t.backend.close_device(volume.handle), what)  # noqa: B023 - called here
        found = t.read(volume, len(block))
        expect(found == block, f"{what}: what was written before, and not synced, is lost")


def _once_back(t: CheckContext, act: Act, what: str) -> Any:
    """Return the answer; repeat the call while it is refused as if the storage were still away."""
    found, error = wait_for(
        lambda: attempt(act), lambda answer: not isinstance(answer[1], retryable_errors(t)), BACK_SECONDS
    )
    if error:
        raise CheckFailed(f"{what}: raised {describe_error(error)}, the contract requires it to succeed") from error
    return found
