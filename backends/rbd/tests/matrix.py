"""Which of these tests `make rbd` runs; MATRIX=1 runs all of them."""

from __future__ import annotations

import os

import pytest
from csi_multi_testing.checks import CHECKS

FULL = bool(os.environ.get("MATRIX"))
# A common check of the kit takes a cluster seconds, and one that lets every command of an operation go wrong a minute
# or more: every group that needs a real cluster to mean something is met, the rest is for the matrix.
GROUPS = (
    "creation",
    "crashes",
    "snapshots",
    "sources",
    "foreign",
    "expand",
    "capacity",
    "credentials",  # and instead of groups, blocks: test_groups.py, test_group_cut.py, test_changed_blocks.py
)
# Checks in these groups that come by no other line of the backend than one that is run.
REPEATED = (
    "a restore completes once after a crash at any call",  # as a snapshot is: both are copies (copies.py)
    "a clone completes once after a crash at any call",
    "a copy of a copy holds the data of both",  # as each of them
)
MODULES = (
    "test_ceph_faults.py",
    "test_devices_faults_guest.py",
    "test_contract_pools.py",
)  # the tests' own faults, those of a guest's devices, and the kit once more


def left_out(item: pytest.Item) -> bool:
    """Whether a test is for the matrix."""
    if FULL or not isinstance(item, pytest.Function):
        return False
    if item.path.name in MODULES or "csi_contract" not in item.fixturenames:
        return item.path.name in MODULES
    check = CHECKS[item.callspec.params["csi_contract"]]
    return check.group not in GROUPS or check.name in REPEATED
