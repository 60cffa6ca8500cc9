"""Backends that modify wrongly, and the checks that find it."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import msgspec
import pytest
from csi_multi_testing.checks import modify
from csi_multi_testing.memory import MemoryBackend

from csi_multi.contract import Doc, FailedPrecondition, Keys, ModifyRequest, Schema


class Replacing(MemoryBackend):
    """Makes the volume anew with other parameters, and empty."""

    def modify_volume(self, request: ModifyRequest) -> None:
        super().modify_volume(request)
        self.storage.data.pop(request.handle, None)


class Restamping(MemoryBackend):
    """Takes the new parameters into the stamp."""

    def modify_volume(self, request: ModifyRequest) -> None:
        super().modify_volume(request)
        found = self.storage.volumes[request.handle]
        self.storage.volumes[request.handle] = replace(found, stamp=replace(found.stamp, digest="modified"))


class Once(MemoryBackend):
    """Refuses what is there already, as its storage does."""

    def modify_volume(self, request: ModifyRequest) -> None:
        if self.storage.iops.get(request.handle) == request.mutable.iops:
            raise FailedPrecondition("the volume is being modified to that already")
        super().modify_volume(request)


class Idle(MemoryBackend):
    """Says yes, and means to do it some day."""

    def modify_volume(self, request: ModifyRequest) -> None:
        """Do nothing."""


class Ghostly(MemoryBackend):
    """Modifies what is not there."""

    def modify_volume(self, request: ModifyRequest) -> None:
        self.storage.put(self.storage.iops, request.handle, request.mutable.iops)


class Anything(Schema, frozen=True):
    iops: Annotated[int, Doc("operations per second")] | None = None
    rest: Annotated[dict[str, str], Keys(".*", "whatever else")] = msgspec.field(default_factory=dict)


class Accepting(MemoryBackend):
    """Takes any parameter and ignores unknown ones."""

    MutableParameters = Anything  # type: ignore[assignment]


class Slow(Schema, frozen=True):
    iops: Annotated[int, Doc("operations per second")] = 100


class Full(Schema, frozen=True):
    iops: Annotated[int, Doc("operations per second")]


class Resetting(MemoryBackend):
    MutableParameters = Slow  # type: ignore[assignment]


class Demanding(MemoryBackend):
    MutableParameters = Full  # type: ignore[assignment]


class Rigid(MemoryBackend):
    MutableParameters = Schema  # type: ignore[assignment]


BROKEN = [
    (modify.a_modified_volume_keeps_its_size_stamp_and_data, Replacing, "after modify_volume: the first block differs"),
    (modify.a_modified_volume_keeps_its_size_stamp_and_data, Restamping, "get_volume after modify_volume"),
    (modify.a_modified_volume_keeps_its_size_stamp_and_data, Once, "is being modified to that already"),
    (modify.a_modification_can_be_repeated_after_a_restart, Once, "is being modified to that already"),
    (modify.a_modification_reaches_the_storage, Idle, "made no call through the boundary"),
    (modify.a_deleted_volume_cannot_be_modified, Ghostly, "succeeded, the contract requires NotFound"),
    (modify.a_modification_with_an_unknown_parameter_changes_nothing, Accepting, "an unknown parameter: succeeded"),
    (modify.a_mutable_parameter_has_no_default_of_its_own, Resetting, "has the default 100"),
    (modify.a_mutable_parameter_has_no_default_of_its_own, Demanding, "is required"),
    (modify.a_mutable_parameter_has_no_default_of_its_own, Rigid, "has no field"),
]


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)
