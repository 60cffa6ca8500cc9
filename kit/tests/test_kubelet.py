"""Data over CSI: a volume is attached, staged and published for it, and nothing of that remains."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from csi_multi_loop.backend import LoopBackend
from csi_multi_loop.config import Config
from csi_multi_testing.csi_wire import CsiClient
from csi_multi_testing.protocol import VolumeSpec, read_from, write_to
from csi_multi_testing.storage import MIB, Storage, setting

from csi_multi.contract import (
    Attach,
    AttachRequest,
    Device,
    FailedPrecondition,
    Node,
    NotFound,
    OpenRequest,
    SizeRange,
    Strings,
)
from csi_multi.host import loopdev, mounts

pytestmark = pytest.mark.root


class Attaching(LoopBackend, Attach):
    """Opens a device only where the volume is attached, with what attach returned."""

    attached: ClassVar[dict[str, str]] = {}
    deaf: ClassVar[bool] = False

    def attach(self, request: AttachRequest) -> Strings:
        if not self.deaf:
            self.attached[request.handle] = request.node.id
        return {"key": request.handle}

    def detach(self, handle: str, node: Node | None, secrets: Strings) -> None:
        if not self.attached.pop(handle, None):
            raise NotFound("not attached")

    def open_device(self, request: OpenRequest) -> Device:
        if request.handle not in self.attached or dict(request.publish_context) != {"key": request.handle}:
            raise FailedPrecondition(f"{request.handle} is not attached")
        return super().open_device(request)


@pytest.fixture
def client(tmp_path: Path, driver_of: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[CsiClient]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # /tmp has directories of other runs, too
    options = Config(directory=str(tmp_path / "volumes"), reserve_percent=0, min_size=MIB)
    storage = Storage(connect=lambda host: Attaching(options, setting(host)), size=MIB, devices=True)
    client = CsiClient(storage, "kit", driver_of(storage, tmp_path))
    yield client
    client.close()
    assert not [file for file in loopdev.bound_devices().values() if file.startswith(f"{tmp_path}/")]
    assert not [mount.target for mount in mounts.table() if mount.target.startswith(f"{tmp_path}/")]
    assert not list(tmp_path.glob("csi-multi-kit-*"))


def test_bytes_come_back(client: CsiClient) -> None:
    volume = client.create(VolumeSpec(name="bytes", size=SizeRange(required=MIB)))

    with client.device_path(volume.handle) as path:
        write_to(path, 4096, b"data")

    with client.device_path(volume.handle, read_only=True) as path:
        assert read_from(path, 4096, 4) == b"data"
    assert Attaching.attached == {}
    client.delete(volume.handle)


def test_what_is_only_read_cannot_be_written(client: CsiClient) -> None:
    volume = client.create(VolumeSpec(name="read", size=SizeRange(required=MIB)))

    with client.device_path(volume.handle, read_only=True) as path, pytest.raises(OSError, match="not permitted"):
        write_to(path, 0, b"data")

    with client.device_path(volume.handle, read_only=True) as path:
        assert read_from(path, 0, 4) == bytes(4)
    client.delete(volume.handle)


def test_a_volume_that_a_check_has_attached_here_stays_attached(client: CsiClient) -> None:
    volume = client.create(VolumeSpec(name="held", size=SizeRange(required=MIB)))
    client.attach(volume.handle, client.node())

    with client.device_path(volume.handle) as path:
        write_to(path, 0, b"data")

    assert Attaching.attached == {volume.handle: client.node().id}
    client.detach(volume.handle, None)
    client.delete(volume.handle)


def test_a_failure_is_told_and_everything_undone(client: CsiClient, monkeypatch: pytest.MonkeyPatch) -> None:
    volume = client.create(VolumeSpec(name="broken", size=SizeRange(required=MIB)))
    monkeypatch.setattr(Attaching, "deaf", True)

    with pytest.raises(FailedPrecondition, match="is not attached"), client.device_path(volume.handle):
        pass

    client.delete(volume.handle)
