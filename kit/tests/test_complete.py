"""The kit as a whole: the backend in memory passes, every check can fail, every feature is covered."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from csi_multi_testing import memory
from csi_multi_testing.check import CHECKS as REGISTERED
from csi_multi_testing.checks import CHECKS
from csi_multi_testing.storage import Storage

from csi_multi.contract import FEATURES


@pytest.fixture
def storage() -> Storage:
    return memory.storage()


def test_memory(csi_contract: Callable[[], None]) -> None:
    csi_contract()


def seen_to_fail() -> Iterator[str]:
    """Yield the checks in the BROKEN lists of the tests of checks."""
    for file in sorted(Path(__file__).parent.glob("checks/test_*.py")):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "BROKEN":
                for case in ast.walk(node.value):
                    if isinstance(case, ast.Tuple) and isinstance(case.elts[0], ast.Attribute):
                        yield case.elts[0].attr.replace("_", " ")


def test_every_check_has_been_seen_to_fail_on_a_broken_backend() -> None:
    assert set(CHECKS) - set(seen_to_fail()) == set()


def test_the_changelog_has_the_number_of_checks() -> None:
    text = Path(__file__).parents[2].joinpath("CHANGELOG.md").read_text()

    assert re.findall(r"(\d+) checks", text) == [str(len(CHECKS))]


def test_every_feature_of_the_contract_has_a_check() -> None:
    covered = {feature for one in REGISTERED.values() for feature in one.features}

    assert {one.__name__ for one in FEATURES} - {one.__name__ for one in covered} == set()


def test_every_module_of_checks_is_registered() -> None:
    files = Path(memory.__file__).parent.joinpath("checks").glob("*.py")

    assert {file.stem for file in files} - {one.group for one in CHECKS.values()} == {"__init__"}


def test_every_module_of_checks_has_a_test_of_its_name() -> None:
    tests = {file.stem for file in Path(__file__).parent.glob("checks/test_*.py")}

    assert tests == {f"test_{one.group}" for one in CHECKS.values()}
