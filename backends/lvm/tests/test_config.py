"""Schemas of the instance, the StorageClass and the VolumeSnapshotClass."""

from __future__ import annotations

from csi_multi_lvm import config

from csi_multi.contract import params


def test_the_parameters_of_a_storage_class_are_parsed() -> None:
    given = {"type": "raid10", "stripes": "3", "stripeSize": "65536", "integrity": "true", "wipe": "zero"}
    assert params.parse(config.Parameters, given, "parameters") == config.Parameters(
        type="raid10", stripes=3, stripe_size=65536, integrity=True, wipe="zero"
    )
