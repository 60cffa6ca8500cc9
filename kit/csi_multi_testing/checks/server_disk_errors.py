"""The disk of the storage's server is full at a change, or fails at a sync: no final error while half is made.

strace lets system calls of the server fail (Storage.server). Then the disk is well again, and the request is repeated.
"""

from __future__ import annotations

from csi_multi.contract import ResourceExhausted
from csi_multi.contract import backend as b
from csi_multi.contract.errors import NOT_FINAL

from ..assertions import expect
from ..check import check
from ..context import CheckContext
from ..disk_changes import DiskChange, chosen, fail_at, needs_space, spread, traced
from ..operations.base import RETRYABLE_ERRORS, Operation, attempt, describe_error, retry
from ..operations.change import ExpandToTheEnd, ModifyVolume
from ..operations.create import CloneVolume, CreateGroupSnapshot, CreateSnapshot, CreateVolume, RestoreVolume
from ..protocol import Target
from ..server_kills import MOST, recorded, same_capacity, server_of, untouched


def expect_undone_or_completed(operation: Operation) -> None:
    """Let the disk fail at one change or sync after the other, each time for one request, and repeat it."""
    t = operation.t
    with untouched(t, "the disk of the server failed"), same_capacity(t):
        found = [one for one in recorded(operation) if needs_space(one)]
        syncs = [one for one in found if one.is_sync]
        moments = found if t.storage.complete else chosen(found, MOST) + spread(syncs, MOST)
        for change in moments:
            operation.begin()
            how = "failed" if change.is_sync else "was full"
            what = f"{operation.method}, when the disk of the server {how} at {change.text}"
            _act_with_an_error(operation, change, what)
            what = f"{what}, repeated when it did not"
            operation.verify(retry(operation.act, what), what)
            operation.clean_up(what)
        t.note(f"{operation.method}, the disk of its server failed at {len(moments)} of {len(found)} changes and syncs")


def _act_with_an_error(operation: Operation, change: DiskChange, what: str) -> None:
    with traced(server_of(operation.t).processes(), *fail_at(change)) as trace:
        _, error = attempt(operation.act)
        trace.end()
    if error is None or isinstance(error, NOT_FINAL):
        return
    text = f"{what}: raised {describe_error(error)}, the contract requires ResourceExhausted, {RETRYABLE_ERRORS}"
    expect(isinstance(error, ResourceExhausted), text)
    if not isinstance(operation, ModifyVolume):  # whose parameters the contract has no method to read
        text = f"{what}: raised {describe_error(error)}, which is final, but something was made or changed"
        expect(operation.is_unchanged(), text)


@check(needs=("server",), target=Target.BACKEND)
def a_creation_is_undone_or_completed_where_the_disk_of_the_server_fails(t: CheckContext) -> None:
    expect_undone_or_completed(CreateVolume(t))


@check(b.Snapshots, needs=("server",), target=Target.BACKEND)
def a_snapshot_and_its_restore_are_undone_or_completed_where_the_disk_of_the_server_fails(t: CheckContext) -> None:
    expect_undone_or_completed(CreateSnapshot(t))
    expect_undone_or_completed(RestoreVolume(t))


@check(b.Clone, needs=("server",), target=Target.BACKEND)
def a_clone_is_undone_or_completed_where_the_disk_of_the_server_fails(t: CheckContext) -> None:
    expect_undone_or_completed(CloneVolume(t))


@check(b.GroupSnapshots, needs=("server",), target=Target.BACKEND)
def a_group_snapshot_is_undone_or_completed_where_the_disk_of_the_server_fails(t: CheckContext) -> None:
    expect_undone_or_completed(CreateGroupSnapshot(t))


@check(b.Expand, needs=("server",), target=Target.BACKEND)
def an_expansion_is_undone_or_completed_where_the_disk_of_the_server_fails(t: CheckContext) -> None:
    expect_undone_or_completed(ExpandToTheEnd(t))


@check(b.Modify, needs=("server", "other_mutable"), target=Target.BACKEND)
def a_modification_is_undone_or_completed_where_the_disk_of_the_server_fails(t: CheckContext) -> None:
    expect_undone_or_completed(ModifyVolume(t))
