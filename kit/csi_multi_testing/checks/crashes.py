"""A process may die at any call: the same request again gets what it asks for, once, and nothing leaks."""

from __future__ import annotations

from csi_multi.contract import AlreadyExists
from csi_multi.contract import backend as b

from ..check import On, check
from ..context import CheckContext
from ..disturbance import Disturbance, reborn
from ..fault_injection import Fault
from ..operations.base import Operation, firmly
from ..operations.changing import Attach, DeleteGroup, DeleteSnapshot, DeleteVolume, Detach, ExpandVolume, ModifyVolume
from ..operations.making import Clone, Create, Groups, Making, Restore, Snapshots


def recovers(operation: Operation) -> None:
    """Die at every call; the next process gets the same request, once after resume() and once at once."""
    for resume in (True, False):
        deaths = Disturbance(operation, Fault.DEATH)
        for call in deaths:
            deaths.strike(call)
            what = f"{deaths.where}, repeated {'after resume' if resume else 'at once'}"
            reborn(operation.t, what, resume=resume)
            operation.survived(what)
            operation.prove(firmly(operation.act, what), what)
            if isinstance(operation, Making):
                with operation.t.refused(AlreadyExists, what=f"{what}; then another request under the name"):
                    operation.other()
            operation.finish(what)


@check(on=On.BACKEND)
def a_creation_completes_once_after_a_crash_at_any_call(t: CheckContext) -> None:
    recovers(Create(t))


@check(b.Snapshots, on=On.BACKEND)
def a_restore_completes_once_after_a_crash_at_any_call(t: CheckContext) -> None:
    recovers(Restore(t))


@check(b.Clone, on=On.BACKEND)
def a_clone_completes_once_after_a_crash_at_any_call(t: CheckContext) -> None:
    recovers(Clone(t))


@check(b.Snapshots, on=On.BACKEND)
def a_snapshot_completes_once_after_a_crash_at_any_call(t: CheckContext) -> None:
    recovers(Snapshots(t))


@check(b.GroupSnapshots, on=On.BACKEND)
def a_group_snapshot_completes_once_after_a_crash_at_any_call(t: CheckContext) -> None:
    recovers(Groups(t))


@check(on=On.BACKEND)
def a_volume_deletion_completes_after_a_crash_at_any_call(t: CheckContext) -> None:
    recovers(DeleteVolume(t))


@check(b.Snapshots, on=On.BACKEND)
def a_snapshot_deletion_completes_after_a_crash_at_any_call(t: CheckContext) -> None:
    recovers(DeleteSnapshot(t))


@check(b.GroupSnapshots, on=On.BACKEND)
def a_group_deletion_completes_after_a_crash_at_any_call(t: CheckContext) -> None:
    recovers(DeleteGroup(t))


@check(b.Expand, on=On.BACKEND)
def an_expansion_completes_after_a_crash_at_any_call(t: CheckContext) -> None:
    recovers(ExpandVolume(t))


@check(b.Modify, needs=("other_mutable",), on=On.BACKEND)
def a_modification_completes_after_a_crash_at_any_call(t: CheckContext) -> None:
    recovers(ModifyVolume(t))


@check(b.Attach, needs=("nodes",), on=On.BACKEND)
def an_attachment_completes_after_a_crash_at_any_call(t: CheckContext) -> None:
    recovers(Attach(t))


@check(b.Attach, needs=("nodes",), on=On.BACKEND)
def a_detachment_completes_after_a_crash_at_any_call(t: CheckContext) -> None:
    recovers(Detach(t))
