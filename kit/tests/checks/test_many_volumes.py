"""Backends that lose something when many requests arrive at once, and the checks that find it."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from csi_multi_testing import memory
from csi_multi_testing.check import CheckState, Outcome
from csi_multi_testing.checks import many_volumes
from csi_multi_testing.context import CheckContext, in_process
from csi_multi_testing.memory import MemoryBackend
from csi_multi_testing.operations import base
from csi_multi_testing.storage import MIB, Storage

from csi_multi.contract import Busy, Page, PageRequest, Strings, Unavailable, Volume, VolumeRequest


class LosesChanges(MemoryBackend):
    """Reads a table of all volumes, adds its own, and writes the table again."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        with self.storage.lock:
            before = set(self.storage.volumes)
        made = super().create_volume(request)
        time.sleep(0.001)
        with self.storage.lock:  # the fault is the old table, not a walk through one that changes
            for handle in set(self.storage.volumes) - before - {made.handle}:
                del self.storage.volumes[handle]
        return made


class SharesNumbers(MemoryBackend):
    """Counts its volumes without a lock, so that two get one number."""

    def leaf(self, name: str) -> str:
        numbers: dict[str, int] = vars(self.storage).setdefault("numbers", {})
        if name not in numbers:
            number = len(numbers) + 1
            time.sleep(0.001)
            numbers[name] = number
        return f"v{numbers[name]}"


class LeavesSome(MemoryBackend):
    """Keeps what it deletes while another one is deleted for later, and forgets it."""

    busy = threading.Lock()

    def delete_volume(self, handle: str, secrets: Strings) -> None:
        self.get_volume(handle)
        first = self.busy.acquire(blocking=False)
        time.sleep(0.001)
        super().delete_volume(handle, secrets)
        if first:
            self.busy.release()
        else:
            self.storage.data[f"later-{handle}"] = {}


class ListsUnlocked(MemoryBackend):
    """Walks through a table that others change."""

    def list_volumes(self, page: PageRequest) -> Page[Volume]:
        for _ in self.storage.volumes:
            time.sleep(0.0001)
        return super().list_volumes(page)


class RewritesTheTable(MemoryBackend):
    """Writes the table of volumes again for each deletion: it is empty for a moment."""

    writing = threading.Lock()

    def create_volume(self, request: VolumeRequest) -> Volume:
        with self.writing:
            return super().create_volume(request)

    def delete_volume(self, handle: str, secrets: Strings) -> None:
        with self.writing:
            super().delete_volume(handle, secrets)
            rows = self.storage.volumes
            self.storage.volumes = {}
            time.sleep(0.001)
            self.storage.volumes = rows


class ListsOnce(MemoryBackend):
    """Shows volumes that were made a moment ago twice: in their place, and as new ones."""

    def list_volumes(self, page: PageRequest) -> Page[Volume]:
        found = super().list_volumes(page)
        return replace(found, items=(*found.items, found.items[-1])) if len(found.items) > 20 else found


BROKEN = [
    (many_volumes.many_volumes_are_created_and_deleted_at_once, LosesChanges, "at once, then get_volume"),
    (many_volumes.many_volumes_are_created_and_deleted_at_once, SharesNumbers, "the number of different handles"),
    (many_volumes.many_volumes_are_created_and_deleted_at_once, LeavesSome, "at once: remaining: data later-"),
    (
        many_volumes.lists_are_complete_while_many_volumes_are_created_and_deleted,
        ListsUnlocked,
        "dictionary changed size",
    ),
    (many_volumes.lists_are_complete_while_many_volumes_are_created_and_deleted, RewritesTheTable, "are missing: kit-"),
    (many_volumes.lists_are_complete_while_many_volumes_are_created_and_deleted, ListsOnce, "twice in one list"),
]


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)


def test_a_storage_without_space_for_many_is_skipped(judged: Callable[..., Outcome]) -> None:
    def small() -> Storage:
        return memory.storage(capacity=10 * 16 * MIB)

    outcome = judged(many_volumes.many_volumes_are_created_and_deleted_at_once, small)

    assert outcome.state is CheckState.SKIPPED, outcome.text


class BusyOften(MemoryBackend):
    """Others hold the lock of the storage while it is asked for the first times. Correct."""

    pages: ClassVar[Counter[tuple[int, PageRequest]]] = Counter()  # by thread

    def create_volume(self, request: VolumeRequest) -> Volume:
        asked: Counter[str] = vars(self.storage).setdefault("asked", Counter())
        asked[request.name] += 1
        if len(asked) > 2 and asked[request.name] <= 12:  # the first ones are made alone
            raise Busy("the storage is locked by another request")
        return super().create_volume(request)

    def list_volumes(self, page: PageRequest) -> Page[Volume]:
        self.pages[threading.get_ident(), page] += 1
        if self.pages[threading.get_ident(), page] % 2:
            raise Unavailable("the storage is locked by another request")
        return super().list_volumes(page)


@pytest.mark.parametrize(
    "check",
    [
        many_volumes.many_volumes_are_created_and_deleted_at_once,
        many_volumes.lists_are_complete_while_many_volumes_are_created_and_deleted,
    ],
)
def test_a_storage_may_be_busy_for_a_while(
    judged: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch, check: Any
) -> None:
    monkeypatch.setattr(base, "PAUSES", (0.001,) * 10)

    outcome = judged(check, BusyOften)

    assert outcome.state is CheckState.PASSED, outcome.text


def test_changes_go_on_until_each_list_was_made() -> None:
    rounds: list[str] = []

    class Rounds(many_volumes.Burst):
        def create(self, t: CheckContext) -> list[Volume]:
            rounds.append("create")
            if len(rounds) == 4:
                for one in changes.listed.values():
                    one.set()
            return []

        def delete(self, t: CheckContext, volumes: list[Volume]) -> None:
            rounds.append("delete")

    changes = many_volumes.Changes(in_process(memory.storage()), Rounds(8, 60.0), [])
    changes.run()

    assert rounds == ["delete", "create"] * 2
    assert changes.finished.is_set()


class Slow(MemoryBackend):
    """Needs a moment for each volume. Correct."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        time.sleep(0.02)
        return super().create_volume(request)


def test_the_time_limit_follows_what_one_volume_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = many_volumes.suitable_burst(in_process(memory.storage()))
    monkeypatch.setattr(many_volumes, "TIME_LIMIT", 0.1)
    monkeypatch.setattr(many_volumes, "BURST_SECONDS", 0.1)
    slow = many_volumes.suitable_burst(in_process(memory.storage(Slow)))

    assert quick.seconds == 60
    assert slow.count == many_volumes.FEW_VOLUMES
    assert slow.seconds >= slow.count * 0.02 * 4
