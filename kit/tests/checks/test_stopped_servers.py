"""Backends that wait longer than their caller, and the check that finds it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from csi_multi_testing.check import CheckState
from csi_multi_testing.checks import CHECKS, stopped_servers

from csi_multi.contract import ModifyRequest, NotFound, StorageError, Timeout

from .file_server import LIMIT, Served, served

pytestmark = pytest.mark.slow


class OwnLimit(Served):
    """Waits as long as it has always waited."""

    def left(self, arguments: tuple[Any, ...]) -> float:
        return LIMIT


class OwnLimitForCopies(Served):
    """Copies take longer, so they may."""

    def left(self, arguments: tuple[Any, ...]) -> float:
        return LIMIT if any(getattr(one, "source", None) for one in arguments) else super().left(arguments)


class LooksAfterwards(Served):
    """Its last request has no deadline."""

    def modify_volume(self, request: ModifyRequest) -> None:
        self.ask("modify_volume", request)
        self.ask("get_volume", request.handle)


class Absent(Served):
    """Takes no answer for a no."""

    def ask(self, method: str, *arguments: Any, **more: Any) -> Any:
        try:
            return super().ask(method, *arguments, **more)
        except Timeout as error:
            raise self.lost(error) from error

    def lost(self, error: Exception) -> StorageError:
        return NotFound("the server does not know it")


BROKEN = [
    (
        stopped_servers.calls_end_at_their_deadline_while_the_server_does_not_answer,
        served(client=OwnLimit),
        "create_volume with a deadline that is over, while the server does not answer: ends",
    ),
    (
        stopped_servers.calls_end_at_their_deadline_while_the_server_does_not_answer,
        served(client=OwnLimitForCopies),
        "clone_volume with a deadline that is over, while the server does not answer: ends",
    ),
    (
        stopped_servers.calls_end_at_their_deadline_while_the_server_does_not_answer,
        served(client=Absent),
        "while the server does not answer: raised NotFound",
    ),
    (
        stopped_servers.calls_end_at_their_deadline_where_the_server_stops_between_two_answers,
        served(client=LooksAfterwards),
        "modify_volume with a short deadline, when the server stops before request 2: ends",
    ),
]


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)


@pytest.mark.parametrize("name", [name for name, one in CHECKS.items() if one.group == "stopped_servers"])
def test_a_client_that_waits_as_long_as_its_caller_passes(judged: Callable[..., Any], name: str) -> None:
    outcome = judged(CHECKS[name].body, served())

    assert outcome.state is CheckState.PASSED, outcome.text
