"""A snapshot names its volume, and no other one, whatever happens to the volume, or to a later one of its name.

A change that writes a volume's record again may lose what distinguishes the volume from an earlier one (`ids.earlier`).
Then its snapshots seem to be those of another volume, or those of another one seem to be its own.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial

from csi_multi.contract import FailedPrecondition, SizeRange, Volume
from csi_multi.contract import backend as b

from ..assertions import expect, same
from ..check import check
from ..context import CheckContext
from ..listings import snapshots
from ..marked_secrets import given_secrets
from ..operations.base import retry, wait_until_ready
from ..operations.create import as_ready
from ..protocol import Target
from .blanks import volume_with_notes
from .devices import open_device
from .sources import is_served

Change = Callable[[Volume], object]


def expect_sources_kept(t: CheckContext, method: str, change: Change) -> None:
    volume_name, name = t.name(), t.name("snapshot")
    volume = t.volume(volume_name)
    change(volume)
    made = wait_until_ready(t, t.snapshot(volume, name))
    change(volume)
    what = f"{method} before and after create_snapshot"
    found = retry(partial(t.client.get_snapshot, made.handle), f"{what}, then get_snapshot")
    same(found.source, volume.handle, f"{what}, then the source of get_snapshot")
    again = retry(partial(t.snapshot, volume, name), f"{what}, then create_snapshot repeated")
    same(as_ready(again), as_ready(made), f"{what}, then create_snapshot repeated")
    if b.ListSnapshots in t.features:
        listed = snapshots(t, volume).handles(source=volume.handle)
        same(listed, [made.handle], f"{what}, then list_snapshots of the volume")
    if not is_served(t, t.client.delete, volume.handle):
        return  # a volume with snapshots may be refused; then no other one gets its name
    t.forget(volume)
    later = t.volume(volume_name)
    change(later)
    what = f"{method} of a volume whose name an earlier one had"
    source = retry(partial(t.client.get_snapshot, made.handle), f"{what}, then get_snapshot").source
    expect(source != later.handle, f"{what}: the source of the earlier one's snapshot is {source!r}, the new volume")
    if b.ListSnapshots in t.features:
        same(snapshots(t, later).handles(source=later.handle), [], f"{what}, then list_snapshots of the volume")


@check(b.Snapshots, b.Expand)
def snapshots_keep_their_source_when_volumes_grow(t: CheckContext) -> None:
    def grow(volume: Volume) -> None:
        size = SizeRange(required=t.client.get(volume.handle).size + t.size)
        retry(partial(t.client.expand, volume.handle, size), "expand_volume")

    expect_sources_kept(t, "expand_volume", grow)


@check(b.Snapshots, b.Modify, needs=("other_mutable",))
def snapshots_keep_their_source_when_volumes_are_modified(t: CheckContext) -> None:
    def modify(volume: Volume) -> None:
        retry(partial(t.client.modify, volume.handle, dict(t.storage.other_mutable or {})), "modify_volume")

    expect_sources_kept(t, "modify_volume", modify)


@check(b.Snapshots, needs=("devices",), data=True, target=Target.BACKEND)
def snapshots_keep_their_source_when_volumes_are_formatted(t: CheckContext) -> None:
    volume_with_notes(t)

    def take_notes(volume: Volume) -> None:
        open_device(t, volume)
        with suppress(FailedPrecondition):  # the second time, after `formatted`
            given_secrets(t, t.backend.formatting)(volume.handle)
        given_secrets(t, t.backend.formatted)(volume.handle)
        t.backend.close_device(volume.handle)
        if b.Attach in t.features:
            t.client.detach(volume.handle, None)

    expect_sources_kept(t, "the format notes", take_notes)
