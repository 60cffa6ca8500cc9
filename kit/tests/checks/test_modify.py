"""Backends that modify wrongly, and the checks that find it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Annotated, Any

import msgspec
import pytest
from csi_multi_testing import memory, waiting
from csi_multi_testing.check import CheckState
from csi_multi_testing.checks import modify
from csi_multi_testing.memory import MemoryBackend
from csi_multi_testing.operations import effects
from csi_multi_testing.storage import Storage

from csi_multi.contract import (
    RESET,
    AttachRequest,
    Doc,
    FailedPrecondition,
    InvalidArgument,
    Keys,
    ModifyRequest,
    Reset,
    Schema,
    Strings,
    Volume,
    VolumeRequest,
)


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


class Recording(MemoryBackend):
    """Stores the new parameters for the next attachment, and changes nothing for the one that is there."""

    def modify_volume(self, request: ModifyRequest) -> None:
        later = vars(self.storage).setdefault("later", {})
        if request.handle in self.storage.attached:
            later[request.handle] = request.mutable.iops
        else:
            super().modify_volume(request)

    def attach(self, request: AttachRequest) -> Strings:
        if (iops := vars(self.storage).setdefault("later", {}).pop(request.handle, None)) is not None:
            self.storage.put(self.storage.iops, request.handle, iops)
        return super().attach(request)


class Forgetting(MemoryBackend):
    """Attaches with the parameters of the creation."""

    def attach(self, request: AttachRequest) -> Strings:
        first = vars(self.storage).setdefault("first", {})
        iops = first.setdefault(request.handle, self.storage.iops.get(request.handle))
        self.storage.put(self.storage.iops, request.handle, iops)
        return super().attach(request)


class Shared(MemoryBackend):
    """Changes the pool that all volumes are in."""

    def modify_volume(self, request: ModifyRequest) -> None:
        super().modify_volume(request)
        for handle in self.storage.iops:
            self.storage.iops[handle] = request.mutable.iops


class Bare(MemoryBackend):
    """Takes parameters at a modification, and none at a creation."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        return super().create_volume(replace(request, mutable=None))


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


class Comparing(MemoryBackend):
    """Takes what is to be reset for a number."""

    def unmodifiable(self, handle: str, mutable: Any) -> str:
        return "too many" if mutable.iops and int(mutable.iops) > 100000 else ""


class ResetOnce(MemoryBackend):
    """Resets only what was set."""

    def modify_volume(self, request: ModifyRequest) -> None:
        if request.mutable.iops == RESET and request.handle not in self.storage.iops:
            raise FailedPrecondition("the volume has no iops")
        super().modify_volume(request)


class Keeping(MemoryBackend):
    """Takes a reset for a field that is not set."""

    def modify_volume(self, request: ModifyRequest) -> None:
        if request.mutable.iops != RESET:
            super().modify_volume(request)


def later() -> Storage:
    """Return a storage that has the old parameters, or none yet, in force for some reads. Correct."""
    storage, read = memory.storage(), Counter[str]()
    now = storage.effect
    assert now
    shown: dict[str, object] = {}

    def effect(handle: str) -> object:
        read[handle] += 1
        if read[handle] % 3 == 0:
            shown[handle] = now(handle)
        return shown.get(handle)

    return replace(storage, effect=effect)


