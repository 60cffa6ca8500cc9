"""Copies of real filesystems through a real driver process: the source decides what a copy holds."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from csi_multi._proto import csi_pb2 as pb
from csi_multi.rpc.client import Client

pytestmark = [pytest.mark.root, pytest.mark.slow]

MIB = 1 << 20


def capability(fs_type: str = "", mode: str = "SINGLE_NODE_WRITER") -> pb.VolumeCapability:
    return pb.VolumeCapability(mount={"fs_type": fs_type}, access_mode={"mode": mode})


class Node:
    """Stages volumes below one directory."""

    def __init__(self, client: Client, directory: Path) -> None:
        self.client = client
        self.directory = directory

    def stage(self, volume: Any, fs_type: str = "", mode: str = "SINGLE_NODE_WRITER") -> Path:
        path = self.directory / volume.volume_id.replace("/", "-")
        path.mkdir(exist_ok=True)
        self.client.NodeStageVolume(
            volume_id=volume.volume_id,
            staging_target_path=str(path),
            volume_capability=capability(fs_type, mode),
            volume_context=dict(volume.volume_context),
        )
        return path

    def unstage(self, volume: Any) -> None:
        path = self.directory / volume.volume_id.replace("/", "-")
        self.client.NodeUnstageVolume(volume_id=volume.volume_id, staging_target_path=str(path))


def create(client: Client, name: str, fs_type: str = "", **fields: Any) -> Any:
    fields.setdefault("capacity_range", {"required_bytes": 320 * MIB})
    return client.CreateVolume(name=name, volume_capabilities=[capability(fs_type)], **fields).volume


@pytest.mark.parametrize("kind", ["snapshot", "volume"])
@pytest.mark.parametrize("fs_type", ["xfs", "btrfs"])
def test_a_copy_is_staged_by_a_class_without_a_filesystem(
    client: Client, tmp_path: Path, fs_type: str, kind: str
) -> None:
    node = Node(client, tmp_path)
    source = create(client, "source", fs_type)
    (node.stage(source, fs_type) / "file").write_text("bytes")
    node.unstage(source)
    origin: dict[str, Any] = {"volume": {"volume_id": source.volume_id}}
    if kind == "snapshot":
        cut = client.CreateSnapshot(name="cut", source_volume_id=source.volume_id).snapshot
        origin = {"snapshot": {"snapshot_id": cut.snapshot_id}}

    copy = create(client, "copy", volume_content_source=origin)
    assert (node.stage(copy) / "file").read_text() == "bytes"
    node.unstage(copy)


def test_a_volume_whose_context_pins_the_wrong_default_is_staged_as_what_it_holds(
    client: Client, tmp_path: Path
) -> None:
    """Earlier versions wrote the driver's default into the context of every copy."""
    node = Node(client, tmp_path)
    source = create(client, "source", "xfs")
    (node.stage(source, "xfs") / "file").write_text("bytes")
    node.unstage(source)
    copy = create(client, "copy", volume_content_source={"volume": {"volume_id": source.volume_id}})
    copy.volume_context["fsType"] = "ext4"

    assert (node.stage(copy) / "file").read_text() == "bytes"
    node.unstage(copy)


@pytest.mark.parametrize("fs_type", ["ext4", "xfs", "btrfs"])
def test_a_clone_of_a_killed_volume_is_staged_read_only(client: Client, tmp_path: Path, fs_type: str) -> None:
    """The source's image is as a crash of its node leaves it: mounted, with a journal to replay."""
    node = Node(client, tmp_path)
    source = create(client, "source", fs_type)
    staging = node.stage(source, fs_type)
    for number in range(10):
        write_through(staging / f"file{number}")
    image = next((tmp_path / "scratch").glob("volumes/*/image"))
    live = tmp_path / "live"
    shutil.copyfile(image, live)
    node.unstage(source)
    shutil.copyfile(live, image)
    copy = create(client, "copy", volume_content_source={"volume": {"volume_id": source.volume_id}})

    staging = node.stage(copy, mode="SINGLE_NODE_READER_ONLY")
    assert (staging / "file9").read_text() == "bytes"
    node.unstage(copy)


def write_through(path: Path) -> None:
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY)
    os.write(descriptor, b"bytes")
    os.fsync(descriptor)
    os.close(descriptor)
