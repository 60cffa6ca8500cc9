"""A process may die at any call: the repeated request is served once, and nothing leaks."""

from __future__ import annotations

from csi_multi.contract import AlreadyExists
from csi_multi.contract import backend as b

from ..check import check
from ..context import CheckContext
from ..fault_injection import Fault
from ..fault_sweep import FaultSweep, restart_process
from ..operations.base import Operation, retry
from ..operations.change import (
    AttachVolume,
    DeleteGroupSnapshot,
    DeleteSnapshot,
    DeleteVolume,
    DetachVolume,
    ExpandVolume,
    ModifyVolume,
)
from ..operations.create import (
    CloneVolume,
    CreateGroupSnapshot,
    CreateOperation,
    CreateSnapshot,
    CreateVolume,
    RestoreVolume,
)
from ..protocol import Target


def expect_completed(deaths: FaultSweep, call: int, *, resume: bool) -> str:
    """Let the process die at a call, and require that the next process completes the request; return what was done."""
    operation = deaths.operation
    deaths.inject(call)
    what = f"{deaths.where}, repeated {'after resume' if resume else 'without resume'}"
    restart_process(operation.t, what, resume=resume)
    operation.verify_survival(what)
    operation.verify(retry(operation.act, what), what)
    return what


def expect_recovery(operation: Operation) -> None:
    """Let the process die at every call; the next process gets the same request, with and without resume() before."""
    for resume in (True, False):
        deaths = FaultSweep(operation, Fault.DEATH)
        for call in deaths:
            what = expect_completed(deaths, call, resume=resume)
            if isinstance(operation, CreateOperation):
                with operation.t.refused(AlreadyExists, what=f"{what}; then another request under the name"):
                    operation.other()
            operation.clean_up(what)


@check(target=Target.BACKEND)
def a_creation_completes_once_after_a_crash_at_any_call(t: CheckContext) -> None:
    expect_recovery(CreateVolume(t))


@check(b.Snapshots, target=Target.BACKEND)
def a_restore_completes_once_after_a_crash_at_any_call(t: CheckContext) -> None:
    expect_recovery(RestoreVolume(t))


@check(b.Clone, target=Target.BACKEND)
def a_clone_completes_once_after_a_crash_at_any_call(t: CheckContext) -> None:
    expect_recovery(CloneVolume(t))


@check(b.Snapshots, target=Target.BACKEND)
def a_snapshot_completes_once_after_a_crash_at_any_call(t: CheckContext) -> None:
    expect_recovery(CreateSnapshot(t))


@check(b.GroupSnapshots, target=Target.BACKEND)
def a_group_snapshot_completes_once_after_a_crash_at_any_call(t: CheckContext) -> None:
    expect_recovery(CreateGroupSnapshot(t))


@check(target=Target.BACKEND)
def a_volume_deletion_completes_after_a_crash_at_any_call(t: CheckContext) -> None:
    expect_recovery(DeleteVolume(t))


@check(b.Snapshots, target=Target.BACKEND)
def a_snapshot_deletion_completes_after_a_crash_at_any_call(t: CheckContext) -> None:
    expect_recovery(DeleteSnapshot(t))


@check(b.GroupSnapshots, target=Target.BACKEND)
def a_group_deletion_completes_after_a_crash_at_any_call(t: CheckContext) -> None:
    expect_recovery(DeleteGroupSnapshot(t))


@check(b.Expand, target=Target.BACKEND)
def an_expansion_completes_after_a_crash_at_any_call(t: CheckContext) -> None:
    expect_recovery(ExpandVolume(t))


@check(b.Modify, needs=("other_mutable",), target=Target.BACKEND)
def a_modification_completes_after_a_crash_at_any_call(t: CheckContext) -> None:
    expect_recovery(ModifyVolume(t))


@check(b.Attach, needs=("nodes",), target=Target.BACKEND)
def an_attachment_completes_after_a_crash_at_any_call(t: CheckContext) -> None:
    expect_recovery(AttachVolume(t))


@check(b.Attach, needs=("nodes",), target=Target.BACKEND)
def a_detachment_completes_after_a_crash_at_any_call(t: CheckContext) -> None:
    expect_recovery(DetachVolume(t))
