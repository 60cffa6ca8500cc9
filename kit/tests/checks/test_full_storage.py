"""Backends that cannot go on when the storage is full, and the checks that find it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from csi_multi_testing import memory
from csi_multi_testing.check import CheckState, Outcome
from csi_multi_testing.checks import full_storage
from csi_multi_testing.memory import MemoryBackend
from csi_multi_testing.storage import MIB, Storage

from csi_multi.contract import (
    NO_SECRETS,
    CapacityReport,
    CapacityRequest,
    ExpandRequest,
    Expansion,
    FailedPrecondition,
    ResourceExhausted,
    Stamp,
    Strings,
    Unavailable,
    Volume,
    VolumeRequest,
)
from csi_multi.contract import backend as b

from .file_backend import FileBackend, over_files

ROOM = 512 * MIB
OTHER = Stamp(driver="d", cluster="c", name="theirs", digest="")


def small(kind: type[MemoryBackend], **given: Any) -> Callable[[], Storage]:
    """Return what makes a storage that volumes can fill."""

    def storage() -> Storage:
        return memory.storage(kind, capacity=ROOM, **given)

    storage.__name__ = kind.__name__
    return storage


class Noting(MemoryBackend):
    """Needs space for its notes, and takes what is missing for a reason to try elsewhere."""

    error: type[Exception] = ResourceExhausted

    def formatting(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        if not self._free():
            raise self.error("no space for the note")

    formatted = formatting


class Waiting(Noting):
    """Needs space for its notes, and says that it waits for some."""

    error = Unavailable


class Strict(MemoryBackend):
    """Refuses the first note once the second one is stored, as the contract has it."""

    def formatting(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        if handle in vars(self.storage).setdefault("used", set()):
            raise FailedPrecondition(f"volume {handle!r} is in use already")

    def formatted(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        vars(self.storage).setdefault("used", set()).add(handle)


class Lost(Waiting):
    """Stays unable after it was full once."""

    def _free(self) -> int:
        free = super()._free()
        full = vars(self.storage).setdefault("was_full", []) if self.storage.others else []
        full += [True] * (not free)
        return 0 if getattr(self.storage, "was_full", ()) else free


class Accepting(MemoryBackend):
    """Creates what it did not report."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        with suppress(ResourceExhausted):
            return super().create_volume(request)
        volume = Volume(handle=self.leaf(request.name), size=request.size.required, stamp=request.stamp)
        self.storage.put(self.storage.volumes, volume.handle, volume)
        return volume


class Littering(MemoryBackend):
    """Leaves what it began when there is no space."""

    def _put(self, request: VolumeRequest, default: int) -> Volume:
        try:
            return super()._put(request, default)
        except ResourceExhausted:
            self.storage.put(self.storage.data, self.leaf(request.name), {})
            raise


class Ahead(MemoryBackend):
    """Grows, and then looks whether there is space."""

    def expand_volume(self, request: ExpandRequest) -> Expansion:
        full, others = not self._free(), self.storage.others
        self.storage.others = -ROOM
        try:
            done = super().expand_volume(request)
        finally:
            self.storage.others = others
        if full:
            raise ResourceExhausted("no space for the growth")
        return done


class Trash(MemoryBackend):
    """Needs space to delete."""

    def delete_volume(self, handle: str, secrets: Strings) -> None:
        if not self._free():
            raise ResourceExhausted("no space for the trash")
        super().delete_volume(handle, secrets)


BROKEN = [
    (
        full_storage.the_volumes_of_a_full_storage_can_be_used,
        small(Noting),
        "formatting while the storage is full: raised ResourceExhausted (no space for the note)",
    ),
    (
        full_storage.the_volumes_of_a_full_storage_can_be_used,
        small(Waiting),
        "formatting while the storage is full: raised Unavailable (no space for the note)",
    ),
    (
        full_storage.a_full_storage_refuses_more_and_changes_nothing,
        small(Accepting),
        "create_volume while the storage is full: succeeded",
    ),
    (
        full_storage.a_full_storage_refuses_more_and_changes_nothing,
        small(Littering),
        "create_volume while the storage is full: refused, but the storage changed",
    ),
    (
        full_storage.a_full_storage_refuses_more_and_changes_nothing,
        small(Ahead),
        "expand_volume while the storage is full: refused, then the size of get_volume",
    ),
    (
        full_storage.the_volumes_of_a_full_storage_can_be_deleted,
        small(Trash),
        "delete_volume while the storage is full: raised ResourceExhausted",
    ),
    (
        full_storage.volumes_beside_others_that_filled_the_storage_can_be_used,
        small(Noting),
        "formatting while others have filled the storage: raised ResourceExhausted (no space for the note)",
    ),
    (
        full_storage.volumes_beside_others_that_filled_the_storage_can_be_used,
        small(Lost),
        "formatting while there is space again: raised Unavailable",
    ),
    (
        full_storage.a_storage_that_others_filled_refuses_more_and_changes_nothing,
        small(Littering),
        "create_volume while others have filled the storage: refused, but the storage changed",
    ),
    (
        full_storage.volumes_beside_others_that_filled_the_storage_can_be_deleted,
        small(Trash),
        "delete_volume while others have filled the storage: raised ResourceExhausted",
    ),
]


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)


@pytest.mark.parametrize("backend", [Waiting, Strict])
def test_a_note_may_wait_for_space_that_others_have_and_refuse_what_came_before_it(
    judged: Callable[..., Outcome], backend: type[MemoryBackend]
) -> None:
    outcome = judged(full_storage.volumes_beside_others_that_filled_the_storage_can_be_used, small(backend))

    assert outcome.state is CheckState.PASSED, outcome.text


class Measured(FileBackend, b.Capacity):
    def capacity(self, request: CapacityRequest) -> CapacityReport:
        return CapacityReport(available=1 << 30)


class Endless(MemoryBackend):
    """Promises the same space again and again."""

    def _free(self) -> int:
        return ROOM


@pytest.mark.parametrize(
    ("check", "backend", "words"),
    [
        (
            full_storage.volumes_beside_others_that_filled_the_storage_can_be_used,
            over_files(Measured),
            "and others may need them: give Storage.occupy",
        ),
        (full_storage.the_volumes_of_a_full_storage_can_be_used, small(Endless), "so the storage cannot be filled"),
        (full_storage.the_volumes_of_a_full_storage_can_be_used, MemoryBackend, "more than 64 times Storage.size"),
    ],
)
def test_a_storage_that_is_not_to_be_filled_is_skipped(
    judged: Callable[..., Outcome], check: Any, backend: Any, words: str
) -> None:
    outcome = judged(check, backend)

    assert outcome.state is CheckState.SKIPPED, outcome.text
    assert words in outcome.text


def test_a_storage_with_other_volumes_is_not_filled(judged: Callable[..., Outcome]) -> None:
    def used() -> Storage:
        storage = small(MemoryBackend)()
        backend: Any = storage.backend()
        backend.storage.volumes["theirs"] = Volume(handle="theirs", size=MIB, stamp=OTHER)
        return storage

    outcome = judged(full_storage.volumes_beside_others_that_filled_the_storage_can_be_deleted, used)

    assert outcome.state is CheckState.SKIPPED, outcome.text
    assert "there are other volumes on the storage" in outcome.text
