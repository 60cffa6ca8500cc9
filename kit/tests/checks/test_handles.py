"""Backends that are careless with handles, and the checks that find it."""

from __future__ import annotations

import posixpath
from typing import Any

import pytest
from csi_multi_testing import memory
from csi_multi_testing.checks import handles
from csi_multi_testing.memory import MemoryBackend

from csi_multi.contract import InvalidArgument, NotFound, Snapshot, Strings, Volume, leaf

from .test_creation import Strict


class Malformed(MemoryBackend):
    """Takes a handle of another shape for a mistake of the caller."""

    def get_volume(self, handle: str) -> Volume:
        if not handle or "/" in handle:
            raise InvalidArgument(f"{handle!r} is malformed")
        return super().get_volume(handle)


class Crashing(MemoryBackend):
    def get_volume(self, handle: str) -> Volume:
        assert handle.isascii()
        return super().get_volume(handle)


class Pathlike(MemoryBackend):
    """Looks for a file with the handle as its path."""

    def get_volume(self, handle: str) -> Volume:
        return super().get_volume(posixpath.normpath(handle))

    def delete_volume(self, handle: str, secrets: Strings) -> None:
        super().delete_volume(posixpath.normpath(handle), secrets)


class Deleting(MemoryBackend):
    """Is strict with handles where it reads, but not where it deletes."""

    def delete_volume(self, handle: str, secrets: Strings) -> None:
        super().delete_volume(handle.strip(), secrets)


class Insensitive(MemoryBackend):
    def get_volume(self, handle: str) -> Volume:
        return super().get_volume(handle.lower())


class CutMalformed(MemoryBackend):
    def get_snapshot(self, handle: str) -> Snapshot:
        if not handle:
            raise InvalidArgument("a handle is required")
        return super().get_snapshot(handle)


class CutStrict(MemoryBackend):
    def delete_snapshot(self, handle: str, secrets: Strings) -> None:
        try:
            super().delete_snapshot(handle, secrets)
        except NotFound:
            raise InvalidArgument(f"{handle!r} is not a snapshot") from None


class OneTable(MemoryBackend):
    """Has volumes and snapshots in one table, as LVM does."""

    def get_volume(self, handle: str) -> Volume:
        if handle in self.storage.snapshots:
            cut = self.storage.snapshots[handle]
            return Volume(handle=handle, size=cut.size, stamp=cut.stamp)
        return super().get_volume(handle)


class DeletingAny(MemoryBackend):
    """Deletes by name from one table."""

    def delete_volume(self, handle: str, secrets: Strings) -> None:
        if handle in self.storage.snapshots:
            return self.delete_snapshot(handle, secrets)
        return super().delete_volume(handle, secrets)


class DeletingBoth(MemoryBackend):
    def delete_snapshot(self, handle: str, secrets: Strings) -> None:
        if handle in self.storage.volumes:
            return self.delete_volume(handle, secrets)
        return super().delete_snapshot(handle, secrets)


class Verbose(MemoryBackend):
    """Makes the whole name a part of the handle."""

    def leaf(self, name: str) -> str:
        return name.replace("/", "|")


class Tabbed(MemoryBackend):
    def leaf(self, name: str) -> str:
        return f"a\t{leaf(name)}"


class Cached(MemoryBackend):
    """Knows in memory only which volumes are its own."""

    def __init__(self, *words: Any) -> None:
        super().__init__(*words)
        self.made: set[str] = set()

    def _put(self, *words: Any, **named: Any) -> Volume:
        made = super()._put(*words, **named)
        self.made.add(made.handle)
        return made

    def get_volume(self, handle: str) -> Volume:
        if handle not in self.made:
            raise NotFound(f"volume {handle!r} does not exist")
        return super().get_volume(handle)


class Session(MemoryBackend):
    """Has handles that are valid as long as the connection."""

    def __init__(self, *words: Any) -> None:
        super().__init__(*words)
        self.storage.iops["session"] = self.session = self.storage.iops.get("session", 0) + 1

    def leaf(self, name: str) -> str:
        return leaf(f"{name}-{self.session}")


