"""After a crash comes another crash, another request, or the same name for something new."""

from __future__ import annotations

from collections.abc import Iterator

from csi_multi.contract import Blank, InUse, StorageError, Volume
from csi_multi.contract import backend as b

from ..assertions import CheckSkipped, expect
from ..check import On, check
from ..context import CheckContext, pattern
from ..disturbance import Disturbance, reborn
from ..fault_injection import Fault
from ..operations.base import absent, attempt, described, firmly, ready
from ..operations.changing import DeleteVolume
from ..operations.making import SEED, Clone, Create, Groups, Making, Restore, Snapshots


def makings(t: CheckContext) -> Iterator[Making]:
    """Every way to make something that the backend has."""
    yield Create(t)
    for feature, making in ((b.Snapshots, Restore), (b.Clone, Clone), (b.Snapshots, Snapshots)):
        if feature in t.features:
            yield making(t)
    if b.GroupSnapshots in t.features:
        yield Groups(t)


@check(on=On.BACKEND)
def a_creation_completes_once_after_two_crashes_at_any_call(t: CheckContext) -> None:
    for making in makings(t):
        deaths = Disturbance(making, Fault.DEATH)
        for call in deaths:
            deaths.strike(call)
            reborn(t, deaths.where, resume=False)
            deaths.strike(call)
            what = f"{deaths.where}, twice, and asked for a third time"
            reborn(t, what, resume=False)
            making.prove(firmly(making.act, what), what)
            making.finish(what)


@check(on=On.BACKEND)
def another_request_can_follow_a_creation_that_crashed(t: CheckContext) -> None:
    """The user has edited the object: it is made as it is now, or refused. One thing at most is there."""
    for making in makings(t):
        deaths = Disturbance(making, Fault.DEATH)
        for call in deaths:
            deaths.strike(call)
            what = f"{deaths.where}, then another request under the name"
            reborn(t, what, resume=False)
            made, error = attempt(making.other)
            refused = error is None or isinstance(error, StorageError)
            expect(refused, f"{what}: raised {described(error) if error else ''}")
            if isinstance(made, Volume) and isinstance(making, Restore):
                _expect_no_bytes(t, made, SEED, f"{what}: an empty volume")
            if not making.is_unknown():
                making.made = making.find()
            reborn(t, what, resume=True)
            making.finish(what)


@check(on=On.BACKEND)
def a_name_is_free_after_a_crashed_deletion_was_repeated(t: CheckContext) -> None:
    deletion = DeleteVolume(t)
    deaths = Disturbance(deletion, Fault.DEATH)
    for call in deaths:
        wish = t.wish(deletion.thing.stamp.name, 2 * t.size)
        deaths.strike(call)
        what = f"{deaths.where}, repeated, then create_volume under the same name"
        reborn(t, what, resume=False)
        firmly(deletion.act, what)
        again = firmly(lambda wish=wish: t.create(wish), what)  # type: ignore[misc]
        _expect_no_bytes(t, again, SEED, f"{what}: the new volume")
        deletion.thing = again
        deletion.finish(what)
        t.forget(again)


def _expect_no_bytes(t: CheckContext, volume: Volume, seed: str, what: str) -> None:
    """Demand that a new volume does not show another's bytes, unless its device says that it may."""
    if t.no_data():
        return
    if not t.storage.read:
        with t.direct.opened(volume.handle) as device:
            if device.blank is not Blank.ZEROED:
                return
    expect(t.read(volume) != pattern(seed), f"{what} shows the bytes of what was there before")


class _DeleteSource(DeleteVolume):
    """A volume with a snapshot is deleted."""

    def prepare(self) -> None:
        super().prepare()
        self.cut = ready(self.t, self.t.snapshot(self.thing))

    def survived(self, what: str) -> None:
        """Demand that the snapshot is there, with its bytes."""
        found, error = attempt(lambda: self.t.door.get_snapshot(self.cut.handle))
        expect(found, f"{what}: get_snapshot raised {error!r}")
        if self.t.no_data():
            return
        copy = firmly(lambda: self.t.copy(self.cut), f"{what}, then restore_volume")
        self.t.expect_filled(copy, SEED, self.thing.size, f"{what}: a volume restored from the snapshot")
        self.t.door.delete(copy.handle)
        self.t.forget(copy)

    def prove(self, answer: object, what: str) -> None:
        absent(self.look, f"{what}: asked for what was deleted")
        self.survived(what)

    def remove(self) -> None:
        super().remove()
        self.t.door.delete_snapshot(self.cut.handle)
        self.t.forget(self.thing, self.cut)


@check(b.Snapshots, on=On.BACKEND)
def snapshots_survive_a_crashed_deletion_of_their_source(t: CheckContext) -> None:
    deletion = _DeleteSource(t)
    deletion.ready()
    if isinstance(attempt(deletion.act)[1], InUse):
        raise CheckSkipped("delete_volume refuses to delete a volume that has snapshots")
    deletion.remove()
    deaths = Disturbance(deletion, Fault.DEATH)
    for call in deaths:
        deaths.strike(call)
        what = f"{deaths.where}, repeated"
        reborn(t, what, resume=False)
        deletion.survived(what)
        deletion.prove(firmly(deletion.act, what), what)
        deletion.finish(what)
