"""Snapshots, groups of them, and the blocks that differ, over the wire."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from csi_multi_testing.memory import GRANULE, MemoryBackend

from csi_multi._proto import csi_pb2 as pb
from csi_multi.contract import AlreadyExists, BlockMap, Extent, GroupSnapshotRequest, SnapshotRequest, Unavailable
from csi_multi.rpc.client import Client

Code = grpc.StatusCode


@pytest.fixture(autouse=True)
def _volumes(create: Any) -> None:
    for name in ("v", "w"):
        create(name, backend="fast")
    create("v", backend="slow")


def test_a_snapshot_tells_what_it_is_and_never_changes(snap: Any) -> None:
    first = snap("s", "fast/v")

    assert (first.snapshot_id, first.source_volume_id) == ("fast/s", "fast/v")
    assert first.creation_time.seconds > 0
    assert first.ready_to_use
    assert first.size_bytes == 1 << 30
    assert snap("s", "fast/v") == first


def test_the_same_name_for_another_source_is_refused(client: Client, snap: Any, refused: Any) -> None:
    snap("s", "fast/v")

    refusal = refused(client.CreateSnapshot, name="s", source_volume_id="fast/w")

    assert refusal.code is Code.ALREADY_EXISTS
    assert "'s'" in refusal.text
    assert "'v'" in refusal.text


@pytest.mark.parametrize("source", ["fast/absent", "absent/v", "odd"])
def test_a_missing_source_is_not_found(source: str, client: Client, refused: Any) -> None:
    assert refused(client.CreateSnapshot, name="s", source_volume_id=source).code is Code.NOT_FOUND


def test_a_parameter_nobody_knows_is_refused(client: Client, refused: Any) -> None:
    refusal = refused(client.CreateSnapshot, name="s", source_volume_id="fast/v", parameters={"x": "y"})

    assert refusal.code is Code.INVALID_ARGUMENT
    assert "'x'" in refusal.text


def test_a_retry_finds_its_snapshot_although_the_source_is_gone(client: Client, snap: Any) -> None:
    first = snap("s", "fast/v")
    client.DeleteVolume(volume_id="fast/v")

    assert snap("s", "fast/v") == first


class HalfMade(MemoryBackend):
    def create_snapshot(self, request: SnapshotRequest) -> Any:
        raise AlreadyExists("half-made")

    def create_group_snapshot(self, request: GroupSnapshotRequest) -> Any:
        raise AlreadyExists("half-made")


def test_what_is_half_made_is_tried_again(serve: Any, make: Any, creation: Any, refused: Any) -> None:
    client = serve(make("fast", HalfMade)).client
    client.CreateVolume(creation("v"))

    for refusal in (
        refused(client.CreateSnapshot, name="s", source_volume_id="fast/v"),
        refused(client.CreateVolumeGroupSnapshot, name="g", source_volume_ids=["fast/v"]),
    ):
        assert refusal.code is Code.ABORTED
        assert "being created or deleted" in refusal.text


def test_deletion_is_done_when_nothing_is_there(client: Client, snap: Any) -> None:
    snap("s", "fast/v")
    for snapshot_id in ("fast/s", "fast/s", "fast/absent", "odd"):
        client.DeleteSnapshot(snapshot_id=snapshot_id)


# Groups


@pytest.fixture
def group(client: Client) -> Any:
    return client.CreateVolumeGroupSnapshot(name="g", source_volume_ids=["fast/v", "fast/w"]).group_snapshot


def test_a_group_has_members_that_name_it(client: Client, group: Any) -> None:
    assert group.group_snapshot_id == "fast/g"
    assert {one.source_volume_id for one in group.snapshots} == {"fast/v", "fast/w"}
    assert {one.group_snapshot_id for one in group.snapshots} == {"fast/g"}
    assert group.ready_to_use
    ids = [one.snapshot_id for one in group.snapshots]
    assert client.GetVolumeGroupSnapshot(group_snapshot_id="fast/g", snapshot_ids=ids).group_snapshot == group
    assert client.GetSnapshot(snapshot_id=ids[0]).snapshot == group.snapshots[0]


@pytest.mark.parametrize("sources", [["fast/v", "fast/w"], ["fast/w", "fast/v"]])
def test_a_retry_finds_its_group(sources: list[str], client: Client, group: Any) -> None:
    assert client.CreateVolumeGroupSnapshot(name="g", source_volume_ids=sources).group_snapshot == group


@pytest.mark.parametrize(
    ("sources", "code", "words"),
    [
        (["fast/v"], Code.ALREADY_EXISTS, "other volumes"),
        (["fast/v", "slow/v"], Code.INVALID_ARGUMENT, "one backend"),
        (["fast/v", "fast/v"], Code.INVALID_ARGUMENT, "twice"),
        (["fast/v", "odd"], Code.NOT_FOUND, "odd"),
        (["fast/absent"], Code.ALREADY_EXISTS, "other volumes"),
    ],
)
def test_the_same_name_for_other_volumes_is_refused(
    sources: list[str], code: Any, words: str, client: Client, group: Any, refused: Any
) -> None:
    refusal = refused(client.CreateVolumeGroupSnapshot, name="g", source_volume_ids=sources)

    assert (refusal.code, words in refusal.text) == (code, True), refusal.text


def test_a_member_cannot_go_alone(client: Client, group: Any, refused: Any) -> None:
    refusal = refused(client.DeleteSnapshot, snapshot_id=group.snapshots[0].snapshot_id)

    assert refusal.code is Code.INVALID_ARGUMENT
    assert "delete the group" in refusal.text


@pytest.mark.parametrize("rpc", ["GetVolumeGroupSnapshot", "DeleteVolumeGroupSnapshot"])
@pytest.mark.parametrize("members", [[], ["fast/g-0"], ["fast/g-0", "fast/other"], ["fast/g-0", "fast/g-1", "fast/x"]])
def test_the_members_given_must_be_the_groups(
    rpc: str, members: list[str], client: Client, group: Any, refused: Any, both: Any
) -> None:
    refusal = refused(getattr(client, rpc), group_snapshot_id="fast/g", snapshot_ids=members)

    assert refusal.code is Code.INVALID_ARGUMENT
    assert len(both.shelves["fast"].snapshots) == 2


def test_a_group_goes_with_all_its_members(client: Client, group: Any, both: Any, refused: Any) -> None:
    ids = [one.snapshot_id for one in group.snapshots]
    for members in (ids, ids, []):
        client.DeleteVolumeGroupSnapshot(group_snapshot_id="fast/g", snapshot_ids=members)

    assert not both.shelves["fast"].snapshots
    assert refused(client.GetVolumeGroupSnapshot, group_snapshot_id="fast/g").code is Code.NOT_FOUND


# Blocks


class Mapped(MemoryBackend):
    """Answers with the extents a test gives it; an exception among them is raised."""

    extents: tuple[Any, ...] = ()
    block_size = 0

    def allocated_blocks(self, handle: str, offset: int, secrets: Any) -> BlockMap:
        return BlockMap(size=1 << 30, extents=self._extents(), block_size=self.block_size)

    def changed_blocks(self, base: str, target: str, offset: int, secrets: Any) -> BlockMap:
        return self.allocated_blocks(target, offset, secrets)

    def _extents(self) -> Iterator[Extent]:
        for one in self.extents:
            if isinstance(one, Exception):
                raise one
            yield Extent(offset=one[0], length=one[1])


@pytest.fixture
def mapped(serve: Any, make: Any, creation: Any) -> Any:
    served = serve(make("fast", Mapped))
    served.client.CreateVolume(creation("v"))
    for name in ("s", "t"):
        served.client.CreateSnapshot(name=name, source_volume_id="fast/v")
    return served


def blocks(messages: Any) -> list[tuple[int, int]]:
    return [(one.byte_offset, one.size_bytes) for message in messages for one in message.block_metadata]


@pytest.mark.parametrize("limit", [0, 1, 2, 3, 5000, 2**31 - 1])
def test_blocks_come_in_order_and_in_messages_of_bounded_size(limit: int, mapped: Any) -> None:
    mapped.backend("fast").extents = tuple((number * 4096, 4096) for number in range(3000))

    messages = list(mapped.client.GetMetadataAllocated(snapshot_id="fast/s", max_results=limit))

    assert blocks(messages) == list(mapped.backend("fast").extents)
    assert {message.block_metadata_type for message in messages} == {pb.BlockMetadataType.VARIABLE_LENGTH}
    assert {message.volume_capacity_bytes for message in messages} == {1 << 30}
    assert all(len(message.block_metadata) <= min(limit or 1024, 1024) for message in messages)


def test_a_stream_can_be_resumed_at_any_offset(client: Client, snap: Any) -> None:
    snap("s", "fast/v")
    for offset in (0, 1, GRANULE - 1, GRANULE, GRANULE + 1):
        found = blocks(client.GetMetadataAllocated(snapshot_id="fast/s", starting_offset=offset))

        assert found[0][0] + found[0][1] > offset
        assert found[-1] == (3 * GRANULE, GRANULE)


def test_fixed_lengths_are_said_to_be_fixed(client: Client, snap: Any) -> None:
    snap("s", "fast/v")

    (message,) = client.GetMetadataAllocated(snapshot_id="fast/s")

    assert message.block_metadata_type == pb.BlockMetadataType.FIXED_LENGTH


def test_a_failure_in_the_middle_ends_the_stream_with_a_status(mapped: Any, refused: Any) -> None:
    mapped.backend("fast").extents = ((0, 4096), (4096, 4096), Unavailable("the array went away"))
    got = []

    with pytest.raises(grpc.RpcError) as found:
        got.extend(mapped.client.GetMetadataAllocated(snapshot_id="fast/s", max_results=1))

    assert found.value.code() is Code.UNAVAILABLE
    assert blocks(got) == [(0, 4096), (4096, 4096)]


@pytest.mark.parametrize(
    ("extents", "block_size"),
    [
        (((4096, 4096), (0, 4096)), 0),
        (((0, 4096), (0, 4096)), 0),
        (((0, 8192), (4096, 4096)), 0),
        (((0, 0),), 0),
        (((0, -1),), 0),
        (((0, (1 << 30) + 1),), 0),
        (((0, 8192),), 4096),
    ],
)
@pytest.mark.parametrize("rpc", ["GetMetadataAllocated", "GetMetadataDelta"])
def test_a_map_that_would_spoil_a_backup_is_a_bug(
    rpc: str, extents: Any, block_size: int, mapped: Any, refused: Any
) -> None:
    mapped.backend("fast").extents, mapped.backend("fast").block_size = extents, block_size
    fields = (
        {"snapshot_id": "fast/s"}
        if rpc.endswith("Allocated")
        else {"base_snapshot_id": "fast/s", "target_snapshot_id": "fast/t"}
    )

    assert refused(getattr(mapped.client, rpc), max_results=1, **fields).code is Code.INTERNAL


@pytest.mark.parametrize(
    ("rpc", "fields", "code"),
    [
        ("GetMetadataAllocated", {"snapshot_id": "fast/absent"}, Code.NOT_FOUND),
        ("GetMetadataAllocated", {"snapshot_id": "fast/s", "starting_offset": (1 << 30) + 1}, Code.OUT_OF_RANGE),
        ("GetMetadataDelta", {"base_snapshot_id": "fast/s", "target_snapshot_id": "fast/absent"}, Code.NOT_FOUND),
        ("GetMetadataDelta", {"base_snapshot_id": "fast/absent", "target_snapshot_id": "fast/s"}, Code.NOT_FOUND),
        ("GetMetadataDelta", {"base_snapshot_id": "slow/s", "target_snapshot_id": "fast/s"}, Code.INVALID_ARGUMENT),
        ("GetMetadataDelta", {"base_snapshot_id": "fast/of-w", "target_snapshot_id": "fast/s"}, Code.INVALID_ARGUMENT),
        ("GetMetadataDelta", {"base_snapshot_id": "fast/t", "target_snapshot_id": "fast/s"}, Code.INVALID_ARGUMENT),
    ],
)
def test_blocks_that_cannot_be_told_are_refused(
    rpc: str, fields: Any, code: Any, client: Client, snap: Any, refused: Any
) -> None:
    for name, source in (("fast/s", "v"), ("fast/of-w", "w"), ("fast/t", "v"), ("slow/s", "v")):
        backend, _, short = name.partition("/")
        snap(short, f"{backend}/{source}")

    assert refused(getattr(client, rpc), **fields).code is code


def test_a_caller_that_leaves_in_the_middle_frees_the_snapshot(mapped: Any) -> None:
    mapped.backend("fast").extents = tuple((number * 4096, 4096) for number in range(100_000))
    for _ in range(20):  # more than there are slots
        stream = mapped.client.GetMetadataAllocated(snapshot_id="fast/s", max_results=1)
        next(stream)
        stream.cancel()

    for _ in range(200):
        try:
            mapped.client.DeleteSnapshot(snapshot_id="fast/s")
            break
        except grpc.RpcError as error:
            assert error.code() in (Code.ABORTED, Code.UNAVAILABLE)  # noqa: PT017
    else:
        pytest.fail("the snapshot is still held")
