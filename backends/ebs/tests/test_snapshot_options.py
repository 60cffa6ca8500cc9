"""Fast restore and locks, for one snapshot and for all members of a group."""

from __future__ import annotations

from typing import Any

import pytest
from csi_multi_ebs import snapshot_options
from csi_multi_ebs.backend import EbsBackend
from csi_multi_ebs.config import SnapshotParameters

from csi_multi.contract import InvalidArgument, PermissionDenied, Unavailable
from csi_multi.contract.params import parse

from .backend_requests import A, snapshot_request, volume_request
from .fake_ec2 import FakeEc2


def asked(**given: str) -> Any:
    return parse(SnapshotParameters, given, "parameters")


LOCK = asked(lockMode="governance", lockDuration="1")


@pytest.fixture
def ids(ebs: EbsBackend) -> list[str]:
    volume = ebs.create_volume(volume_request())
    return [ebs.create_snapshot(snapshot_request(f"snap-{number}", volume.handle)).handle for number in range(2)]


def test_a_zone_that_does_not_exist_and_a_lock_that_is_over_are_refused(ebs: EbsBackend) -> None:
    for given in (
        {"fastSnapshotRestoreAvailabilityZones": "eu-west-1z"},
        {"lockMode": "governance", "lockExpirationDate": "2020-01-01T00:00:00Z"},
    ):
        with pytest.raises(InvalidArgument):
            snapshot_options.refuse_useless(ebs._cache, asked(**given))
    snapshot_options.refuse_useless(ebs._cache, asked(fastSnapshotRestoreAvailabilityZones=A))


def test_each_gets_what_the_class_asks_for(ebs: EbsBackend, cloud: FakeEc2, ids: list[str]) -> None:
    both = asked(fastSnapshotRestoreAvailabilityZones=A, lockMode="governance", lockDuration="1")
    snapshot_options.set_options(ebs._cache, ids, both, lambda: None)

    assert set(ids) == cloud.locks.keys() == cloud.fast_restores.keys()
    snapshot_options.ensure_options(ebs._cache, ids, both)
    assert cloud.calls["LockSnapshot"] == 2


def test_after_a_final_refusal_all_are_deleted(ebs: EbsBackend, cloud: FakeEc2, ids: list[str]) -> None:
    deleted: list[str] = []
    cloud.fail("LockSnapshot", "UnauthorizedOperation", skip=1)

    with pytest.raises(PermissionDenied):
        snapshot_options.set_options(ebs._cache, ids, LOCK, lambda: deleted.extend(ids))
    assert deleted == ids


def test_what_could_not_be_deleted_is_no_final_error(ebs: EbsBackend, cloud: FakeEc2, ids: list[str]) -> None:
    def delete() -> None:
        raise PermissionDenied("not you")

    cloud.fail("LockSnapshot", "UnauthorizedOperation")
    with pytest.raises(Unavailable, match=f"'{ids[0]}', '{ids[1]}'.*not you"):
        snapshot_options.set_options(ebs._cache, ids, LOCK, delete)
