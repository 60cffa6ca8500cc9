"""A creation crashed, and its source is deleted before the request is repeated: nothing of it may stay.

The error of the repeated request is final then. external-provisioner forgets the request, and as it never got a handle,
it never calls delete_volume: what an earlier try left would stay for ever.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

from csi_multi.contract import Snapshot, Volume
from csi_multi.contract import backend as b
from csi_multi.contract.errors import NOT_FINAL

from ..assertions import CheckFailed, expect
from ..check import check
from ..context import CheckContext
from ..fault_injection import Fault
from ..fault_sweep import FaultSweep, restart_process
from ..operations.base import RETRYABLE_ERRORS, describe_error, settle
from ..operations.create import (
    CloneVolume,
    CreateGroupSnapshot,
    CreateOperation,
    CreateSnapshot,
    CreateVolume,
    RestoreVolume,
    SnapshotSources,
    source_volume,
)
from ..protocol import Target

Source = Volume | Snapshot


class FromOwnSource(CreateOperation):
    """A creation from sources that are made for each run, and can be deleted."""

    @abstractmethod
    def originals(self) -> list[Source]:
        """Return the sources, in an order in which they can be deleted."""

    def deletion_of(self, source: Source) -> Callable[[], None]:
        client = self.t.client
        return partial(client.delete if isinstance(source, Volume) else client.delete_snapshot, source.handle)

    def remove(self) -> None:
        super().remove()
        for source in self.originals():
            self.deletion_of(source)()
            self.t.forget(source)


class RestoreFromOwnSource(FromOwnSource, RestoreVolume):
    def __init__(self, t: CheckContext) -> None:
        CreateVolume.__init__(self, t)

    def prepare(self) -> None:
        super().prepare()
        self.source_volume = source_volume(self.t)
        self.source = self.source_of(self.source_volume)

    def originals(self) -> list[Source]:
        return [self.source, self.source_volume]


class CloneFromOwnSource(RestoreFromOwnSource, CloneVolume):
    def originals(self) -> list[Source]:
        return [self.source_volume]


class SnapshotOfOwnVolume(FromOwnSource, CreateSnapshot):
    makes: tuple[Callable[[CheckContext], Volume], ...] = (source_volume,)

    def __init__(self, t: CheckContext) -> None:
        CreateOperation.__init__(self, t)

    def renew(self) -> None:
        """Do nothing: each run has volumes of its own."""

    def prepare(self) -> None:
        super().prepare()
        self.sources = SnapshotSources(self.t, *self.makes)

    def originals(self) -> list[Source]:
        return [*self.sources.volumes]


class GroupOfOwnVolumes(SnapshotOfOwnVolume, CreateGroupSnapshot):
    makes = (source_volume, CheckContext.volume)


def expect_nothing_stays(creation: FromOwnSource) -> None:
    """Let the process die at every call, delete the sources, repeat the request, and delete what there is.

    What was begun may keep its source for as long as it can be ended: then the request succeeds, and lets it go.
    """
    deaths = FaultSweep(creation, Fault.DEATH)
    for call in deaths:
        deaths.inject(call)
        restart_process(creation.t, deaths.where, resume=False)
        errors = [settle(creation.deletion_of(source))[1] for source in creation.originals()]
        refused = next((f", which raised {describe_error(error)}" for error in errors if error), "")
        what = f"{deaths.where}, then the deletion of its source{refused}, then the same request again"
        creation.made = expect_settled(creation, what, must_succeed=all(errors))
        creation.clean_up(what)


def expect_settled(creation: FromOwnSource, what: str, *, must_succeed: bool) -> Any:
    """Return the answer of the repeated request; None for a final error, after which nothing has the name."""
    answer, error, tries = settle(creation.act)
    if error is None:
        if not creation.t.no_data_reason():
            creation.verify_data(answer, what)
        return answer
    found = f"{what}: raised {describe_error(error)}"
    if isinstance(error, NOT_FINAL):
        raise CheckFailed(
            f"{found} each of {tries} times; a source that is gone does not come back: remove what the "
            f"earlier try left and raise NotFound, which is final, and not {RETRYABLE_ERRORS}"
        ) from error
    expect(not must_succeed, f"{found}; while nothing of its source was deleted, the contract requires it to succeed")
    expect(creation.is_missing(), f"{found}, but {creation.found_by} finds it")
    return None


@check(b.Snapshots, target=Target.BACKEND)
def nothing_stays_of_a_crashed_restore_whose_snapshot_was_deleted(t: CheckContext) -> None:
    expect_nothing_stays(RestoreFromOwnSource(t))


@check(b.Clone, target=Target.BACKEND)
def nothing_stays_of_a_crashed_clone_whose_source_was_deleted(t: CheckContext) -> None:
    expect_nothing_stays(CloneFromOwnSource(t))


@check(b.Snapshots, target=Target.BACKEND)
def nothing_stays_of_a_crashed_snapshot_whose_volume_was_deleted(t: CheckContext) -> None:
    expect_nothing_stays(SnapshotOfOwnVolume(t))


@check(b.GroupSnapshots, target=Target.BACKEND)
def nothing_stays_of_a_crashed_group_snapshot_whose_volumes_were_deleted(t: CheckContext) -> None:
    expect_nothing_stays(GroupOfOwnVolumes(t))
