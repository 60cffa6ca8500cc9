"""For the tests of all distributions: generated inputs are judged by what happens, never by how fast it happens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

LOOP_NOTES = Path("/dev/csi-multi-loop")


def pytest_configure(config: pytest.Config) -> None:
    if not config.pluginmanager.has_plugin("hypothesispytest"):  # in a guest, where its import takes seconds
        return
    from hypothesis import HealthCheck, settings

    slow = (HealthCheck.too_slow,)  # a machine that is busy generates slowly
    settings.register_profile("csi-multi", deadline=None, suppress_health_check=slow, print_blob=True)
    settings.load_profile("csi-multi")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Refuse parameters in a set: each process would run them in an order of its own, and pytest-xdist then fails."""
    for mark in metafunc.definition.iter_markers("parametrize"):
        if any(isinstance(values, set | frozenset) for values in mark.args[1:2]):
            raise pytest.UsageError(f"{metafunc.definition.nodeid}: the parameters are a set; sort them")


@pytest.fixture(autouse=True)
def no_directory_is_known_to_the_next_test(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Remove the notes about directories of loop instances in kept directories of tests: their volumes would count."""
    yield
    for note in LOOP_NOTES.glob("*/*"):
        try:
            if str(tmp_path_factory.getbasetemp()) in note.read_text():
                note.unlink()
        except FileNotFoundError:
            continue