class ResetLater(MemoryBackend):
    """Does not know it when a volume is made."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        if request.mutable and request.mutable.iops == RESET:
            raise InvalidArgument("'iops' must be a number")
        return super().create_volume(request)


class TwoSettings(Schema, frozen=True, kw_only=True):
    iops: Annotated[int, Doc("operations per second")] | Reset | None = None
    queue: Annotated[int, Doc("operations at once")] | Reset | None = None


class Queued(MemoryBackend):
    """Has two mutable parameters. Correct."""

    MutableParameters = TwoSettings  # type: ignore[assignment]

    @property
    def queues(self) -> dict[str, int]:
        queues: dict[str, int] = vars(self.storage).setdefault("queues", {})
        return queues

    def create_volume(self, request: VolumeRequest) -> Volume:
        made = super().create_volume(request)
        if request.mutable and isinstance(request.mutable.queue, int):
            self.queues[made.handle] = request.mutable.queue
        return made

    def modify_volume(self, request: ModifyRequest) -> None:
        super().modify_volume(request)
        if request.mutable.queue == RESET:
            self.queues.pop(request.handle, None)
        elif request.mutable.queue is not None:
            self.queues[request.handle] = request.mutable.queue


class Whole(Queued):
    """Sends all settings; what is not set means the default to its storage."""

    def modify_volume(self, request: ModifyRequest) -> None:
        unset = {name: RESET for name in ("iops", "queue") if getattr(request.mutable, name) is None}
        super().modify_volume(replace(request, mutable=msgspec.structs.replace(request.mutable, **unset)))


def queued(kind: type[Queued]) -> Storage:
    rows = memory.MemoryStorage()

    def effect(handle: str) -> object:
        return rows.iops.get(handle), vars(rows).get("queues", {}).get(handle)

    return memory.storage(kind, rows=lambda: rows, other_mutable={"iops": "200", "queue": "8"}, effect=effect)


class Inheriting(MemoryBackend):
    """A copy has what its source has."""

    def clone_volume(self, request: VolumeRequest) -> Volume:
        made = super().clone_volume(request)
        self.inherit(made, request.source.handle if request.source else "")
        return made

    def restore_volume(self, request: VolumeRequest) -> Volume:
        made = super().restore_volume(request)
        self.inherit(made, self.get_snapshot(request.source.handle).source if request.source else "")
        return made

    def inherit(self, made: Volume, origin: str) -> None:
        self.storage.iops[made.handle] = self.storage.iops[origin]


class OneSetting(Inheriting):
    """A copy and its source have one setting."""

    def inherit(self, made: Volume, origin: str) -> None:
        self.storage.iops[origin] = self.storage.iops[made.handle]


BROKEN = [
    (
        modify.a_clone_has_the_mutable_parameters_of_its_request,
        Inheriting,
        "clone_volume with other mutable parameters than the source has: Storage.effect",
    ),
    (
        modify.a_clone_has_the_mutable_parameters_of_its_request,
        OneSetting,
        "clone_volume with other mutable parameters, then its source: Storage.effect",
    ),
    (
        modify.a_restored_volume_has_the_mutable_parameters_of_its_request,
        Inheriting,
        "restore_volume with other mutable parameters than the source has: Storage.effect",
    ),
    (
        modify.a_modification_of_one_parameter_keeps_the_others,
        lambda: queued(Whole),
        "after modify_volume to {'iops': '100'}: found (100, None), the contract requires (100, 8)",
    ),
    (modify.a_mutable_parameter_can_be_reset_at_any_time, Comparing, "invalid literal for int"),
    (modify.a_mutable_parameter_can_be_reset_at_any_time, Keeping, "a volume that was made with {}: found 200"),
    (modify.a_mutable_parameter_can_be_reset_at_any_time, ResetOnce, "made without any: raised FailedPrecondition"),
    (modify.a_mutable_parameter_can_be_reset_at_any_time, ResetLater, "create_volume with {'iops': 'default'}: raised"),
    (modify.a_modified_volume_keeps_its_size_stamp_and_data, Replacing, "after modify_volume: the first block differs"),
    (modify.a_modified_volume_keeps_its_size_stamp_and_data, Restamping, "get_volume after modify_volume"),
    (modify.a_modified_volume_keeps_its_size_stamp_and_data, Once, "is being modified to that already"),
    (modify.a_modification_can_be_repeated_after_a_restart, Once, "is being modified to that already"),
    (modify.a_modification_reaches_the_storage, Idle, "made no call through the boundary"),
    (
        modify.a_modification_is_in_force_for_a_volume_that_is_in_use,
        Recording,
        "of a volume that is in use, where it was 100: found 100, the contract requires 200",
    ),
    (modify.a_modification_is_in_force_for_a_volume_that_is_in_use, Forgetting, "used again: found 100"),
    (modify.a_modification_is_in_force_for_a_volume_that_is_in_use, Shared, "of another volume: found 200"),
    (modify.a_modification_is_in_force_for_a_volume_that_is_in_use, Bare, "it must tell them apart"),
    (modify.a_deleted_volume_cannot_be_modified, Ghostly, "succeeded, the contract requires NotFound"),
    (modify.a_modification_with_an_unknown_parameter_changes_nothing, Accepting, "an unknown parameter: succeeded"),
    (modify.a_mutable_parameter_has_no_default_of_its_own, Resetting, "has the default 100"),
    (modify.a_mutable_parameter_has_no_default_of_its_own, Demanding, "is required"),
    (modify.a_mutable_parameter_has_no_default_of_its_own, Rigid, "has no field"),
]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modify, "EFFECT_SECONDS", 0.2)
    monkeypatch.setattr(effects, "LIMIT", 0.2)
    monkeypatch.setattr(waiting, "PAUSE", 0.001)


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)


def test_a_storage_that_changes_volumes_in_the_background_passes(judged: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modify, "EFFECT_SECONDS", 60)
    for check in (
        modify.a_modification_is_in_force_for_a_volume_that_is_in_use,
        modify.a_mutable_parameter_can_be_reset_at_any_time,
    ):
        outcome = judged(check, later)

        assert outcome.state is CheckState.PASSED, outcome.text


def test_a_storage_that_changes_one_of_two_parameters_passes(judged: Any) -> None:
    outcome = judged(modify.a_modification_of_one_parameter_keeps_the_others, lambda: queued(Queued))

    assert outcome.state is CheckState.PASSED, outcome.text
