"""The pytest plugin: a test with the fixture `csi_contract` runs once per check of the kit.

    @pytest.fixture
    def storage(tmp_path):
        return Storage(connect=lambda host: OwnBackend(Config(...), setting(host)), ...)

    def test_contract(csi_contract):
        csi_contract()

Registered under the entry point group pytest11. Only this module needs pytest, and it imports the kit when a test
uses `csi_contract`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .storage import Storage

FIXTURE = "csi_contract"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if FIXTURE in metafunc.fixturenames:
        from .checks import CHECKS

        ids = [f"{one.group}: {name}" for name, one in CHECKS.items()]
        metafunc.parametrize(FIXTURE, list(CHECKS), ids=ids, indirect=True)


@pytest.fixture
def csi_contract(request: pytest.FixtureRequest, storage: Storage) -> Callable[[], None]:
    """Return one check of the kit as a function; it runs against the `storage` fixture."""
    from .assertions import CheckFailed
    from .check import CHECKS, CheckState, run
    from .context import in_process

    def judge() -> None:
        outcome = run(CHECKS[request.param], in_process(storage))
        request.node.user_properties += [("note", note) for note in outcome.notes]
        if outcome.state is CheckState.SKIPPED:
            pytest.skip(outcome.text)
        if isinstance(outcome.error, CheckFailed):
            pytest.fail(outcome.text, pytrace=False)
        if outcome.error:
            raise AssertionError(outcome.text) from outcome.error

    return judge
