"""A correct backend whose volumes several nodes share, which tests break."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from csi_multi_testing.check import CHECKS

COUNT = itertools.count()


def groups(*names: str) -> list[Any]:
    """Return the checks of these groups that need no devices."""
    found = [one for one in CHECKS.values() if one.group in names and "devices" not in one.needs]
    return [pytest.param(one, id=one.name) for one in found]
