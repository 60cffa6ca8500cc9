"""Backends whose dry runs are wrong, and the checks that find it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from csi_multi_testing.assertions import CheckFailed
from csi_multi_testing.check import CHECKS, CheckState, Outcome
from csi_multi_testing.checks import explain

from csi_multi.contract import DryRunReport, OutOfRange, Step, StorageError, Unpredictable, Volume, VolumeRequest

from .dry_runs import Explaining, Recording, explaining


class Acting(Explaining):
    """Forgets one call in its table of changes, and makes it."""

    def dry_run(self, report: DryRunReport) -> Explaining:
        dry = super().dry_run(report)
        real = self.storage
        change = dry.storage.put

        def put(rows: Any, key: str, row: Any) -> None:
            change(rows, key, row)
            if isinstance(row, Volume):
                real.data.setdefault(key, {})

        dry.storage.put = put  # type: ignore[method-assign]
        return dry


class Closing(Explaining):
    """Shares its connection with its dry runs, which close it."""

    def close(self) -> None:
        if isinstance(self.storage, Recording):
            self.storage.report.steps.clear()


class Rounding(Explaining):
    """Has a second description of what a creation does, which has become wrong."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        made = super().create_volume(request)
        return replace(made, size=made.size + 1) if isinstance(self.storage, Recording) else made


class Vague(Explaining):
    """Tells that something happens, and not to what."""

    def dry_run(self, report: DryRunReport) -> Explaining:
        dry = super().dry_run(report)
        storage: Any = dry.storage

        def record(rows: dict[str, Any], key: str, row: Any) -> None:
            report.record_change("put", "a row", why="writes a row")
            rows[key] = row

        storage.put = record
        return dry


class Silent(Explaining):
    """Leaves out why."""

    def dry_run(self, report: DryRunReport) -> Explaining:
        report.steps.append(Step(words=("put", "it"), why=""))
        return super().dry_run(report)


class SourceLess(Explaining):
    """Does not show from where a copy comes."""

    def dry_run(self, report: DryRunReport) -> Explaining:
        class Shortened(DryRunReport):
            def record_change(self, *words: str, why: str) -> None:
                report.record_change(*words[:2], why=why)

        return super().dry_run(Shortened(offline=report.offline))


class Optimistic(Explaining):
    """A dry run refuses nothing."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        try:
            return super().create_volume(request)
        except StorageError:
            if isinstance(self.storage, Recording):
                return Volume(handle="new", size=request.size.required, stamp=request.stamp)
            raise


class Showing(Explaining):
    """Shows the command with the key that the request brought."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        if isinstance(self.storage, Recording):
            self.storage.report.record_read("login", *request.secrets.values(), why="logs in")
        return super().create_volume(request)


class Blurting(Explaining):
    """Has the key in an error of a dry run."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        try:
            return super().create_volume(request)
        except StorageError as error:
            raise OutOfRange(f"{error}, for {dict(request.secrets)}") from None


class Curious(Explaining):
    """Reads also what it need not, without a storage to read."""

    def dry_run(self, report: DryRunReport) -> Explaining:
        dry = super().dry_run(report)
        self.storage.total_size()
        return dry


class Untranslated(Explaining):
    """Does not expect that a read fails during a dry run."""

    def dry_run(self, report: DryRunReport) -> Explaining:
        try:
            self.storage.total_size()
        except StorageError as error:
            raise ConnectionError(str(error)) from None
        return super().dry_run(report)


BROKEN = [
    (explain.a_dry_run_changes_nothing_and_predicts_the_creation, explaining(Acting), "the storage, against what was"),
    (explain.a_dry_run_changes_nothing_and_predicts_the_creation, explaining(Rounding), "the size, against"),
    (explain.the_steps_of_a_dry_run_name_the_volume_and_its_source, explaining(Closing), "no step changes anything"),
    (explain.the_steps_of_a_dry_run_name_the_volume_and_its_source, explaining(Vague), "no step contains"),
    (explain.the_steps_of_a_dry_run_name_the_volume_and_its_source, explaining(Silent), "has no words or no purpose"),
    (explain.the_steps_of_a_dry_run_name_the_volume_and_its_source, explaining(SourceLess), "the source: no step"),
    (explain.a_dry_run_raises_the_errors_of_a_creation, explaining(Optimistic), "succeeded, the contract requires"),
    (explain.a_dry_run_contains_no_secret, explaining(Showing), "contains the value of secret"),
    (explain.a_dry_run_contains_no_secret, explaining(Blurting), "contains the value of secret"),
    (explain.an_offline_dry_run_reads_nothing, explaining(Curious), "made 1 calls to the storage: total_size"),
    (
        explain.a_dry_run_while_the_storage_fails_raises_a_storage_error,
        explaining(Untranslated),
        "raised ConnectionError",
    ),
]


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)


@pytest.mark.parametrize(
    "one", [one for one in CHECKS.values() if one.group in ("explain", "importing")], ids=lambda one: one.name
)
def test_a_correct_backend_passes(judged: Callable[..., Outcome], one: Any) -> None:
    outcome = judged(one.body, explaining(Explaining))

    none = ("devices" in one.needs) or "fails raises" in one.name
    assert outcome.state is (CheckState.SKIPPED if none else CheckState.PASSED), outcome.text


class KnowsNoLimit(Explaining):
    """Only the storage knows whether a volume is too large. Correct."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        if isinstance(self.storage, Recording):
            raise Unpredictable("the storage knows what is too large")
        return super().create_volume(request)


def test_a_limit_that_only_the_storage_knows_may_be_unpredictable(judged: Callable[..., Outcome]) -> None:
    outcome = judged(explain.a_dry_run_raises_the_errors_of_a_creation, explaining(KnowsNoLimit))

    assert outcome.state is CheckState.PASSED, outcome.text
    assert "of Storage.too_large bytes: the storage knows what is too large" in outcome.notes[0]


@pytest.mark.parametrize("words", [("resize", "--megabytes=17"), ("put", "a7", "7b")])
def test_a_short_handle_counts_only_as_a_whole_word(words: tuple[str, ...]) -> None:
    report = DryRunReport()
    report.record_change(*words, why="writes a row")

    with pytest.raises(CheckFailed, match="no step contains '7'"):
        explain.expect_steps(report, "dry run of create_volume", "7")
    report.record_change("put", "vg0/7", why="writes a row")
    explain.expect_steps(report, "dry run of create_volume", "7")
