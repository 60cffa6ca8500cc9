"""A call to the storage may fail or time out: the request must be retryable, and its error must be true.

Busy, Unavailable and Timeout make the orchestrator repeat the request. Every other error is final: the orchestrator
forgets the request, and an incomplete resource remains for ever.
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
from csi_multi.contract.errors import NOT_FINAL

from ..assertions import expect
from ..check import check
from ..context import CheckContext
from ..fault_injection import Fault
from ..fault_sweep import FaultSweep
from ..marked_secrets import expect_no_secret
from ..operations.base import RETRYABLE_ERRORS, Operation, describe_error, retry
from ..operations.change import (
    AttachVolume,
    DeleteGroupSnapshot,
    DeleteSnapshot,
    DeleteVolume,
    DetachVolume,
    ExpandVolume,
    ModifyVolume,
)
from ..operations.create import CloneVolume, CreateGroupSnapshot, CreateSnapshot, CreateVolume, RestoreVolume
from ..operations.device import CloseDevice, NoteFormatted, NoteFormatting, OpenDevice, RefreshDevice
from ..protocol import Target

FAULTS = ((Fault.ERROR, False), (Fault.ERROR, True), (Fault.TIMEOUT, False), (Fault.LATE_TIMEOUT, False))
WRONG_ERRORS = (
    AlreadyExists,
    InvalidArgument,
    InvalidToken,
    NotFound,
    OutOfRange,
    Unsupported,
)  # none of them is true for these requests


def expect_retry_succeeds(operation: Operation) -> None:
    """Let every call fail in every way; then the same request must succeed, and nothing may remain after a deletion."""
    for fault, lasting in FAULTS:
        faults = FaultSweep(operation, fault, lasting=lasting)
        for call in faults:
            answer, error = faults.inject(call)
            if error is None:
                operation.verify(answer, f"{faults.where}, but the method succeeded")
            else:
                _expect_true_error(operation, error, faults.where)
                expect_no_secret(f"{error} {error!r}", operation.t.storage.secrets, f"{faults.where}: the error")
            what = f"{faults.where}, repeated"
            operation.verify(retry(operation.act, what), what)
            operation.clean_up(what)


def _expect_true_error(operation: Operation, error: Exception, where: str) -> None:
    """Require an error that is true, and that makes the orchestrator repeat an incomplete request."""
    message = f"{where}: raised {describe_error(error)}"
    rule = f"the contract requires {RETRYABLE_ERRORS}"
    expect(isinstance(error, StorageError), f"{message}; {rule}")
    expect(not isinstance(error, WRONG_ERRORS), f"{message}, which is not true; {rule}")
    if not isinstance(error, NOT_FINAL):
        text = f"{message}, which is final, although something is incomplete; {rule}"
        expect(operation.is_unchanged(), text)


@check(target=Target.BACKEND)
def a_creation_can_be_retried_after_any_call_fails(t: CheckContext) -> None:
    expect_retry_succeeds(CreateVolume(t))


@check(b.Snapshots, target=Target.BACKEND)
def a_restore_can_be_retried_after_any_call_fails(t: CheckContext) -> None:
    expect_retry_succeeds(RestoreVolume(t))


@check(b.Clone, target=Target.BACKEND)
def a_clone_can_be_retried_after_any_call_fails(t: CheckContext) -> None:
    expect_retry_succeeds(CloneVolume(t))


@check(b.Snapshots, target=Target.BACKEND)
def a_snapshot_can_be_retried_after_any_call_fails(t: CheckContext) -> None:
    expect_retry_succeeds(CreateSnapshot(t))


@check(b.GroupSnapshots, target=Target.BACKEND)
def a_group_snapshot_can_be_retried_after_any_call_fails(t: CheckContext) -> None:
    expect_retry_succeeds(CreateGroupSnapshot(t))


@check(target=Target.BACKEND)
def a_volume_deletion_can_be_retried_after_any_call_fails(t: CheckContext) -> None:
    expect_retry_succeeds(DeleteVolume(t))


@check(b.Snapshots, target=Target.BACKEND)
def a_snapshot_deletion_can_be_retried_after_any_call_fails(t: CheckContext) -> None:
    expect_retry_succeeds(DeleteSnapshot(t))


@check(b.GroupSnapshots, target=Target.BACKEND)
def a_group_deletion_can_be_retried_after_any_call_fails(t: CheckContext) -> None:
    expect_retry_succeeds(DeleteGroupSnapshot(t))


@check(b.Expand, target=Target.BACKEND)
def an_expansion_can_be_retried_after_any_call_fails(t: CheckContext) -> None:
    expect_retry_succeeds(ExpandVolume(t))


@check(b.Modify, needs=("other_mutable",), target=Target.BACKEND)
def a_modification_can_be_retried_after_any_call_fails(t: CheckContext) -> None:
    expect_retry_succeeds(ModifyVolume(t))


@check(b.Attach, needs=("nodes",), target=Target.BACKEND)
def an_attachment_can_be_retried_after_any_call_fails(t: CheckContext) -> None:
    expect_retry_succeeds(AttachVolume(t))


@check(b.Attach, needs=("nodes",), target=Target.BACKEND)
def a_detachment_can_be_retried_after_any_call_fails(t: CheckContext) -> None:
    expect_retry_succeeds(DetachVolume(t))


@check(needs=("devices",), data=True, target=Target.BACKEND)
def opening_a_device_can_be_retried_after_any_call_fails(t: CheckContext) -> None:
    expect_retry_succeeds(OpenDevice(t))


@check(needs=("devices",), data=True, target=Target.BACKEND)
def closing_a_device_can_be_retried_after_any_call_fails(t: CheckContext) -> None:
    expect_retry_succeeds(CloseDevice(t))


@check(b.Expand, needs=("devices",), data=True, target=Target.BACKEND)
def refreshing_a_device_can_be_retried_after_any_call_fails(t: CheckContext) -> None:
    expect_retry_succeeds(RefreshDevice(t))


@check(needs=("devices",), data=True, target=Target.BACKEND)
def the_formatting_note_can_be_retried_after_any_call_fails(t: CheckContext) -> None:
    expect_retry_succeeds(NoteFormatting(t))


@check(needs=("devices",), data=True, target=Target.BACKEND)
def the_formatted_note_can_be_retried_after_any_call_fails(t: CheckContext) -> None:
    expect_retry_succeeds(NoteFormatted(t))
