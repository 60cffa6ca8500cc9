"""Two processes on one storage: what one changes, the other one sees at once, although it has read it before.

A controller that is being replaced and the next one run side by side, and so do controller and node on one machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from csi_multi.contract import Blank, SizeRange, Snapshot, Volume
from csi_multi.contract import backend as b

from ..assertions import CheckSkipped, same
from ..check import check
from ..context import CheckContext, pages
from ..fault_injection import FaultInjector
from ..in_process import InProcessClient
from ..marked_secrets import given_secrets
from ..operations.base import expect_not_found, wait_until_ready
from ..operations.create import as_ready
from ..protocol import Target
from .attach import attach
from .blanks import blank_of, volume_with_notes

ROUNDS = 3  # a cache may compare times in seconds, and a second may begin in between


def another_process(t: CheckContext) -> InProcessClient:
    return InProcessClient(t.storage, FaultInjector())


def reports(client: InProcessClient, volume: Volume) -> Iterator[tuple[str, Any]]:
    yield "get_volume", client.get(volume.handle)
    yield "find_volume", client.backend.find_volume(volume.stamp.name)
    if isinstance(client.backend, b.ListVolumes):
        yield "list_volumes", next((one for one in pages(client.list_volumes) if one.handle == volume.handle), None)


def expect_seen(client: InProcessClient, volume: Volume, what: str) -> None:
    for method, found in reports(client, volume):
        same(found, volume, f"{what}, then {method} of a process that has read it before")


@check(target=Target.BACKEND)
def what_another_process_does_to_a_volume_is_seen_at_once(t: CheckContext) -> None:
    other = another_process(t)
    for _ in range(ROUNDS):
        spec = t.spec()
        made = t.create(spec)
        expect_seen(other, made, "create_volume")
        if b.Expand in t.features:
            t.client.expand(made.handle, SizeRange(required=2 * t.size))
            made = t.client.get(made.handle)
            expect_seen(other, made, "expand_volume")
        t.client.delete(made.handle)
        what = "delete_volume, then {} of a process that has read it before"
        expect_not_found(partial(other.get, made.handle), what.format("get_volume"))
        expect_not_found(partial(other.backend.find_volume, spec.name), what.format("find_volume"))
        again = t.create(replace(spec, size=SizeRange(required=3 * t.size)))
        expect_seen(other, again, "delete_volume and create_volume of the name")
        t.client.delete(again.handle)
        t.forget(made)
        t.forget(again)


@check(b.PublishedNodes, needs=("nodes",), target=Target.BACKEND)
def what_another_process_attaches_is_seen_at_once(t: CheckContext) -> None:
    other, made, node = another_process(t), t.volume(), t.storage.nodes[0]
    expect_seen(other, made, "create_volume")
    attach(t, made, node)
    expect_seen(other, replace(made, published_nodes=(node.id,)), "attach")
    t.client.detach(made.handle, node)
    expect_seen(other, made, "detach")


@check(b.Snapshots, target=Target.BACKEND)
def what_another_process_does_to_a_snapshot_is_seen_at_once(t: CheckContext) -> None:
    other, volume, name = another_process(t), t.volume(), t.name("snapshot")
    for _ in range(2):
        made = wait_until_ready(t, t.snapshot(volume, name))
        for found in _snapshots(other, made):
            same(as_ready(found), made, "create_snapshot, then it in a process that has read the name before")
        t.delete(made)
        what = "delete_snapshot, then get_snapshot of a process that has read it before"
        expect_not_found(partial(other.get_snapshot, made.handle), what)


def _snapshots(client: InProcessClient, made: Snapshot) -> Iterator[Any]:
    yield client.get_snapshot(made.handle)
    yield client.backend.find_snapshot(made.stamp.name)
    if isinstance(client.backend, b.ListSnapshots):
        yield next((one for one in pages(client.list_snapshots) if one.handle == made.handle), made)


@check(b.Expand, needs=("devices",), data=True, target=Target.BACKEND)
def a_format_note_keeps_what_another_process_has_changed(t: CheckContext) -> None:
    """A controller expands, and the process of the node, which has read the volume before, notes the format."""
    volume_with_notes(t)
    if not t.backend.offline:
        raise CheckSkipped("the backend expands only volumes that are attached (Expand.offline is False)")
    for _ in range(ROUNDS):
        made, controller = t.volume(), another_process(t)
        same(t.client.get(made.handle), made, "get_volume")
        controller.expand(made.handle, SizeRange(required=2 * t.size))
        grown = controller.get(made.handle)
        for method in ("formatting", "formatted"):
            given_secrets(t, getattr(t.backend, method))(made.handle)
            same(
                controller.get(made.handle), grown, f"expand_volume, then {method} in another process, then get_volume"
            )
        same(blank_of(t, made, "formatted"), Blank.NEVER, "expand_volume, then formatted in another process: its blank")
