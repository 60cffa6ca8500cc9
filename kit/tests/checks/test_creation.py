"""Backends that break the rules of creation and deletion, and the checks that find it."""

from __future__ import annotations

import hashlib
import uuid
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from csi_multi_testing.checks import creation
from csi_multi_testing.memory import MemoryBackend

from csi_multi.contract import (
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    Strings,
    Volume,
    VolumeRequest,
)


class Forgetful(MemoryBackend):
    """Makes a second volume for a name that is taken."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        try:
            return super().create_volume(request)
        except AlreadyExists:
            other = replace(request.stamp, name=f"{request.name}-{uuid.uuid4().hex[:4]}")
            return super().create_volume(replace(request, stamp=other))


class Hoarder(MemoryBackend):
    """Deletes nothing."""

    def delete_volume(self, handle: str, secrets: Strings) -> None:
        self.get_volume(handle)


class Hasty(MemoryBackend):
    """Answers with the size that was asked for, not the one that was made."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        return replace(super().create_volume(request), size=request.size.required - 1)


class Sized(MemoryBackend):
    """Makes the size a part of what it looks for under a name."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        name = f"{request.name}-{request.size.required}"
        return super().create_volume(replace(request, stamp=replace(request.stamp, name=name)))


class Tokens(MemoryBackend):
    """Asks the storage with a token made of the whole request, in the order in which it came."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        token = hashlib.sha256(repr(request.capabilities).encode()).hexdigest()[:8]
        name = f"{request.name}-{token}"
        return super().create_volume(replace(request, stamp=replace(request.stamp, name=name)))


class Reserving(MemoryBackend):
    """Gives no name away twice."""

    used: ClassVar[set[str]] = set()

    def create_volume(self, request: VolumeRequest) -> Volume:
        made = super().create_volume(request)
        if request.name in self.used:
            self.storage.drop(self.storage.volumes, made.handle)
            raise FailedPrecondition(f"the name {request.name!r} is reserved")
        self.used.add(request.name)
        return made


class Remembering(MemoryBackend):
    """Brings a deleted volume back when its name comes again."""

    deleted: ClassVar[dict[str, Volume]] = {}

    def delete_volume(self, handle: str, secrets: Strings) -> None:
        self.deleted[handle] = self.get_volume(handle)
        super().delete_volume(handle, secrets)

    def create_volume(self, request: VolumeRequest) -> Volume:
        made = super().create_volume(request)
        if made.handle in self.deleted:
            self.storage.put(self.storage.volumes, made.handle, self.deleted[made.handle])
        return self.get_volume(made.handle)


class Strict(MemoryBackend):
    """Takes an unknown handle for a mistake of the caller."""

    def delete_volume(self, handle: str, secrets: Strings) -> None:
        try:
            super().delete_volume(handle, secrets)
        except NotFound:
            raise InvalidArgument(f"{handle!r} is not a volume") from None


class Sourceless(MemoryBackend):
    """Does not note where the bytes of a copy came from."""

    def _put(self, request: VolumeRequest, default: int) -> Volume:
        made = super()._put(request, default)
        self.storage.volumes[made.handle] = replace(made, stamp=replace(made.stamp, source=None))
        return made


class Unsaid(Sourceless):
    """Does not even say it."""

    def _put(self, request: VolumeRequest, default: int) -> Volume:
        return self.get_volume(super()._put(request, default).handle)


BROKEN = [
    (creation.a_volume_can_be_created_found_and_deleted, Hoarder, "get_volume after delete_volume: succeeded"),
    (creation.a_volume_can_be_created_found_and_deleted, Hasty, "after create_volume: get_volume("),
    (creation.a_repeated_request_gets_the_same_volume, Forgetful, "create_volume, repeated"),
    (creation.a_repeated_request_may_have_a_wider_size_range, Sized, "create_volume, repeated with a smaller required"),
    (
        creation.a_repeated_request_may_list_its_parameters_in_another_order,
        Tokens,
        "repeated with each capability once",
    ),
    (creation.a_name_is_free_again_after_the_deletion, Reserving, "used before: raised FailedPrecondition"),
    (creation.a_name_is_free_again_after_the_deletion, Remembering, "used before: 16777217 bytes requested"),
    (creation.a_deletion_may_be_repeated, Strict, "delete_volume, repeated: raised InvalidArgument"),
    (
        creation.a_restored_volume_reports_its_source_snapshot,
        Unsaid,
        "content source in the answer to create_volume: found None",
    ),
    (creation.a_restored_volume_reports_its_source_snapshot, Sourceless, "a copy: get_volume("),
    (
        creation.a_cloned_volume_reports_its_source_volume,
        Unsaid,
        "content source in the answer to create_volume: found None",
    ),
]


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)
