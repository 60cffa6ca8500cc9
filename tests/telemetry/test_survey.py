"""How many volumes there are, and what could be made: asked in the background, kept while a storage hangs."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from csi_multi_testing.memory import GIB, MemoryBackend

from csi_multi.contract import UNLIMITED, CapacityReport, Page, Unavailable
from csi_multi.loading.registry import Registry
from csi_multi.telemetry import survey as surveying
from csi_multi.telemetry.survey import BackgroundSurvey, survey_instance


def finish(surveys: BackgroundSurvey) -> None:
    """Wait for what a round has begun."""
    for _, task in surveys._calls:
        assert task.done(10)


def test_volumes_are_counted_over_all_pages(show: Any, make: Any, wanted: Any, monkeypatch: Any) -> None:
    shown = show(make("fast"))
    for number in range(5):
        shown.client.CreateVolume(**wanted(f"v{number}", capacity_range={"required_bytes": GIB}))
    monkeypatch.setattr(surveying, "PAGE_SIZE", 2)

    found = survey_instance(shown.registry.get("fast"))
    assert (found.volumes, found.size) == (5, 5 * GIB)
    assert found.available == (1 << 50) - 5 * GIB


def test_what_was_found_is_shown_with_its_age(show: Any, make: Any, wanted: Any) -> None:
    shown = show(make("fast"))
    shown.client.CreateVolume(**wanted("v"))
    shown.exporter._survey.start_round(shown.registry)
    finish(shown.exporter._survey)

    samples = shown.scrape()
    assert samples("csi_multi_volumes", backend="fast") == [1]
    assert samples("csi_multi_volumes_bytes", backend="fast") == [GIB]
    assert samples("csi_multi_capacity_available_bytes", backend="fast") == [(1 << 50) - GIB]
    assert samples("csi_multi_survey_timestamp_seconds", backend="fast") > [1.7e9]


class Endless(MemoryBackend):
    def capacity(self, request: Any) -> Any:
        return CapacityReport(available=UNLIMITED)


def test_no_known_limit_is_no_figure(show: Any, make: Any) -> None:
    shown = show(make("fast", Endless))
    shown.exporter._survey.start_round(shown.registry)
    finish(shown.exporter._survey)

    assert shown.scrape()("csi_multi_capacity_available_bytes", backend="fast") == []


class Moody(MemoryBackend):
    """Answers, fails, or hangs."""

    mood = "well"

    def __init__(self, *words: Any) -> None:
        super().__init__(*words)
        self.asked, self.go = threading.Semaphore(0), threading.Event()

    def capacity(self, request: Any) -> Any:
        self.asked.release()
        if self.mood == "hangs":
            self.go.wait(30)
        if self.mood == "fails":
            raise Unavailable("no route to host")
        if self.mood == "breaks":
            raise KeyError("x")
        return super().capacity(request)


@pytest.mark.parametrize(("mood", "reason"), [("fails", "no route to host"), ("breaks", "capacity raised KeyError")])
def test_what_was_known_stays_known_when_the_storage_fails(make: Any, stream: Any, mood: str, reason: str) -> None:
    registry, surveys = Registry([make("bad", Moody)]), BackgroundSurvey()
    surveys.start_round(registry)
    finish(surveys)
    before = surveys.results()["bad"]
    registry.get("bad").backend.mood = mood
    surveys.start_round(registry)
    finish(surveys)

    assert surveys.results()["bad"] is before
    assert reason in stream.getvalue()


def test_an_instance_that_hangs_is_not_asked_again_and_the_others_are(make: Any) -> None:
    registry, surveys = Registry([make("bad", Moody), make("good", Moody)]), BackgroundSurvey()
    bad, good = registry.get("bad").backend, registry.get("good").backend
    bad.mood = "hangs"
    for _ in range(3):
        surveys.start_round(registry)
        assert good.asked.acquire(timeout=10)
        for instance, task in surveys._calls:
            assert instance.name == "bad" or task.done(10)

    assert bad.asked.acquire(timeout=10)
    assert not bad.asked.acquire(blocking=False)
    assert set(surveys.results()) == {"good"}
    bad.go.set()
    finish(surveys)


def test_what_is_not_configured_any_more_is_forgotten(make: Any) -> None:
    registry, surveys = Registry([make("a"), make("b")]), BackgroundSurvey()
    surveys.start_round(registry)
    finish(surveys)
    registry.replace_with(Registry([registry.get("a")]), 0)
    surveys.start_round(registry)
    finish(surveys)

    assert set(surveys.results()) == {"a"}


def test_a_listing_that_does_not_end_is_given_up(make: Any, monkeypatch: Any) -> None:
    class Endless(MemoryBackend):
        def list_volumes(self, page: Any) -> Any:
            return Page(items=(), cursor=f"{page.cursor}x"[-50:] + str(len(page.cursor) % 2))

    monkeypatch.setattr(surveying, "MAX_PAGES", 20)

    assert survey_instance(Registry([make("bad", Endless)]).get("bad")).volumes is None


def test_only_the_controller_asks_for_storage_that_all_nodes_share(make: Any) -> None:
    from dataclasses import replace

    instance, surveys = make("fast"), BackgroundSurvey()
    instance.backend.setting = replace(instance.backend.setting, controller=False)
    surveys.start_round(Registry([instance]))

    assert surveys._calls == []


def test_a_survey_is_made_again_and_again(make: Any) -> None:
    registry, surveys = Registry([make("good", Moody)]), BackgroundSurvey()
    surveys.start(registry, 0.01)
    asked = registry.get("good").backend.asked
    for _ in range(3):
        assert asked.acquire(timeout=10)
    surveys.stop()
