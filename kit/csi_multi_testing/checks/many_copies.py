"""Many devices, snapshots and copies at once: no two calls share a device, a draft or a name that is for the moment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from csi_multi.contract import InUse, Snapshot, Volume
from csi_multi.contract import backend as b

from ..assertions import expect, same
from ..check import check
from ..concurrency import expect_answers, run_concurrently
from ..context import BLOCK_SIZE, CheckContext, pattern, source
from ..operations.base import retry, wait_until_ready
from ..operations.create import SEED, source_volume
from ..protocol import Target, read_from, write_to
from .devices import attach_here, open_device
from .sources import snapshot_as_source

AT_ONCE = 6  # also the snapshots of one volume, of which each storage can have eight
ROUNDS = 2


def make_at_once(t: CheckContext, what: str, acts: Sequence[Callable[[], Any]]) -> list[Any]:
    """Make these calls at once; repeat those that were told to wait, one after the other; return all answers."""
    results = run_concurrently([(what, act) for act in acts])
    expect_answers(t, results, InUse)  # a copy may need its source for itself
    return [
        one.answer if not one.error else retry(act, f"{what}, repeated") for one, act in zip(results, acts, strict=True)
    ]


@check(needs=("devices",), data=True, target=Target.BACKEND)
def many_devices_are_opened_and_closed_at_once(t: CheckContext) -> None:
    """As when a node starts. Who looks for a free device, and takes it then, finds one that another one takes."""
    volumes = [t.volume() for _ in range(AT_ONCE)]
    for volume in volumes:
        attach_here(t, volume)
    what = f"open_device of {AT_ONCE} volumes at once"
    for _ in range(ROUNDS):
        devices = make_at_once(t, what, [partial(open_device, t, one) for one in volumes])
        same(len({one.path for one in devices}), AT_ONCE, f"{what}: the number of different devices")
        for volume, device in zip(volumes, devices, strict=True):
            same(t.backend.find_device(volume.handle), device, f"{what}, then find_device")
            write_to(device.path, 0, pattern(volume.handle))
        for volume, device in zip(volumes, devices, strict=True):
            found = read_from(device.path, 0, BLOCK_SIZE)
            expect(found == pattern(volume.handle), f"{what}: {device.path} has the data of another volume")
        make_at_once(
            t,
            f"close_device of {AT_ONCE} volumes at once",
            [partial(t.backend.close_device, one.handle) for one in volumes],
        )
        for volume in volumes:
            same(t.backend.find_device(volume.handle), None, "close_device of many volumes at once, then find_device")
            found = t.read(volume)
            expect(found == pattern(volume.handle), f"{what}, closed: a volume has the data of another one")


def expect_copied_at_once(t: CheckContext, volume: Volume, of: Volume | Snapshot, what: str) -> None:
    """Some are deleted at once too, while others are there."""
    specs = [t.spec(size=0, source=source(of)) for _ in range(AT_ONCE)]
    made: list[Volume] = make_at_once(t, what, [partial(t.create, spec) for spec in specs])
    same(len({one.handle for one in made}), AT_ONCE, f"{what}: the number of different handles")
    half = made[::2]
    make_at_once(t, f"{what}, then some deleted at once", [partial(t.client.delete, one.handle) for one in half])
    t.forget(*half)
    for copy in made[1::2]:
        same(t.client.get(copy.handle), copy, f"{what}, some deleted, then get_volume of another one")
        t.expect_filled(copy, SEED, volume.size, f"{what}, some deleted, then another one")
    t.expect_filled(volume, SEED, volume.size, f"{what}, some deleted, then the volume that was copied")


@check(b.Clone, data=True)
def many_clones_of_one_volume_are_made_at_once(t: CheckContext) -> None:
    volume = source_volume(t)
    expect_copied_at_once(t, volume, volume, f"clone_volume of one volume, {AT_ONCE} at once")


@check(b.Snapshots, data=True)
def many_volumes_are_restored_from_one_snapshot_at_once(t: CheckContext) -> None:
    volume = source_volume(t)
    made = snapshot_as_source(t, volume)
    expect_copied_at_once(t, volume, made, f"restore_volume of one snapshot, {AT_ONCE} at once")


@check(b.Snapshots, data=True)
def many_snapshots_are_made_and_deleted_at_once(t: CheckContext) -> None:
    """Of one volume, which keeps its data, as the snapshots do that stay."""
    volume = source_volume(t)
    what = f"create_snapshot of one volume, {AT_ONCE} at once"
    names = [t.name("snapshot") for _ in range(AT_ONCE)]
    made: list[Snapshot] = make_at_once(t, what, [partial(t.snapshot, volume, name) for name in names])
    same(len({one.handle for one in made}), AT_ONCE, f"{what}: the number of different handles")
    gone, kept = made[:-1], made[-1]
    deletions = [partial(t.client.delete_snapshot, one.handle) for one in gone]
    make_at_once(t, f"{what}, then all but one deleted at once", deletions)
    t.forget(*gone)
    t.expect_filled(volume, SEED, volume.size, f"{what}, all but one deleted, then the volume")
    found = t.client.get_snapshot(kept.handle)
    same((found.source, found.created), (kept.source, kept.created), f"{what}, all but one deleted, then the last one")
    copy = t.copy(wait_until_ready(t, kept))
    t.expect_filled(copy, SEED, volume.size, f"{what}, all but one deleted, then the last one, restored")
