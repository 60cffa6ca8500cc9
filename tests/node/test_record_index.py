"""Records of devices are found by their volume, also those that an earlier version wrote, and no others are read."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid

import pytest

from csi_multi.host.device_notes import DeviceNotes
from csi_multi.node import device_records
from csi_multi.node.device_records import VolumeKey
from csi_multi.node.record_index import VOLUMES, RecordIndex

pytestmark = pytest.mark.root


@pytest.fixture
def others(world, monkeypatch):
    """Ten other volumes that are staged; gives the numbers whose records are read from now on."""
    world.volume("first")  # a process looks at all records once
    world.stage("first")
    world.unstage("first")
    for index in range(10):
        world.volume(f"other-{index}")
        world.stage(f"other-{index}")
    read: list[str] = []
    real = DeviceNotes.read

    def reading(self, name):
        read.append(name)
        return real(self, name)

    with monkeypatch.context() as patch:
        patch.setattr(DeviceNotes, "read", reading)
        yield read
    for index in range(10):
        world.unstage(f"other-{index}")


def test_no_record_of_another_volume_is_read_while_one_is_shown_and_taken_away(world, others):
    name = world.volume(f"v-{uuid.uuid4()}")  # tests that run at the same time share the records
    world.stage(name)
    own = world.device(name).number
    world.publish(name)
    world.unpublish(name)
    world.unstage(name)

    assert set(others) == {own}


def test_records_that_an_earlier_version_wrote_are_found(tmp_path):
    notes = tmp_path / "notes"
    (notes / VOLUMES).mkdir(parents=True)
    index = RecordIndex(notes, lambda: {"7:1": "driver of-an-earlier-version", "7:2": "driver another"})

    assert index.numbers("driver of-an-earlier-version") == ["7:1"]


def test_what_is_indexed_is_found_by_the_next_process_and_removed_with_the_last_record(tmp_path):
    index = RecordIndex(tmp_path, dict)
    index.add("driver volume", "7:1")
    index.add("driver volume", "7:2")

    code = (
        "import sys; from pathlib import Path; from csi_multi.node.record_index import RecordIndex\n"
        "print(*RecordIndex(Path(sys.argv[1]), dict).numbers('driver volume'))"
    )
    found = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["7:1", "7:2"]
    index.remove("driver volume", "7:1")
    assert index.numbers("driver volume") == ["7:2"]
    index.remove("driver volume", "7:2")
    assert os.listdir(tmp_path / VOLUMES) == []


def test_the_index_of_a_volume_is_gone_when_it_is_unstaged(world):
    name = world.volume(f"v-{uuid.uuid4()}")
    key = str(VolumeKey.of(world.backend, name))
    world.stage(name)
    assert device_records._index.numbers(key) == [world.device(name).number]

    world.unstage(name)

    assert device_records._index.numbers(key) == []
    assert not device_records._index._directory(key).exists()
