"""The client in process: data of a volume that must be attached first."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from csi_multi_testing import memory
from csi_multi_testing.context import in_process
from csi_multi_testing.memory import MemoryBackend
from csi_multi_testing.protocol import VolumeSpec, read_from, write_to

from csi_multi.contract import Blank, Device, FailedPrecondition, OpenRequest


class Attaching(MemoryBackend):
    """A volume is a file that can be opened where it is attached, with what attach returned."""

    def open_device(self, request: OpenRequest) -> Device:
        attached = self.get_volume(request.handle).published_nodes
        if not attached or dict(request.publish_context) != {"device": request.handle}:
            raise FailedPrecondition("not attached")
        path = Path(tempfile.gettempdir()) / request.handle
        path.touch()
        return Device(path=path, number="0:0", proof={}, blank=Blank.ZEROED)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return in_process(memory.storage(Attaching)).in_process


def test_bytes_are_read_and_written_on_an_attached_volume(client: Any) -> None:
    volume = client.create(VolumeSpec(name="bytes"))

    with client.device_path(volume.handle) as path:
        write_to(path, 0, b"data")

    with client.device_path(volume.handle, read_only=True) as path:
        assert read_from(path, 0, 4) == b"data"
    assert client.get(volume.handle).published_nodes == ()


def test_a_volume_that_a_check_has_attached_here_stays_attached(client: Any) -> None:
    volume = client.create(VolumeSpec(name="held"))
    client.attach(volume.handle, client.node())

    with client.device_path(volume.handle) as path:
        write_to(path, 0, b"data")

    assert client.get(volume.handle).published_nodes == (client.node().id,)
