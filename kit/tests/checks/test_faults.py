"""Backends that say something final, untrue or nothing at all when a call fails, and the checks that find it."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import pytest
from csi_multi_testing.checks import faults
from csi_multi_testing.memory import MemoryBackend
from csi_multi_testing.operations import base

from csi_multi.contract import (
    FailedPrecondition,
    Strings,
    Timeout,
    Unavailable,
    Volume,
    VolumeRequest,
    missing,
)

from .file_backend import LetsFilesThrough, OpensAndRegisters, RefreshesByRemoving, over_files

CHANGES = (
    *("create_volume", "restore_volume", "clone_volume", "delete_volume", "create_snapshot", "delete_snapshot"),
    *("create_group_snapshot", "delete_group_snapshot", "expand_volume", "modify_volume", "attach", "detach"),
)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "PAUSES", (0, 0))


def changing(failed: Callable[[], Any]) -> Callable[[type[MemoryBackend]], type[MemoryBackend]]:
    """Make a backend whose changes do this when the storage fails or does not answer."""

    def around(method: Any) -> Any:
        @wraps(method)
        def guarded(*args: Any) -> Any:
            try:
                return method(*args)
            except (Unavailable, Timeout):
                return failed()

        return guarded

    def decorate(kind: type[MemoryBackend]) -> type[MemoryBackend]:
        for name in CHANGES:
            setattr(kind, name, around(getattr(kind, name)))
        return kind

    return decorate


def final() -> None:
    raise FailedPrecondition("the storage did not do it")


def unknown() -> None:
    raise missing("volume", "in question")


def foreign() -> None:
    raise RuntimeError("exit status 5")


@changing(final)
class GivesUp(MemoryBackend):
    """Calls every failure final, whatever it leaves behind."""


class Drafts(MemoryBackend):
    """Makes the space of a volume before the volume."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        self.storage.put(self.storage.data, f"draft of {request.name}", {})
        made = super().create_volume(request)
        self.storage.drop(self.storage.data, f"draft of {request.name}")
        return made


@changing(final)
class DraftsAndGivesUp(Drafts):
    """Forgets the draft when the volume cannot be made."""


@changing(unknown)
class TakesSilenceForAbsence(MemoryBackend):
    """Turns a timeout into NotFound."""


@changing(foreign)
class LetsThrough(MemoryBackend):
    """Raises what its library raises."""


@changing(lambda: None)
class Swallows(MemoryBackend):
    """Logs a failure and goes on."""


class TellsItsSecrets(MemoryBackend):
    """Says with what it was asked, when a call fails."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        try:
            return super().create_volume(request)
        except Unavailable as error:
            raise Unavailable(f"{error}; asked with {dict(request.secrets)}") from None

    def delete_snapshot(self, handle: str, secrets: Strings) -> None:
        try:
            super().delete_snapshot(handle, secrets)
        except Timeout as error:
            raise Timeout(f"{error}; asked with {dict(secrets)}") from None


BROKEN = [
    (
        faults.a_creation_can_be_retried_after_any_call_fails,
        DraftsAndGivesUp,
        "which is final, although something is incomplete",
    ),
    (faults.a_creation_can_be_retried_after_any_call_fails, TakesSilenceForAbsence, "which is not true"),
    (faults.a_creation_can_be_retried_after_any_call_fails, LetsThrough, "not an error of csi_multi.contract"),
    (faults.a_restore_can_be_retried_after_any_call_fails, GivesUp, "which is final"),
    (faults.a_clone_can_be_retried_after_any_call_fails, GivesUp, "which is final"),
    (faults.a_snapshot_can_be_retried_after_any_call_fails, GivesUp, "which is final"),
    (faults.a_group_snapshot_can_be_retried_after_any_call_fails, GivesUp, "which is final"),
    (faults.a_volume_deletion_can_be_retried_after_any_call_fails, GivesUp, "which is final"),
    (faults.a_volume_deletion_can_be_retried_after_any_call_fails, TakesSilenceForAbsence, "but the method succeeded"),
    (faults.a_volume_deletion_can_be_retried_after_any_call_fails, Swallows, "but the method succeeded"),
    (faults.a_snapshot_deletion_can_be_retried_after_any_call_fails, Swallows, "but the method succeeded"),
    (faults.a_group_deletion_can_be_retried_after_any_call_fails, Swallows, "but the method succeeded"),
    (faults.an_expansion_can_be_retried_after_any_call_fails, TakesSilenceForAbsence, "which is not true"),
    (faults.a_modification_can_be_retried_after_any_call_fails, GivesUp, "which is final"),
    (faults.an_attachment_can_be_retried_after_any_call_fails, TakesSilenceForAbsence, "which is not true"),
    (faults.a_detachment_can_be_retried_after_any_call_fails, Swallows, "but the method succeeded"),
    (
        faults.opening_a_device_can_be_retried_after_any_call_fails,
        over_files(OpensAndRegisters),
        "not an error of csi_multi.contract",
    ),
    (
        faults.closing_a_device_can_be_retried_after_any_call_fails,
        over_files(OpensAndRegisters),
        "not an error of csi_multi.contract",
    ),
    (
        faults.refreshing_a_device_can_be_retried_after_any_call_fails,
        over_files(RefreshesByRemoving),
        "raised Unavailable",
    ),
    (
        faults.the_formatting_note_can_be_retried_after_any_call_fails,
        over_files(LetsFilesThrough),
        "not an error of csi_multi.contract",
    ),
    (
        faults.the_formatted_note_can_be_retried_after_any_call_fails,
        over_files(LetsFilesThrough),
        "not an error of csi_multi.contract",
    ),
    (faults.a_creation_can_be_retried_after_any_call_fails, TellsItsSecrets, "contains the value of secret"),
    (faults.a_snapshot_deletion_can_be_retried_after_any_call_fails, TellsItsSecrets, "contains the value of secret"),
]


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)
