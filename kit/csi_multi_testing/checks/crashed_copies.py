"""A copy crashed, and nobody repeats its request yet: meanwhile its source is as usable as any other volume.

What a copy does to its source (a lock, a mark, a filesystem that is frozen) is undone by the next process at its start,
or by whoever finds it. Else a volume stays busy until somebody asks for that copy again, which may never happen.
"""

from __future__ import annotations

from functools import partial

from csi_multi.contract import SizeRange, Snapshot, Volume
from csi_multi.contract import backend as b

from ..assertions import expect
from ..check import check
from ..context import BLOCK_SIZE, CheckContext, pattern
from ..fault_injection import Fault
from ..fault_sweep import FaultSweep, restart_process
from ..operations.base import retry
from ..operations.create import SEED
from ..protocol import Target
from .lost_sources import CloneFromOwnSource, RestoreFromOwnSource, SnapshotOfOwnVolume


def expect_sources_usable(creation: RestoreFromOwnSource | SnapshotOfOwnVolume) -> None:
    """Let the process die at every call, start the next one, and use the source; then repeat the request."""
    deaths = FaultSweep(creation, Fault.DEATH)
    for call in deaths:
        deaths.inject(call)
        restart_process(creation.t, deaths.where, resume=True)
        what = f"{deaths.where}, then a start"
        for source in creation.originals():
            _use(creation.t, source, creation.source_volume.size, what)
        creation.made = retry(creation.act, f"{what}, then the same request again")
        creation.clean_up(f"{what}, then the same request again")


def _use(t: CheckContext, source: Volume | Snapshot, size: int, what: str) -> None:
    """Write to a source and copy it, and expand it where that is possible."""
    if isinstance(source, Volume) and not t.no_data_reason():
        block, place = pattern("kit between"), source.size // 2 // BLOCK_SIZE * BLOCK_SIZE
        retry(partial(t.write, source, block, place), f"{what}, then a write to the source")
        found = retry(partial(t.read, source, BLOCK_SIZE, place), f"{what}, then a read of the source")
        expect(found == block, f"{what}, then a write to the source: it cannot be read back")
    if b.Clone in t.features or isinstance(source, Snapshot):
        copy = retry(partial(t.copy, source, t.name()), f"{what}, then another copy of the source")
        if not t.no_data_reason():
            t.expect_filled(copy, SEED, size, f"{what}, then another copy of the source")
        retry(partial(t.delete, copy), f"{what}, then the deletion of another copy of the source")
    if isinstance(source, Volume) and b.Expand in t.features:
        larger = SizeRange(required=source.size + t.size)
        retry(partial(t.client.expand, source.handle, larger), f"{what}, then an expansion of the source")


@check(b.Clone, target=Target.BACKEND)
def the_source_of_a_crashed_clone_can_be_used(t: CheckContext) -> None:
    expect_sources_usable(CloneFromOwnSource(t))


@check(b.Snapshots, target=Target.BACKEND)
def a_snapshot_whose_restore_crashed_can_be_used(t: CheckContext) -> None:
    expect_sources_usable(RestoreFromOwnSource(t))


@check(b.Snapshots, target=Target.BACKEND)
def a_volume_whose_snapshot_crashed_can_be_used(t: CheckContext) -> None:
    expect_sources_usable(SnapshotOfOwnVolume(t))
