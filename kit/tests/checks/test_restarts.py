"""A backend that keeps state in memory, and the check that finds it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from csi_multi_testing import memory
from csi_multi_testing.check import CHECKS, CheckState
from csi_multi_testing.checks import restarts
from csi_multi_testing.memory import MemoryBackend
from csi_multi_testing.operations import base
from csi_multi_testing.protocol import Target

from csi_multi.contract import AttachRequest, Strings, Volume

from .killable import judged_killed


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "PAUSES", (0, 0))


class RemembersAttachments(MemoryBackend):
    """Knows from memory where volumes are attached."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.seen: dict[str, str] = {}

    def attach(self, request: AttachRequest) -> Strings:
        self.seen[request.handle] = request.node.id
        return super().attach(request)

    def _shown(self, volume: Volume) -> Volume:
        nodes = (self.seen[volume.handle],) if volume.handle in self.seen else ()
        return replace(super()._shown(volume), published_nodes=nodes)


BROKEN = [
    (restarts.restarts_between_calls_do_not_change_any_answer, RemembersAttachments, "get_volume, attached"),
]


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    if CHECKS[check.__name__.replace("_", " ")].target is not Target.WIRE:
        fails(check, backend, words)
        return
    outcome = judged_killed(check, memory.storage(backend))
    assert outcome.state is CheckState.FAILED, outcome.text
    assert words in outcome.text
