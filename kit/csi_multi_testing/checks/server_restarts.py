"""What was done before the storage's server and the driver are killed is there when they are back, under its name.

A name that something else had before is the hard part: what ends interrupted work at a start goes by names.
"""

from __future__ import annotations

from csi_multi.contract import GroupSnapshot, Snapshot, Volume
from csi_multi.contract import backend as b

from ..assertions import same
from ..check import check
from ..context import CheckContext, pages
from ..operations.base import attempt, expect_not_found, retry, wait_until_ready
from ..operations.create import as_ready, source_volume
from ..operations.importing import by_hand, expect_data, imports
from ..protocol import Target
from ..waiting import BACK_SECONDS

AGAIN = "kit again"


def restart_all(t: CheckContext) -> str:
    """Kill the server, where there is one, and start it and the driver again. Returns what was done, as text."""
    if t.storage.server:
        t.storage.server.restart()
    t.client.restart()
    return "the server and the driver were killed and started again" if t.storage.server else "the driver was restarted"


def expect_there(t: CheckContext, volume: Volume, seed: str, what: str) -> None:
    """Require a volume and its data, by every way to find it."""
    name = volume.stamp.name
    found = retry(lambda: t.client.get(volume.handle), f"{what}, then get_volume of {name!r}", BACK_SECONDS)
    same(found, volume, f"{what}, then get_volume of {name!r}")
    same(t.backend.find_volume(name), volume, f"{what}, then find_volume of {name!r}")
    if b.ListVolumes in t.features:
        listed = [one for one in pages(t.client.list_volumes) if one.handle == volume.handle]
        same(listed, [volume], f"{what}, then {name!r} in list_volumes")
    if not t.no_data_reason():
        t.expect_filled(volume, seed, volume.size, f"{what}, then the data of {name!r}")


def filled(t: CheckContext, name: str, seed: str) -> Volume:
    volume = t.volume(name)
    if not t.no_data_reason():
        t.fill(volume, seed)
    return volume


@check(target=Target.BACKEND)
def what_was_made_deleted_and_made_again_is_there_after_a_restart(t: CheckContext) -> None:
    kept, deleted, name = source_volume(t), t.volume(), t.name()
    for _ in range(2):
        t.delete(filled(t, name, "kit earlier"))
    again = filled(t, name, AGAIN)
    t.delete(deleted)
    cuts: list[Snapshot | GroupSnapshot] = []
    if b.Snapshots in t.features:
        cut = t.name("snapshot")
        t.delete(wait_until_ready(t, t.snapshot(kept, cut)))
        cuts.append(wait_until_ready(t, t.snapshot(again, cut)))

    for number in ("once", "twice"):
        what = f"{restart_all(t)} {number}"
        expect_there(t, kept, "kit source", what)
        expect_there(t, again, AGAIN, what)
        expect_not_found(lambda: t.client.get(deleted.handle), f"{what}, then get_volume of what was deleted")
        for one in cuts:
            same(as_ready(t.client.get_snapshot(one.handle)), as_ready(one), f"{what}, then get_snapshot")


@check(b.Import, needs=("importable",), target=Target.BACKEND)
def the_earlier_name_of_an_imported_volume_belongs_to_a_new_one_after_a_restart(t: CheckContext) -> None:
    with imports(t) as all_imports:
        native = by_hand(t)
        imported = all_imports.volume(native)
        new, error = attempt(lambda: filled(t, native.rpartition("/")[2], AGAIN))
        for number in ("once", "twice"):
            what = f"a volume was imported, a new one got its earlier name, and {restart_all(t)} {number}"
            if new:
                expect_there(t, new, AGAIN, what)
            same(t.client.get(imported.handle), imported, f"{what}, then get_volume of the imported one")
            expect_data(t, imported, what)
        if new:
            t.delete(new)  # before the release, which gives the earlier name back
        else:
            t.note(f"the earlier name is not free for a new volume: {error}")


@check(b.Import, needs=("importable",), target=Target.BACKEND)
def the_name_of_a_released_volume_belongs_to_a_new_one_after_a_restart(t: CheckContext) -> None:
    with imports(t) as all_imports:
        native, stamp = by_hand(t), all_imports.stamp()
        released = all_imports.volume(native, stamp)
        t.backend.release_volume(released.handle)
        new = filled(t, stamp.name, AGAIN)
        for number in ("once", "twice"):
            expect_there(t, new, AGAIN, f"a volume was released, a new one got its name, and {restart_all(t)} {number}")
        t.delete(new)
        again = all_imports.volume(native)
        expect_data(t, again, "a volume was released and is imported again after a restart")