class Local(memory.b.NodeLocal, MemoryBackend):
    """Puts its node's name before every handle."""

    def leaf(self, name: str) -> str:
        return f"{self.setting.node}/{leaf(name)}"

    def node_of(self, handle: str) -> str:
        node, slash, _ = handle.partition("/")
        if not slash or not node:
            raise NotFound(f"volume {handle!r} does not exist")
        return node


class Long(Local):
    """Leaves no room for a longer name of the node."""

    def leaf(self, name: str) -> str:
        return f"{super().leaf(name)}-{'0' * 30}"


class SnapshotsStripped(MemoryBackend):
    """Takes white space at the ends of a handle for a mistake."""

    def get_snapshot(self, handle: str) -> Snapshot:
        return super().get_snapshot(handle.strip())


class SnapshotsSwept(MemoryBackend):
    """Deletes what a handle begins with."""

    def delete_snapshot(self, handle: str, secrets: Strings) -> None:
        for key in [key for key in self.storage.snapshots if handle.startswith(key)]:
            super().delete_snapshot(key, secrets)


BROKEN = [
    (handles.an_unknown_handle_of_any_shape_is_not_found, Malformed, "get_volume(''), a handle that never existed"),
    (handles.an_unknown_handle_of_any_shape_is_not_found, Crashing, "raised AssertionError"),
    (handles.an_unknown_handle_of_any_shape_is_not_found, Strict, "delete_volume(''), a handle that never existed"),
    (handles.an_almost_correct_handle_is_not_found, Pathlike, "a handle that never existed: found"),
    (handles.an_almost_correct_handle_is_not_found, Deleting, "a handle that never existed: found"),
    (handles.an_almost_correct_handle_is_not_found, Insensitive, "a handle that never existed: found"),
    (
        handles.an_unknown_snapshot_handle_of_any_shape_is_not_found,
        CutMalformed,
        "get_snapshot(''), a handle that never",
    ),
    (
        handles.an_unknown_snapshot_handle_of_any_shape_is_not_found,
        CutStrict,
        "delete_snapshot('') of an unknown snapshot: raised",
    ),
    (
        handles.handles_of_volumes_and_snapshots_are_not_confused,
        OneTable,
        "with the handle of a snapshot: succeeded",
    ),
    (handles.handles_of_volumes_and_snapshots_are_not_confused, DeletingAny, "get_snapshot: raised NotFound"),
    (handles.handles_of_volumes_and_snapshots_are_not_confused, DeletingBoth, "of a volume: get_volume("),
    (handles.a_handle_fits_into_an_id_however_long_the_name, Verbose, "107 fit into an id"),
    (handles.a_handle_fits_into_an_id_however_long_the_name, Tabbed, "contains a control character"),
    (handles.a_handle_fits_into_an_id_however_long_the_name, Long, "123 bytes on a node with a name of 63"),
    (handles.a_snapshot_handle_fits_into_an_id, Verbose, "create_snapshot with the longest names: the handle"),
    (handles.the_handles_of_a_group_fit_into_ids, Verbose, "create_group_snapshot with the longest names: the handle"),
    (handles.a_handle_still_works_after_a_restart, Cached, "after a restart: get_volume("),
    (handles.a_handle_still_works_after_a_restart, Session, "repeated after a restart"),
    (handles.an_almost_correct_snapshot_handle_is_not_found, SnapshotsStripped, "a handle that never existed, beside"),
    (
        handles.an_almost_correct_snapshot_handle_is_not_found,
        SnapshotsSwept,
        "x'), a handle that never existed, then get_",
    ),
]


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)


@pytest.mark.parametrize("check", sorted({check for check, *_ in BROKEN}, key=lambda one: one.__name__))
def test_node_local_handles_pass(judged: Any, check: Any) -> None:
    outcome = judged(check, Local)

    assert outcome.state.value == "passed", outcome.text
