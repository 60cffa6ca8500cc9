"""CreateVolume refuses or enlarges a volume that no node could format."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from csi_multi._proto import csi_pb2 as pb

Code = grpc.StatusCode
MIB = 1 << 20


def asked(creation: Any, fs_type: str, required: int = 1024 * MIB, limit: int = 0, **parameters: str) -> Any:
    capability = pb.VolumeCapability(mount={"fs_type": fs_type}, access_mode={"mode": "SINGLE_NODE_WRITER"})
    size = {"required_bytes": required, "limit_bytes": limit}
    return creation("v", volume_capabilities=[capability], capacity_range=size, parameters=parameters)


@pytest.mark.parametrize(("fs_type", "minimum"), [("xfs", 300 * MIB), ("btrfs", 109 * MIB)])
def test_a_small_volume_is_made_as_large_as_its_filesystem_needs(
    fs_type: str, minimum: int, client: Any, creation: Any, refused: Any
) -> None:
    refusal = refused(client.CreateVolume, asked(creation, fs_type, 20 * MIB, 30 * MIB))
    assert refusal.code is Code.OUT_OF_RANGE
    assert f"needs at least {minimum} bytes" in refusal.text

    made = client.CreateVolume(asked(creation, fs_type, 20 * MIB)).volume
    assert made.capacity_bytes == minimum
    assert client.CreateVolume(asked(creation, fs_type, 20 * MIB)).volume == made


def test_a_default_size_below_what_the_filesystem_needs_is_raised_too(client: Any, creation: Any) -> None:
    """The default size of these backends is 1 GiB."""
    request = asked(creation, "ext4", numberOfInodes=str(4 * MIB))
    request.ClearField("capacity_range")

    for _ in range(2):
        assert client.CreateVolume(request).volume.capacity_bytes == 2048 * MIB


@pytest.mark.parametrize(
    ("fs_type", "parameters"),
    [("ext4", {"blockSize": "65536"}), ("", {"blockSize": "65536"}), ("xfs", {"inodeSize": "128"})],
)
def test_options_that_mkfs_refuses_are_invalid(
    fs_type: str, parameters: Any, client: Any, creation: Any, refused: Any, both: Any
) -> None:
    refusal = refused(client.CreateVolume, asked(creation, fs_type, **parameters))

    assert refusal.code is Code.INVALID_ARGUMENT
    assert next(iter(parameters)) in refusal.text
    assert not both.storages["fast"].volumes


def test_a_raw_block_volume_has_the_size_that_was_asked_for(client: Any, creation: Any) -> None:
    block = pb.VolumeCapability(block={}, access_mode={"mode": "SINGLE_NODE_WRITER"})
    wanted = creation("v", volume_capabilities=[block], capacity_range={"required_bytes": MIB})

    assert client.CreateVolume(wanted).volume.capacity_bytes == MIB
