"""Backends whose facts of a node cannot be a part of its node id, and the checks that find it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from csi_multi_testing.check import CheckState, Outcome
from csi_multi_testing.checks import node_facts
from csi_multi_testing.memory import MemoryBackend

from csi_multi.contract import backend as b

from .shared_volumes import COUNT, groups


class Knowing(b.NodeFacts, MemoryBackend):
    """A node knows the number under which the storage system has it."""

    def node_fact(self) -> str:
        return "i-0abc"

    def max_volumes(self) -> int:
        return 25


class Quoting(Knowing):
    def node_fact(self) -> str:
        return "iqn.2020-01.example;lun=1"


class Lengthy(Knowing):
    def node_fact(self) -> str:
        return "a" * 250


class Drawing(Knowing):
    """Draws its fact at every start."""

    def __init__(self, *words: Any) -> None:
        super().__init__(*words)
        self.number = next(COUNT)

    def node_fact(self) -> str:
        return f"i-{self.number}"


class Unlimited(Knowing):
    def max_volumes(self) -> int:
        return -1


BROKEN = [
    (node_facts.the_fact_of_a_node_fits_into_its_id, Quoting, "it must be one or more letters, digits"),
    (node_facts.the_fact_of_a_node_fits_into_its_id, Lengthy, "256 are allowed"),
    (node_facts.the_fact_of_a_node_does_not_change, Drawing, "of another process on the same node"),
    (node_facts.max_volumes_is_a_number_or_zero_for_no_limit, Unlimited, "max_volumes gave -1"),
]


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)


@pytest.mark.parametrize("one", groups("node_facts"))
def test_a_backend_that_knows_its_node_passes(judged: Callable[..., Outcome], one: Any) -> None:
    outcome = judged(one.body, Knowing)

    assert outcome.state is CheckState.PASSED, outcome.text
