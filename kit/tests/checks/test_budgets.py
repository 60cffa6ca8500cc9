"""Backends that make too many calls, and the check that finds it."""

from __future__ import annotations

from typing import Any

import pytest
from csi_multi_testing import memory
from csi_multi_testing.check import CHECKS, CheckState
from csi_multi_testing.checks import budgets
from csi_multi_testing.memory import MemoryBackend
from csi_multi_testing.operations import base
from csi_multi_testing.protocol import Target

from csi_multi.contract import PageRequest

from .killable import judged_killed


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "PAUSES", (0, 0))


class AsksOneByOne(MemoryBackend):
    """Looks at each volume of a listing once more."""

    def list_volumes(self, page: PageRequest) -> Any:
        for one in super().list_volumes(page).items:
            self.get_volume(one.handle)
        return super().list_volumes(page)


def within_budget(kind: type[MemoryBackend], **budgets: int) -> Any:
    return lambda: memory.storage(kind, budgets=budgets)


BROKEN = [
    (
        budgets.no_method_makes_more_calls_than_its_budget,
        within_budget(MemoryBackend, create_volume=1),
        "create_volume: ",
    ),
    (
        budgets.no_method_makes_more_calls_than_its_budget,
        within_budget(MemoryBackend, creat_volume=1),
        "has no such method",
    ),
    (budgets.no_method_makes_more_calls_than_its_budget, within_budget(AsksOneByOne, list_volumes=4), "beside 20"),
]


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    if CHECKS[check.__name__.replace("_", " ")].target is not Target.WIRE:
        fails(check, backend, words)
        return
    outcome = judged_killed(check, memory.storage(backend))
    assert outcome.state is CheckState.FAILED, outcome.text
    assert words in outcome.text


def test_a_budget_that_is_kept_passes_and_is_noted(judged: Any) -> None:
    outcome = judged(budgets.no_method_makes_more_calls_than_its_budget, within_budget(MemoryBackend, get_volume=1))

    assert outcome.state is CheckState.PASSED, outcome.text
    assert "get_volume: 1 calls, budget 1" in outcome.notes
