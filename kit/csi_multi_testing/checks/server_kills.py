"""kill -9 of the storage's server (Storage.server) at each change to its disk: the repeated request is served once.

Unlike the driver it may die between any two system calls, and nobody repeats what it began but itself, at its start.
"""

from __future__ import annotations

from csi_multi.contract import backend as b

from ..check import check
from ..context import CheckContext
from ..operations.change import (
    AttachVolume,
    DeleteGroupSnapshot,
    DeleteSnapshot,
    DeleteVolume,
    DetachVolume,
    ExpandToTheEnd,
    ModifyVolume,
)
from ..operations.create import CloneVolume, CreateGroupSnapshot, CreateSnapshot, CreateVolume, RestoreVolume
from ..operations.importing import ImportVolume, ReleaseVolume, imports
from ..protocol import Target
from ..server_kills import expect_survival


@check(needs=("server",), target=Target.BACKEND)
def a_creation_survives_a_kill_of_the_server_at_any_change(t: CheckContext) -> None:
    expect_survival(CreateVolume(t))


@check(b.Snapshots, needs=("server",), target=Target.BACKEND)
def a_restore_survives_a_kill_of_the_server_at_any_change(t: CheckContext) -> None:
    expect_survival(RestoreVolume(t))


@check(b.Clone, needs=("server",), target=Target.BACKEND)
def a_clone_survives_a_kill_of_the_server_at_any_change(t: CheckContext) -> None:
    expect_survival(CloneVolume(t))


@check(b.Snapshots, needs=("server",), target=Target.BACKEND)
def a_snapshot_survives_a_kill_of_the_server_at_any_change(t: CheckContext) -> None:
    expect_survival(CreateSnapshot(t))


@check(b.GroupSnapshots, needs=("server",), target=Target.BACKEND)
def a_group_snapshot_survives_a_kill_of_the_server_at_any_change(t: CheckContext) -> None:
    expect_survival(CreateGroupSnapshot(t))


@check(needs=("server",), target=Target.BACKEND)
def a_volume_deletion_survives_a_kill_of_the_server_at_any_change(t: CheckContext) -> None:
    expect_survival(DeleteVolume(t))


@check(b.Snapshots, needs=("server",), target=Target.BACKEND)
def a_snapshot_deletion_survives_a_kill_of_the_server_at_any_change(t: CheckContext) -> None:
    expect_survival(DeleteSnapshot(t))


@check(b.GroupSnapshots, needs=("server",), target=Target.BACKEND)
def a_group_deletion_survives_a_kill_of_the_server_at_any_change(t: CheckContext) -> None:
    expect_survival(DeleteGroupSnapshot(t))


@check(b.Expand, needs=("server",), target=Target.BACKEND)
def an_expansion_survives_a_kill_of_the_server_at_any_change(t: CheckContext) -> None:
    expect_survival(ExpandToTheEnd(t))


@check(b.Modify, needs=("server", "other_mutable"), target=Target.BACKEND)
def a_modification_survives_a_kill_of_the_server_at_any_change(t: CheckContext) -> None:
    expect_survival(ModifyVolume(t))


@check(b.Attach, needs=("server", "nodes"), target=Target.BACKEND)
def an_attachment_survives_a_kill_of_the_server_at_any_change(t: CheckContext) -> None:
    """And so does its end."""
    expect_survival(AttachVolume(t))
    expect_survival(DetachVolume(t))


@check(b.Import, needs=("server", "importable"), target=Target.BACKEND)
def an_import_survives_a_kill_of_the_server_at_any_change(t: CheckContext) -> None:
    """And so does its end."""
    with imports(t) as all_imports:
        expect_survival(ImportVolume(all_imports), keeps_space=True)
        expect_survival(ReleaseVolume(all_imports), keeps_space=True)
