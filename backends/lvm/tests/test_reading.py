"""A volume that is activated to read its snapshot, while another process uses it: on a volume group in memory.

test_starts.py has such moments on real LVM.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from csi_multi_lvm import labels
from csi_multi_lvm.operation import InstanceParts, instance_of
from csi_multi_lvm.report import LogicalVolume

from csi_multi.contract import NotFound, OpenRequest, SnapshotRequest, Stamp, StorageError, Volume

from .fake_lvm import FakeLvm
from .fake_lvm import fake as fake
from .test_opened_devices import Process, Start, at_command, create
from .test_opened_devices import start as start


@pytest.fixture
def reader(start: Start) -> InstanceParts:
    """Another process, which reads the snapshot."""
    backend = start().backend
    return instance_of(backend.config, backend.setting)


@pytest.fixture
def volume(start: Start) -> Volume:
    """A volume that was used, with a snapshot."""
    one = start()
    volume = create(one)
    one.stage(volume)
    one.unstage(volume)
    stamp = Stamp(driver="d", cluster="c", name="snap", digest="x")
    one.backend.create_snapshot(SnapshotRequest(stamp=stamp, source=volume.handle))
    return volume


def snapshot(reader: InstanceParts) -> LogicalVolume:
    return reader.client.get("csis-snap")


def opened(process: Process, volume: Volume) -> None:
    process.backend.open_device(OpenRequest(handle=volume.handle, block=False))


def opened_and_closed(process: Process, volume: Volume) -> None:
    opened(process, volume)
    process.backend.close_device(volume.handle)


def test_nothing_stays_active_when_a_snapshot_was_read(fake: FakeLvm, reader: InstanceParts, volume: Volume) -> None:
    with fake.counted() as commands, reader.activation.reading(snapshot(reader)):
        assert fake.volumes["csi-v"].active
        assert labels.READING in fake.volumes["csi-v"].tags
    assert commands == ["lvs", "lvchange", "lvchange", "lvchange"]
    assert not fake.volumes["csi-v"].active


@pytest.mark.parametrize("use", [opened_and_closed, opened])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("number", [1, 2])
def test_a_volume_that_is_opened_while_a_read_begins_is_active_only_as_long_as_it_is_open(
    number: int,
    after: bool,
    use: Callable[[Process, Volume], None],
    fake: FakeLvm,
    start: Start,
    reader: InstanceParts,
    volume: Volume,
) -> None:
    """Between the tag and the activation, too: the tag is gone then, and nobody would deactivate the volume."""
    source, other = snapshot(reader), start()
    with at_command(fake, number, lambda: use(other, volume), after=after) as words:
        try:
            with reader.activation.reading(source):
                assert fake.volumes["csis-snap"].active
        except StorageError as error:
            print("the read is repeated:", error)
    assert len(words) >= number

    assert fake.volumes["csi-v"].active == (use is opened)
    start().backend.resume()
    assert fake.volumes["csi-v"].active == (use is opened)
    other.backend.close_device(volume.handle)
    with reader.activation.reading(source):
        pass
    other.backend.delete_snapshot("n/vg0/snap", {})
    other.backend.delete_volume(volume.handle, {})
    with pytest.raises(NotFound):
        other.backend.get_volume(volume.handle)
