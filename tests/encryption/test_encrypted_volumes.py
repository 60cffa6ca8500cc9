"""An encrypted volume is one like any other to its user, and noise to whoever sees the storage."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import grpc
import pytest

from csi_multi._proto import csi_pb2 as pb

from .conftest import HEADER, MIB, SIZE, Node, block, filesystem, mappers, sh

pytestmark = pytest.mark.devicemapper

MARK = b"the plain text of a secret letter"
FAILED_PRECONDITION, INVALID_ARGUMENT = grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT


def refused(code: grpc.StatusCode, words: str, call: Any, *args: Any, **more: Any) -> None:
    with pytest.raises(grpc.RpcError) as error:
        call(*args, **more)
    assert error.value.code() is code
    assert words in error.value.details()


def write(path: Path, data: bytes, offset: int = 0) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    os.pwrite(descriptor, data, offset)
    os.fsync(descriptor)
    os.close(descriptor)


def read(path: Path, length: int, offset: int = 0) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(length)


def size_of(device: Path) -> int:
    return int(sh("blockdev", "--getsize64", str(device)))


@pytest.mark.parametrize("fs_type", ["ext4", "xfs", "btrfs"])
def test_what_is_written_to_a_filesystem_is_not_in_the_storage(node: Node, fs_type: str) -> None:
    kind = filesystem(fs_type)
    volume = node.create("v", kind, capacity_range={"required_bytes": 320 * MIB})
    target = node.publish(volume, kind)
    write(target / "letter", MARK * 1000)
    assert mappers()
    node.release(volume)

    assert mappers() == []
    assert MARK not in node.stored(volume).read_bytes()
    assert "TYPE=crypto_LUKS" in sh("blkid", "-p", "-o", "export", str(node.stored(volume)))
    target = node.publish(volume, kind)
    assert (target / "letter").read_bytes() == MARK * 1000


def test_what_is_written_to_a_raw_block_device_is_not_in_the_storage(node: Node) -> None:
    volume = node.create("v", block())
    target = node.publish(volume, block())
    write(target, MARK * 1000, offset=5 * MIB)
    node.release(volume)

    assert MARK not in node.stored(volume).read_bytes()
    assert read(node.publish(volume, block()), len(MARK), offset=5 * MIB) == MARK


def test_the_user_gets_the_size_that_the_claim_asks_for(node: Node) -> None:
    volume = node.create("v", block())
    target = node.publish(volume, block())

    assert volume.capacity_bytes == SIZE == size_of(target)
    assert node.stored(volume).stat().st_size == SIZE + HEADER
    listed = {one.volume.volume_id: one.volume.capacity_bytes for one in node.client.ListVolumes().entries}
    assert listed[volume.volume_id] == SIZE
    assert node.create("v", block()).capacity_bytes == SIZE


def test_a_class_that_encrypts_has_room_for_less(node: Node) -> None:
    plain = node.client.GetCapacity()
    encrypted = node.client.GetCapacity(parameters={"encryption": "luks2"})

    assert 0 <= plain.available_capacity - HEADER - encrypted.available_capacity < MIB
    assert 0 <= plain.maximum_volume_size.value - HEADER - encrypted.maximum_volume_size.value < MIB


@pytest.mark.parametrize("source", ["snapshot", "volume"])
def test_a_copy_of_equal_size_has_a_whole_filesystem(node: Node, source: str) -> None:
    volume = node.create("v")
    target = node.publish(volume)
    write(target / "letter", MARK)
    node.release(volume)
    snapshot = node.snapshot(volume, "s")
    assert snapshot.size_bytes == SIZE
    origin = {"snapshot": {"snapshot_id": snapshot.snapshot_id}, "volume": {"volume_id": volume.volume_id}}
    content = pb.VolumeContentSource(**{source: origin[source]})
    copy = node.create("copy", volume_content_source=content, capacity_range={"required_bytes": snapshot.size_bytes})

    assert copy.capacity_bytes == SIZE
    staging = node.stage(copy)
    assert (staging / "letter").read_bytes() == MARK
    (mapper,) = mappers()
    sh("umount", str(staging))
    sh("e2fsck", "-f", "-n", f"/dev/mapper/{mapper}")
    node.client.NodeUnstageVolume(volume_id=copy.volume_id, staging_target_path=str(staging))


def test_a_copy_may_be_larger_than_its_source(node: Node) -> None:
    volume = node.create("v")
    write(node.publish(volume) / "letter", MARK)
    node.release(volume)
    content = pb.VolumeContentSource(volume={"volume_id": volume.volume_id})
    copy = node.create("copy", volume_content_source=content, capacity_range={"required_bytes": 2 * SIZE})

    target = node.publish(copy)
    assert (target / "letter").read_bytes() == MARK
    assert os.statvfs(target).f_blocks * os.statvfs(target).f_frsize > 1.5 * SIZE


def test_a_copy_is_encrypted_as_its_source_is(node: Node) -> None:
    encrypted, plain = node.create("v"), node.create("p", parameters={})
    from_encrypted = pb.VolumeContentSource(volume={"volume_id": encrypted.volume_id})
    from_plain = pb.VolumeContentSource(volume={"volume_id": plain.volume_id})

    words = "use a class with encryption: luks2"
    refused(INVALID_ARGUMENT, words, node.create, "a", volume_content_source=from_encrypted, parameters={})
    refused(INVALID_ARGUMENT, "use a class without encryption", node.create, "b", volume_content_source=from_plain)


@pytest.mark.parametrize("fs_type", ["ext4", "xfs"])
def test_an_expansion_grows_the_mounted_filesystem_without_a_passphrase(node: Node, fs_type: str) -> None:
    kind, size = filesystem(fs_type), 320 * MIB
    volume = node.create("v", kind, capacity_range={"required_bytes": size})
    target = node.publish(volume, kind)
    wanted = {"required_bytes": 2 * size}
    grown = node.client.ControllerExpandVolume(volume_id=volume.volume_id, capacity_range=wanted)
    assert (grown.capacity_bytes, grown.node_expansion_required) == (2 * size, True)
    node.client.NodeExpandVolume(volume_id=volume.volume_id, volume_path=str(target), capacity_range=wanted)

    assert os.statvfs(target).f_blocks * os.statvfs(target).f_frsize > 1.7 * size
    (mapper,) = mappers()
    assert size_of(Path("/dev/mapper") / mapper) == 2 * size


def test_a_raw_block_device_grows_while_it_is_published(node: Node) -> None:
    volume = node.create("v", block())
    target = node.publish(volume, block())
    wanted = {"required_bytes": 2 * SIZE}
    node.client.ControllerExpandVolume(volume_id=volume.volume_id, capacity_range=wanted)
    node.client.NodeExpandVolume(volume_id=volume.volume_id, volume_path=str(target), capacity_range=wanted)

    assert size_of(target) == 2 * SIZE


def test_a_volume_stays_open_while_the_driver_is_replaced(node: Node) -> None:
    volume = node.create("v")
    target = node.publish(volume)
    write(target / "letter", MARK)
    node.restart(kill=True)

    assert (target / "letter").read_bytes() == MARK
    assert node.stage(volume)
    assert len(mappers()) == 1
    assert node.client.NodeGetVolumeStats(volume_id=volume.volume_id, volume_path=str(target)).usage[0].total
    node.release(volume)
    assert mappers() == []


def test_a_volume_that_is_only_read_is_opened_read_only(node: Node) -> None:
    volume = node.create("v")
    write(node.publish(volume) / "letter", MARK)
    node.release(volume)
    reader = filesystem(mode="SINGLE_NODE_READER_ONLY")
    target = node.publish(volume, reader)

    assert (target / "letter").read_bytes() == MARK
    (mapper,) = mappers()
    assert sh("blockdev", "--getro", f"/dev/mapper/{mapper}").strip() == "1"


def test_the_blocks_of_a_snapshot_are_those_that_the_user_sees(node: Node) -> None:
    volume = node.create("v", block())
    write(node.publish(volume, block()), MARK * 4096, offset=8 * MIB)
    node.release(volume)
    first = node.snapshot(volume, "first")
    write(node.publish(volume, block()), MARK * 4096, offset=24 * MIB)
    node.release(volume)
    second = node.snapshot(volume, "second")

    blocks = [
        one
        for answer in node.client.GetMetadataDelta(
            base_snapshot_id=first.snapshot_id, target_snapshot_id=second.snapshot_id
        )
        for one in answer.block_metadata
    ]
    assert answer_size(node, second) == SIZE
    assert blocks[0].byte_offset == 24 * MIB
    assert 24 * MIB + len(MARK) * 4096 <= blocks[-1].byte_offset + blocks[-1].size_bytes <= 25 * MIB
    starts = [
        one.byte_offset
        for answer in node.client.GetMetadataAllocated(snapshot_id=second.snapshot_id, starting_offset=9 * MIB)
        for one in answer.block_metadata
    ]
    assert starts[0] == 24 * MIB


def answer_size(node: Node, snapshot: pb.Snapshot) -> int:
    return int(next(node.client.GetMetadataAllocated(snapshot_id=snapshot.snapshot_id)).volume_capacity_bytes)


def test_a_group_of_encrypted_volumes_is_restored_at_its_size(node: Node) -> None:
    volumes = [node.create(name) for name in ("data", "log")]
    for volume in volumes:
        write(node.publish(volume) / "letter", MARK + volume.volume_id.encode())
        node.release(volume)
    ids = [volume.volume_id for volume in volumes]
    group = node.client.CreateVolumeGroupSnapshot(name=f"{node.test}-g", source_volume_ids=ids).group_snapshot

    assert {one.size_bytes for one in group.snapshots} == {SIZE}
    for number, member in enumerate(group.snapshots):
        content = pb.VolumeContentSource(snapshot={"snapshot_id": member.snapshot_id})
        copy = node.create(f"copy-{number}", volume_content_source=content)
        assert (node.publish(copy) / "letter").read_bytes() == MARK + member.source_volume_id.encode()
        node.release(copy)


def test_a_group_of_one_backend_is_encrypted_as_a_whole_or_not_at_all(node: Node) -> None:
    encrypted, plain = node.create("v"), node.create("p", parameters={})

    refused(
        FAILED_PRECONDITION,
        "make two groups",
        node.client.CreateVolumeGroupSnapshot,
        name=f"{node.test}-g",
        source_volume_ids=[encrypted.volume_id, plain.volume_id],
    )
