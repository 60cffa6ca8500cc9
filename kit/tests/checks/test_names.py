"""Backends that are careless with names, and the checks that find it."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import replace
from typing import Any

import pytest
from csi_multi_testing.check import CHECKS, CheckState
from csi_multi_testing.checks import names
from csi_multi_testing.memory import MemoryBackend

from csi_multi.contract import (
    GroupSnapshot,
    GroupSnapshotRequest,
    InvalidArgument,
    NotFound,
    Snapshot,
    SnapshotRequest,
    Strings,
    Volume,
    leaf,
)

from .whole_files import WholeFiles, over_whole_files


class Restricted(MemoryBackend):
    """Takes only names that the storage takes, too."""

    forbidden = "/"

    def leaf(self, name: str) -> str:
        if re.search(self.forbidden, name):
            raise InvalidArgument(f"{name!r} cannot be the name of a volume")
        return leaf(name)


class Plain(Restricted):
    forbidden = "[^ -~\\s]"


class Short(Restricted):
    forbidden = ".{128}"


class Dotted(Restricted):
    forbidden = "^\\.+$"


class Lines(MemoryBackend):
    """Keeps names in a file of lines."""

    def find_volume(self, name: str) -> Volume:
        if "\n" in name:
            raise InvalidArgument(f"{name!r} is not a line")
        return super().find_volume(name)


class Lower(MemoryBackend):
    """Does not tell upper from lower case."""

    def leaf(self, name: str) -> str:
        return leaf(name.lower())


class Slug(MemoryBackend):
    """Puts one character in the place of each that the storage does not take."""

    def leaf(self, name: str) -> str:
        return leaf(re.sub("[/_]", "-", name))


class Stripping(MemoryBackend):
    def leaf(self, name: str) -> str:
        return leaf(name.strip())


class Composing(MemoryBackend):
    def leaf(self, name: str) -> str:
        return leaf(unicodedata.normalize("NFC", name))


class Cutting(MemoryBackend):
    """Cuts off what does not fit."""

    def leaf(self, name: str) -> str:
        return leaf(name[:127])


class Hashing(MemoryBackend):
    """Hashes the names that need it, and forgets that another may look like the hash."""

    def leaf(self, name: str) -> str:
        return name if re.fullmatch("[-a-z0-9]{1,43}", name) else leaf(name)


class Searching(MemoryBackend):
    """Finds by the beginning of the name when there is nothing with the whole of it."""

    def find_volume(self, name: str) -> Volume:
        try:
            return super().find_volume(name)
        except NotFound:
            near = [one for one in self.storage.volumes.values() if one.stamp.name.startswith(name)]
            if not near:
                raise
            return near[0]


class CutSlug(MemoryBackend):
    """Is careless with the names of snapshots only."""

    def create_snapshot(self, request: SnapshotRequest) -> Snapshot:
        if "\t" in request.name or "💾" in request.name:
            raise InvalidArgument(f"{request.name!r} cannot be the name of a snapshot")
        return super().create_snapshot(request)


class CutLower(MemoryBackend):
    def leaf(self, name: str) -> str:
        return leaf(name.lower() if len(name) < 40 else name)


class OneTable(MemoryBackend):
    """Takes the name of a volume for taken when a snapshot wants it."""

    def create_snapshot(self, request: SnapshotRequest) -> Snapshot:
        if self.leaf(request.name) in self.storage.volumes:
            raise InvalidArgument(f"{request.name!r} is a volume")
        return super().create_snapshot(request)


class Sweeping(MemoryBackend):
    """Deletes whatever has the name."""

    def delete_snapshot(self, handle: str, secrets: Strings) -> None:
        super().delete_snapshot(handle, secrets)
        self.storage.drop(self.storage.volumes, handle)


class OneNamespace(MemoryBackend):
    """The members of a group have handles that a snapshot can have as well."""

    def create_group_snapshot(self, request: GroupSnapshotRequest) -> GroupSnapshot:
        made = super().create_group_snapshot(request)
        members = []
        for number, member in enumerate(made.snapshots):
            members.append(replace(member, handle=f"{made.handle}-{number}"))
            self.storage.data[f"@{members[-1].handle}"] = self.storage.data.pop(f"@{member.handle}")
            del self.storage.snapshots[member.handle]
            self.storage.snapshots[members[-1].handle] = members[-1]
        self.storage.groups[made.handle] = replace(made, snapshots=tuple(members))
        return self.storage.groups[made.handle]


BROKEN = [
    (
        names.a_group_takes_no_snapshot_that_has_the_name_of_a_member,
        OneNamespace,
        "the number of handles of snapshots, of a group and beside it: found 3, the contract requires 5",
    ),
    (
        names.a_group_takes_no_snapshot_that_has_the_name_of_a_member,
        over_whole_files(WholeFiles),
        "the number of handles of snapshots, of a group and beside it",
    ),
    (names.any_name_that_csi_allows_works_for_a_volume, Restricted, "//b/': raised InvalidArgument"),
    (names.any_name_that_csi_allows_works_for_a_volume, Plain, "💾n': raised InvalidArgument"),
    (names.any_name_that_csi_allows_works_for_a_volume, Short, "nnn': raised InvalidArgument"),
    (names.any_name_that_csi_allows_works_for_a_volume, Lines, "is not a line), the contract requires it to succeed"),
    (names.names_of_dots_only_work_for_a_volume, Dotted, "the name '.': raised InvalidArgument"),
    (names.nearly_equal_names_give_different_volumes, Lower, "gave the same handle"),
    (names.nearly_equal_names_give_different_volumes, Slug, "gave the same handle"),
    (names.nearly_equal_names_give_different_volumes, Stripping, "gave the same handle"),
    (names.nearly_equal_names_give_different_volumes, Composing, "gave the same handle"),
    (names.nearly_equal_names_give_different_volumes, Cutting, "gave the same handle"),
    (names.nearly_equal_names_give_different_volumes, Hashing, "gave the same handle"),
    (names.nearly_equal_names_give_different_volumes, Searching, "deleted, beside"),
    (names.the_handle_of_a_volume_can_be_the_name_of_another, Hashing, "gave the same handle"),
    (names.any_name_that_csi_allows_works_for_a_snapshot, CutSlug, "raised InvalidArgument"),
    (names.any_name_that_csi_allows_works_for_a_snapshot, CutLower, "gave the same handle"),
    (names.a_volume_and_a_snapshot_may_have_the_same_name, OneTable, "with the name of a volume: raised Invalid"),
    (names.a_volume_and_a_snapshot_may_have_the_same_name, Sweeping, "after delete_snapshot of the snapshot with its"),
    (names.nearly_equal_names_give_different_snapshots, Cutting, "create_snapshot: the names"),
    (names.nearly_equal_names_give_different_snapshots, Composing, "create_snapshot: the names"),
    (names.nearly_equal_names_give_different_snapshots, Slug, "create_snapshot: the names"),
    (names.nearly_equal_names_give_different_groups, Cutting, "create_group_snapshot: the names"),
    (names.nearly_equal_names_give_different_groups, Slug, "create_group_snapshot: the names"),
]


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)


def test_odd_names_are_those_that_csi_allows() -> None:
    for name in (*names.unusual("Kit-01234567-123"), *names.similar("Kit-01234567-123")):
        assert len(name.encode()) <= names.MAX_NAME_BYTES
        assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]", name)


class Counting(MemoryBackend):
    """Gives handles that say nothing about the name, as many storage systems do."""

    def leaf(self, name: str) -> str:
        number = self.storage.iops.setdefault(f"number of {name}", len(self.storage.iops))
        return f"vol-{number:08x}"


@pytest.mark.parametrize("name", [name for name, one in CHECKS.items() if one.group in ("names", "handles", "truth")])
def test_handles_may_be_numbers(judged: Any, name: str) -> None:
    outcome = judged(CHECKS[name].body, Counting)

    assert outcome.state is not CheckState.FAILED, outcome.text
