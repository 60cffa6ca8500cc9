"""Filesystems of small blocks, through a real driver process over a directory whose files can share blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from csi_multi._proto import csi_pb2 as pb
from csi_multi.host.command import LocalHost
from csi_multi.rpc.client import Client

pytestmark = [pytest.mark.root, pytest.mark.slow]

GIB = 1 << 30
MIB = 1 << 20


@pytest.fixture
def client(make_driver: Callable[..., Any], tmp_path: Path) -> Iterator[Client]:
    """A driver over an xfs of its own. Its loop devices have sectors of 4 KiB unless something else is needed."""
    host, disk, scratch = LocalHost(), tmp_path / "disk", tmp_path / "scratch"
    with disk.open("wb") as file:
        file.truncate(2 * GIB)
    host.run("mkfs.xfs", "-q", str(disk))
    scratch.mkdir()
    host.run("mount", "-o", "loop", str(disk), str(scratch))
    driver = make_driver()
    connected = driver.start()
    yield connected
    connected.close()
    driver.stop()
    host.run("umount", str(scratch))


@pytest.fixture
def asked() -> Callable[..., pb.CreateVolumeRequest]:
    def asked(fs_type: str, **parameters: str) -> pb.CreateVolumeRequest:
        capability = pb.VolumeCapability(mount={"fs_type": fs_type}, access_mode={"mode": "SINGLE_NODE_WRITER"})
        size = {"required_bytes": 320 * MIB}
        return pb.CreateVolumeRequest(
            name="v", volume_capabilities=[capability], capacity_range=size, parameters=parameters
        )

    return asked


@pytest.mark.parametrize("block", ["1024", "2048", "4096"])
@pytest.mark.parametrize("fs_type", ["ext4", "xfs"])
def test_a_filesystem_of_small_blocks_is_staged_written_and_copied(
    client: Client, asked: Any, tmp_path: Path, fs_type: str, block: str
) -> None:
    request = asked(fs_type, blockSize=block)
    volume = client.CreateVolume(request).volume
    paths = {}

    def stage(one: pb.Volume) -> Path:
        path = paths.setdefault(one.volume_id, tmp_path / one.volume_id.replace("/", "-"))
        path.mkdir(exist_ok=True)
        capability, context = request.volume_capabilities[0], dict(one.volume_context)
        client.NodeStageVolume(
            volume_id=one.volume_id, staging_target_path=str(path), volume_capability=capability, volume_context=context
        )
        return path

    (stage(volume) / "file").write_bytes(b"bytes" * MIB)
    source = {"volume": {"volume_id": volume.volume_id}}
    request.MergeFrom(pb.CreateVolumeRequest(volume_content_source=source))
    request.name = "copy"
    copy = client.CreateVolume(request).volume
    (paths[volume.volume_id] / "file").write_bytes(b"other" * MIB)

    assert (stage(copy) / "file").read_bytes() == b"bytes" * MIB
    for one in (copy, volume):
        client.NodeUnstageVolume(volume_id=one.volume_id, staging_target_path=str(paths[one.volume_id]))
        client.DeleteVolume(volume_id=one.volume_id)


def test_a_sector_that_is_larger_than_a_block_is_invalid(client: Client, asked: Any) -> None:
    with pytest.raises(grpc.RpcError) as refusal:
        client.CreateVolume(asked("xfs", blockSize="2048", sectorSize="4096"))

    assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "sectorSize 4096 is larger than a block" in refusal.value.details()
    assert not client.ListVolumes().entries
