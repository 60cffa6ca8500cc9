"""Which volumes are open on this node, by the records of their devices."""

from __future__ import annotations

import uuid

import pytest

from csi_multi.node import device_records

pytestmark = pytest.mark.root


def test_a_volume_is_open_from_its_stage_to_its_unstage(world):
    name = world.volume(f"v-{uuid.uuid4()}")  # tests that run at the same time share the records
    key = device_records.VolumeKey.of(world.backend, name)
    assert key not in device_records.open_volumes()

    world.stage(name)
    assert key in device_records.open_volumes()

    world.unstage(name)
    assert key not in device_records.open_volumes()
