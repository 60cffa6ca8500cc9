"""For the tests of all distributions: generated inputs are judged by what happens, never by how fast it happens."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    if not config.pluginmanager.has_plugin("hypothesispytest"):  # in a guest, where its import takes seconds
        return
    from hypothesis import HealthCheck, settings

    slow = (HealthCheck.too_slow,)  # a machine that is busy generates slowly
    settings.register_profile("csi-multi", deadline=None, suppress_health_check=slow, print_blob=True)
    settings.load_profile("csi-multi")
