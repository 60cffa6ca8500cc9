"""After a crash: a second crash, another request, a deletion, or the same name for a new volume."""

from __future__ import annotations

from collections.abc import Iterator

from csi_multi.contract import Blank, InUse, StorageError, Volume
from csi_multi.contract import backend as b

from ..assertions import CheckSkipped, expect
from ..check import check
from ..context import CheckContext, pattern
from ..fault_injection import Fault
from ..fault_sweep import FaultSweep, restart_process
from ..operations.base import Operation, attempt, describe_error, expect_not_found, retry, wait_until_ready
from ..operations.change import DeleteVolume, ExpandVolume
from ..operations.create import (
    SEED,
    CloneVolume,
    CreateGroupSnapshot,
    CreateOperation,
    CreateSnapshot,
    CreateVolume,
    RestoreVolume,
)
from ..operations.device import NoteFormatted, NoteFormatting
from ..protocol import Target


def creations(t: CheckContext) -> Iterator[CreateOperation]:
    """Yield every creation that the backend supports."""
    yield CreateVolume(t)
    for feature, creation in ((b.Snapshots, RestoreVolume), (b.Clone, CloneVolume), (b.Snapshots, CreateSnapshot)):
        if feature in t.features:
            yield creation(t)
    if b.GroupSnapshots in t.features:
        yield CreateGroupSnapshot(t)


@check(target=Target.BACKEND)
def a_creation_completes_once_after_two_crashes_at_any_call(t: CheckContext) -> None:
    for creation in creations(t):
        deaths = FaultSweep(creation, Fault.DEATH)
        for call in deaths:
            deaths.inject(call)
            restart_process(t, deaths.where, resume=False)
            deaths.inject(call)
            what = f"{deaths.where}, twice, then repeated once more"
            restart_process(t, what, resume=False)
            creation.verify(retry(creation.act, what), what)
            creation.clean_up(what)


@check(target=Target.BACKEND)
def another_request_can_follow_a_creation_that_crashed(t: CheckContext) -> None:
    """The user has changed the request. It is served or refused, and at most one resource exists."""
    for creation in creations(t):
        deaths = FaultSweep(creation, Fault.DEATH)
        for call in deaths:
            deaths.inject(call)
            what = f"{deaths.where}, then another request under the name"
            restart_process(t, what, resume=False)
            made, error = attempt(creation.other)
            refused = error is None or isinstance(error, StorageError)
            expect(refused, f"{what}: raised {describe_error(error) if error else ''}")
            if isinstance(made, Volume) and isinstance(creation, RestoreVolume):
                _expect_no_bytes(t, made, SEED, f"{what}: an empty volume")
            if not creation.is_missing():
                creation.made = creation.find()
            restart_process(t, what, resume=True)
            creation.clean_up(what)


@check(target=Target.BACKEND)
def a_name_is_free_after_a_crashed_deletion_was_repeated(t: CheckContext) -> None:
    deletion = DeleteVolume(t)
    deaths = FaultSweep(deletion, Fault.DEATH)
    for call in deaths:
        spec = t.spec(deletion.resource.stamp.name, 2 * t.size)
        deaths.inject(call)
        what = f"{deaths.where}, repeated, then create_volume under the same name"
        restart_process(t, what, resume=False)
        retry(deletion.act, what)
        again = retry(lambda spec=spec: t.create(spec), what)  # type: ignore[misc]
        _expect_no_bytes(t, again, SEED, f"{what}: the new volume")
        deletion.resource = again
        deletion.clean_up(what)
        t.forget(again)


def _expect_no_bytes(t: CheckContext, volume: Volume, seed: str, what: str) -> None:
    """Require that a new volume does not have the data of another, unless Device.blank allows it."""
    if t.no_data_reason():
        return
    if not t.storage.read:
        with t.in_process.open_device(volume.handle) as device:
            if device.blank is not Blank.ZEROED:
                return
    expect(t.read(volume) != pattern(seed), f"{what} has the data of an earlier volume")


class _DeleteSource(DeleteVolume):
    """Deletes a volume that has a snapshot."""

    def prepare(self) -> None:
        super().prepare()
        self.snapshot = wait_until_ready(self.t, self.t.snapshot(self.resource))

    def verify_survival(self, what: str) -> None:
        """Require that the snapshot is there, with its data."""
        found, error = attempt(lambda: self.t.client.get_snapshot(self.snapshot.handle))
        expect(found, f"{what}: get_snapshot raised {error!r}")
        if self.t.no_data_reason():
            return
        copy = retry(lambda: self.t.copy(self.snapshot), f"{what}, then restore_volume")
        self.t.expect_filled(copy, SEED, self.resource.size, f"{what}: a volume restored from the snapshot")
        self.t.delete(copy)

    def verify(self, answer: object, what: str) -> None:
        expect_not_found(self.read, f"{what}: read after the deletion")
        self.verify_survival(what)

    def remove(self) -> None:
        super().remove()
        self.t.client.delete_snapshot(self.snapshot.handle)
        self.t.forget(self.resource, self.snapshot)


@check(b.Snapshots, target=Target.BACKEND)
def snapshots_survive_a_crashed_deletion_of_their_source(t: CheckContext) -> None:
    deletion = _DeleteSource(t)
    deletion.begin()
    if isinstance(attempt(deletion.act)[1], InUse):
        raise CheckSkipped("delete_volume refuses a volume that has snapshots, which the contract allows")
    deletion.remove()
    deaths = FaultSweep(deletion, Fault.DEATH)
    for call in deaths:
        deaths.inject(call)
        what = f"{deaths.where}, repeated"
        restart_process(t, what, resume=False)
        deletion.verify_survival(what)
        deletion.verify(retry(deletion.act, what), what)
        deletion.clean_up(what)


def _expect_nothing_left_by(operation: Operation) -> None:
    """Let the process die at every call; nobody repeats the request, because the volume is deleted next."""
    deaths = FaultSweep(operation, Fault.DEATH)
    for call in deaths:
        deaths.inject(call)
        what = f"{deaths.where}, not repeated"
        restart_process(operation.t, what, resume=True)
        operation.clean_up(what)


@check(b.Expand, target=Target.BACKEND)
def nothing_is_left_of_a_volume_that_is_deleted_after_a_crashed_expansion(t: CheckContext) -> None:
    _expect_nothing_left_by(ExpandVolume(t))


@check(needs=("devices",), data=True, target=Target.BACKEND)
def nothing_is_left_of_a_volume_that_is_deleted_after_a_crashed_format_note(t: CheckContext) -> None:
    for note in (NoteFormatting(t), NoteFormatted(t)):
        _expect_nothing_left_by(note)
