"""Which of these tests `make rbd` runs; MATRIX=1 runs all of them."""

from __future__ import annotations

import os

import pytest
from csi_multi_testing.checks import CHECKS

FULL = bool(os.environ.get("MATRIX"))
# A common check of the kit takes a cluster seconds, and one that lets every command of an operation go wrong a minute
# or more: every group that needs a real cluster to mean something is met, the rest is for the matrix.
GROUPS = ("creation", "crashes", "snapshots", "sources")
# Checks in these groups that come by no other line of the backend than one that is run.
REPEATED = (
    "a restore completes once after a crash at any call",  # as a snapshot is: both are copies (copies.py)
    "a clone completes once after a crash at any call",
    "a copy of a copy holds the data of both",  # as each of them
    "a group snapshot completes once after a crash at any call",  # test_groups.py: a death at each step
    "a group deletion completes after a crash at any call",
    "a cloned volume may be larger than its source",  # as a restored one
    "a cloned volume is never smaller than its source",
    "a cloned volume and its source share no writes",
)
MODULES = (
    "test_ceph_faults.py",
    "test_devices_faults_guest.py",
    "test_contract_pools.py",
)  # the tests' own faults, those of a guest's devices, and the kit once more


# Tests of which each takes a minute or more, because the cluster has to notice a fault and to recover.
LONG = (
    "test_no_call_waits_long_nor_gives_up_while_a_daemon_is_missing_and_all_succeed_afterwards",
    "test_calls_do_not_pile_up_before_a_cluster_that_is_silent",
    "test_a_slow_cluster_is_waited_for",
    "test_a_full_pool_is_said_to_be_full_and_takes_volumes_again_afterwards[full]",
    "test_deletions_in_a_full_pool_are_not_final_and_succeed_when_there_is_space",
    "test_without_a_manager_everything_works",
    "test_a_full_copy_and_ten_increments_are_the_snapshot[2]",
)


def left_out(item: pytest.Item) -> bool:
    """Whether a test is for the matrix."""
    if FULL or not isinstance(item, pytest.Function):
        return False
    if item.name.startswith(LONG):
        return True
    if item.path.name in MODULES or "csi_contract" not in item.fixturenames:
        return item.path.name in MODULES
    check = CHECKS[item.callspec.params["csi_contract"]]
    return check.group not in GROUPS or check.name in REPEATED
