"""Backends that report a failed read as absent, and the checks that find it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from csi_multi_testing import memory
from csi_multi_testing.check import CheckState, Outcome
from csi_multi_testing.checks import failed_reads
from csi_multi_testing.fault_injection import Call
from csi_multi_testing.memory import MemoryBackend
from csi_multi_testing.operations import base
from csi_multi_testing.storage import Storage

from csi_multi.contract import (
    NO_SECRETS,
    Blank,
    CapacityReport,
    CapacityRequest,
    Device,
    HealthEntry,
    Page,
    PageRequest,
    Snapshot,
    Strings,
    Timeout,
    Unavailable,
    Volume,
    missing,
)

from .file_backend import OPEN, FileBackend, LetsFilesThrough, over_files


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "PAUSES", (0, 0))


class Blind(MemoryBackend):
    """Answers a failed look with what an empty storage would say."""

    def get_volume(self, handle: str) -> Volume:
        try:
            return super().get_volume(handle)
        except (Unavailable, Timeout):
            raise missing("volume", handle) from None

    def get_snapshot(self, handle: str) -> Snapshot:
        try:
            return super().get_snapshot(handle)
        except Unavailable:
            raise missing("snapshot", handle) from None

    def get_group_snapshot(self, handle: str) -> Any:
        try:
            return super().get_group_snapshot(handle)
        except Timeout:
            raise missing("group snapshot", handle) from None

    def list_volumes(self, page: PageRequest) -> Page[Volume]:
        try:
            return super().list_volumes(page)
        except Unavailable:
            return Page(items=())

    def list_snapshots(self, page: PageRequest, source: str | None = None) -> Page[Snapshot]:
        try:
            return super().list_snapshots(page, source)
        except Timeout:
            return Page(items=())

    def capacity(self, request: CapacityRequest) -> CapacityReport:
        try:
            return super().capacity(request)
        except Timeout:
            return CapacityReport(available=0)

    def volume_health(self, handle: str, secrets: Strings) -> tuple[HealthEntry, ...]:
        self.get_volume(handle)
        return ()


class FullDisk(MemoryBackend):
    """Takes a filesystem that cannot be asked for one without space."""

    def capacity(self, request: CapacityRequest) -> CapacityReport:
        try:
            return CapacityReport(available=os.statvfs("/").f_blocks)
        except OSError:
            return CapacityReport(available=0)


class Served(MemoryBackend):
    """Asks a server behind a socket, and takes a file that is missing for a volume that is missing."""

    def ask(self) -> None:
        """Fails as the connection does."""

    def get_volume(self, handle: str) -> Volume:
        try:
            self.ask()
        except FileNotFoundError:
            raise missing("volume", handle) from None
        except OSError as error:
            raise Unavailable(str(error)) from None
        return super().get_volume(handle)


def served() -> Storage:
    return memory.storage(Served, calls=(Call(owner=Served, name="ask", error=ConnectionRefusedError),))


class OpenAtLeast(FileBackend):
    """Finds a device also while the storage does not say whether it was used. Correct."""

    def find_device(self, handle: str, secrets: Strings = NO_SECRETS) -> Device | None:
        try:
            return super().find_device(handle)
        except Unavailable:
            return Device(path=self.root / OPEN / handle, number="0:0", proof={}, blank=Blank.NEVER)


BROKEN = [
    (
        failed_reads.a_failed_read_of_a_volume_is_not_reported_as_not_found,
        served,
        "fails because its socket is missing: raised NotFound",
    ),
    (failed_reads.a_failed_read_of_a_volume_is_not_reported_as_not_found, Blind, "raised NotFound"),
    (failed_reads.a_failed_read_of_a_snapshot_is_not_reported_as_not_found, Blind, "raised NotFound"),
    (failed_reads.a_failed_read_of_a_group_snapshot_is_not_reported_as_not_found, Blind, "raised NotFound"),
    (failed_reads.a_failed_read_never_shortens_the_list_of_volumes, Blind, "answered set()"),
    (failed_reads.a_failed_read_never_shortens_the_list_of_snapshots, Blind, "answered set()"),
    (failed_reads.a_failed_read_of_the_capacity_is_not_reported_as_zero, Blind, "answered CapacityReport(available=0"),
    (failed_reads.a_failed_read_of_the_capacity_is_not_reported_as_zero, FullDisk, "call 1 (statvfs) fails: answered"),
    (failed_reads.a_failed_read_of_health_is_not_reported_as_a_missing_volume, Blind, "raised NotFound"),
    (
        failed_reads.a_failed_search_for_a_device_is_not_reported_as_closed,
        over_files(LetsFilesThrough),
        "answered None",
    ),
    (failed_reads.check_reports_a_storage_that_fails_every_call, over_files(LetsFilesThrough), "fails: succeeded"),
]


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)


def test_a_device_whose_use_cannot_be_read_may_count_as_used(judged: Callable[..., Outcome]) -> None:
    outcome = judged(failed_reads.a_failed_search_for_a_device_is_not_reported_as_closed, over_files(OpenAtLeast))

    assert outcome.state is CheckState.PASSED, outcome.text
