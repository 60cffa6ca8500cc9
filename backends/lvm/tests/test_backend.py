"""The backend class as the driver loads it."""

from __future__ import annotations

from csi_multi_lvm.backend import LvmBackend

from csi_multi.contract import params


def test_every_schema_can_be_described() -> None:
    for schema in (LvmBackend.Config, LvmBackend.Parameters, LvmBackend.SnapshotParameters):
        assert list(params.describe(schema))
