"""The JSON of ceph as typed values."""

from __future__ import annotations

import pytest
from csi_multi_rbd import resources


def test_a_check_that_is_muted_is_not_told() -> None:
    check = {"summary": {"message": "one"}, "muted": False}
    told = {"fsid": "f", "health": {"status": "HEALTH_WARN", "checks": {"A": check, "B": {**check, "muted": True}}}}

    assert resources.status(told).checks == {"A": "one"}


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ("hashpspool", ""),
        ("hashpspool,nearfull", ""),
        ("full,hashpspool", "pool 'k8s' is full"),
        ("full,full_quota", "pool 'k8s' has reached its quota"),
    ],
)
def test_a_pool_is_full_when_its_flags_say_so(flags: str, told: str) -> None:
    pools = [{"pool_name": "other", "flags_names": "full"}, {"pool_name": "k8s", "flags_names": flags}]

    assert resources.full_reason(pools, "k8s") == told
