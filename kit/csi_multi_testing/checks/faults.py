"""A call to the storage may fail, or not be answered: what was begun is not forgotten, and nothing untrue is said.

Busy, Unavailable and Timeout make the orchestrator ask again. Every other class is final: it forgets the
request, and whatever is half-made stays for ever.
"""

from __future__ import annotations

from csi_multi.contract import (
    AlreadyExists,
    InvalidArgument,
    InvalidToken,
    NotFound,
    OutOfRange,
    StorageError,
    Unsupported,
)
from csi_multi.contract import backend as b
from csi_multi.core.idempotent import UNSETTLED

from ..assertions import expect
from ..check import On, check
from ..context import CheckContext
from ..disturbance import Disturbance
from ..fault_injection import Fault
from ..operations.base import Operation, described, firmly
from ..operations.changing import Attach, DeleteGroup, DeleteSnapshot, DeleteVolume, Detach, ExpandVolume, ModifyVolume
from ..operations.device import CloseDevice, Formatted, Formatting, OpenDevice, RefreshDevice
from ..operations.making import Clone, Create, Groups, Restore, Snapshots

KINDS = ((Fault.ERROR, False), (Fault.ERROR, True), (Fault.TIMEOUT, False), (Fault.LATE_TIMEOUT, False))
UNTRUE = (AlreadyExists, InvalidArgument, InvalidToken, NotFound, OutOfRange, Unsupported)  # of these requests
ASK_AGAIN = "Busy, Unavailable or Timeout"


def is_not_forgotten(operation: Operation) -> None:
    """Let every call fail in every way; then the same request succeeds, and nothing is left after a deletion."""
    for fault, lasting in KINDS:
        faults = Disturbance(operation, fault, lasting=lasting)
        for call in faults:
            answer, error = faults.strike(call)
            if error is None:
                operation.prove(answer, f"{faults.where}, but that succeeded all the same")
            else:
                _judge(operation, error, faults.where)
            what = f"{faults.where}, repeated"
            operation.prove(firmly(operation.act, what), what)
            operation.finish(what)


def _judge(operation: Operation, error: Exception, where: str) -> None:
    """Demand an error that is true, and that keeps the orchestrator asking while anything is half-done."""
    told = f"{where}: raised {described(error)}"
    expect(isinstance(error, StorageError), f"{told}; the rule wants {ASK_AGAIN}")
    expect(not isinstance(error, UNTRUE), f"{told}, which is not true; the rule wants {ASK_AGAIN}")
    if not isinstance(error, UNSETTLED):
        text = f"{told}, which is final, though something is half-done; the rule wants {ASK_AGAIN}"
        expect(operation.untouched(), text)


@check(on=On.BACKEND)
def a_creation_can_be_retried_after_any_call_fails(t: CheckContext) -> None:
    is_not_forgotten(Create(t))


@check(b.Snapshots, on=On.BACKEND)
def a_restore_can_be_retried_after_any_call_fails(t: CheckContext) -> None:
    is_not_forgotten(Restore(t))


@check(b.Clone, on=On.BACKEND)
def a_clone_can_be_retried_after_any_call_fails(t: CheckContext) -> None:
    is_not_forgotten(Clone(t))


@check(b.Snapshots, on=On.BACKEND)
def a_snapshot_can_be_retried_after_any_call_fails(t: CheckContext) -> None:
    is_not_forgotten(Snapshots(t))


@check(b.GroupSnapshots, on=On.BACKEND)
def a_group_snapshot_can_be_retried_after_any_call_fails(t: CheckContext) -> None:
    is_not_forgotten(Groups(t))


@check(on=On.BACKEND)
def a_volume_deletion_can_be_retried_after_any_call_fails(t: CheckContext) -> None:
    is_not_forgotten(DeleteVolume(t))


@check(b.Snapshots, on=On.BACKEND)
def a_snapshot_deletion_can_be_retried_after_any_call_fails(t: CheckContext) -> None:
    is_not_forgotten(DeleteSnapshot(t))


@check(b.GroupSnapshots, on=On.BACKEND)
def a_group_deletion_can_be_retried_after_any_call_fails(t: CheckContext) -> None:
    is_not_forgotten(DeleteGroup(t))


@check(b.Expand, on=On.BACKEND)
def an_expansion_can_be_retried_after_any_call_fails(t: CheckContext) -> None:
    is_not_forgotten(ExpandVolume(t))


@check(b.Modify, needs=("other_mutable",), on=On.BACKEND)
def a_modification_can_be_retried_after_any_call_fails(t: CheckContext) -> None:
    is_not_forgotten(ModifyVolume(t))


@check(b.Attach, needs=("nodes",), on=On.BACKEND)
def an_attachment_can_be_retried_after_any_call_fails(t: CheckContext) -> None:
    is_not_forgotten(Attach(t))


@check(b.Attach, needs=("nodes",), on=On.BACKEND)
def a_detachment_can_be_retried_after_any_call_fails(t: CheckContext) -> None:
    is_not_forgotten(Detach(t))


@check(needs=("devices",), data=True, on=On.BACKEND)
def opening_a_device_can_be_retried_after_any_call_fails(t: CheckContext) -> None:
    is_not_forgotten(OpenDevice(t))


@check(needs=("devices",), data=True, on=On.BACKEND)
def closing_a_device_can_be_retried_after_any_call_fails(t: CheckContext) -> None:
    is_not_forgotten(CloseDevice(t))


@check(b.Expand, needs=("devices",), data=True, on=On.BACKEND)
def refreshing_a_device_can_be_retried_after_any_call_fails(t: CheckContext) -> None:
    is_not_forgotten(RefreshDevice(t))


@check(needs=("devices",), data=True, on=On.BACKEND)
def the_formatting_note_can_be_retried_after_any_call_fails(t: CheckContext) -> None:
    is_not_forgotten(Formatting(t))


@check(needs=("devices",), data=True, on=On.BACKEND)
def the_formatted_note_can_be_retried_after_any_call_fails(t: CheckContext) -> None:
    is_not_forgotten(Formatted(t))
