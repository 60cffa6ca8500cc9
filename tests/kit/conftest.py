"""The kit judged: it must pass a backend in memory, and fail every deliberately broken one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from csi_multi.testing import memory
from csi_multi.testing.check import Outcome, State, run
from csi_multi.testing.checks import CHECKS
from csi_multi.testing.trial import in_process

Fails = Callable[[Callable[..., None], Any, str], None]


@pytest.fixture
def judged() -> Callable[[Callable[..., None], Any], Outcome]:
    """Run one check on a class derived from MemoryBackend, or on what a function returns as Storage."""

    def judged(check: Callable[..., None], subject: Any) -> Outcome:
        storage = memory.storage(subject) if isinstance(subject, type) else subject()
        return run(CHECKS[check.__name__.replace("_", " ")], in_process(storage))

    return judged


@pytest.fixture
def fails(judged: Callable[..., Outcome]) -> Fails:
    """Demand that a check fails on a broken backend, with these words in its verdict."""

    def fails(check: Callable[..., None], subject: Any, words: str) -> None:
        outcome = judged(check, subject)
        assert outcome.state is State.FAILED, f"{outcome.state.value}: {outcome.text}"
        assert words in outcome.text

    return fails
