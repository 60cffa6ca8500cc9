"""Streams of blocks pass from the node that has the snapshot to the reader, as fast as the reader takes them."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from csi_multi_testing.waiting import wait_for

from csi_multi.contract import BlockMap, Extent

Code = grpc.StatusCode
BLOCK = 4096


@pytest.fixture
def snapshot(cluster: Any) -> str:
    volume = cluster.create("v", nodes=["node-2"]).volume_id
    return str(cluster.client.CreateSnapshot(name="s", source_volume_id=volume).snapshot.snapshot_id)


def offsets(messages: Any) -> list[int]:
    return [block.byte_offset for message in messages for block in message.block_metadata]


def test_blocks_are_read_where_the_snapshots_are(cluster: Any, snapshot: str) -> None:
    storage = cluster.machines["node-2"].storage
    storage.write("node-2/v", 8 * BLOCK, bytes(BLOCK))
    later = cluster.client.CreateSnapshot(name="t", source_volume_id="disk/node-2/v").snapshot.snapshot_id

    changed = cluster.client.GetMetadataDelta(base_snapshot_id=snapshot, target_snapshot_id=later)
    allocated = cluster.client.GetMetadataAllocated(snapshot_id=later, starting_offset=5 * BLOCK)

    assert 8 * BLOCK in offsets(changed)
    assert offsets(allocated) == [8 * BLOCK]


def test_snapshots_of_two_nodes_have_no_difference_that_could_be_told(
    cluster: Any, snapshot: str, refused: Any
) -> None:
    far = cluster.create("w", nodes=["node-3"]).volume_id
    other = cluster.client.CreateSnapshot(name="t", source_volume_id=far).snapshot.snapshot_id

    refusal = refused(cluster.client.GetMetadataDelta, base_snapshot_id=snapshot, target_snapshot_id=other)

    assert (refusal.code, "'node-2'" in refusal.text) == (Code.INVALID_ARGUMENT, True)


def test_the_error_of_the_node_comes_back_as_it_is(cluster: Any, snapshot: str, refused: Any) -> None:
    gone = refused(cluster.client.GetMetadataAllocated, snapshot_id="disk/node-2/never")
    beyond = refused(cluster.client.GetMetadataAllocated, snapshot_id=snapshot, starting_offset=1 << 50)

    assert (gone.code, beyond.code) == (Code.NOT_FOUND, Code.OUT_OF_RANGE)


class Blocks:
    """A map without end in place of the node's, which counts what is taken from it."""

    def __init__(self, cluster: Any, first: int = 1 << 40) -> None:
        self.taken = 0
        self.closed = threading.Event()
        self.waits = threading.Event()
        self.may_go_on = threading.Event()
        self._first = first  # blocks before it waits
        cluster.machines["node-2"].backend.allocated_blocks = self._map

    def _map(self, _handle: str, offset: int, _secrets: Any) -> BlockMap:
        return BlockMap(size=1 << 60, extents=self._extents(offset // BLOCK), block_size=BLOCK)

    def _extents(self, start: int) -> Iterator[Extent]:
        try:
            for number in itertools.count(start):
                if self.taken >= self._first:
                    self.waits.set()
                    self.may_go_on.wait(60)
                self.taken += 1
                yield Extent(offset=number * BLOCK, length=BLOCK)
        finally:
            self.closed.set()


def idle(cluster: Any) -> bool:
    return not cluster.nodes.get("node-2").admission.running_rpcs()


def test_only_what_the_reader_takes_is_computed_and_its_end_ends_the_work(cluster: Any, snapshot: str) -> None:
    blocks = Blocks(cluster)
    stream = cluster.client.GetMetadataAllocated(snapshot_id=snapshot)
    first = next(stream)
    stream.cancel()

    assert blocks.closed.wait(20)
    assert offsets([first])[:2] == [0, BLOCK]
    assert blocks.taken < 1 << 20, "far more than the buffers on the way hold"
    assert wait_for(lambda: idle(cluster), bool, 20)


def test_a_reader_that_goes_away_while_the_node_is_silent_frees_its_place(cluster: Any, snapshot: str) -> None:
    blocks = Blocks(cluster, first=0)
    stream = cluster.client.GetMetadataAllocated(snapshot_id=snapshot)
    assert blocks.waits.wait(20)
    assert not idle(cluster)
    stream.cancel()

    assert wait_for(lambda: idle(cluster), bool, 20)
    assert cluster.nodes.unreachable() == {}
    blocks.may_go_on.set()
    assert blocks.closed.wait(20)


def test_a_stream_that_broke_is_continued_where_it_ended(cluster: Any, snapshot: str, refused: Any) -> None:
    blocks = Blocks(cluster, first=4096)
    stream = cluster.client.GetMetadataAllocated(snapshot_id=snapshot)
    seen = offsets([next(stream), next(stream)])
    cluster.stop_node("node-2")
    blocks.may_go_on.set()
    refusal = refused(lambda *_, **__: stream)
    cluster.start_node("node-2")
    Blocks(cluster)
    assert wait_for(lambda: _answers(cluster), bool, 20)

    again = cluster.client.GetMetadataAllocated(snapshot_id=snapshot, starting_offset=seen[-1] + BLOCK)
    assert refusal.code is Code.UNAVAILABLE
    assert offsets([next(again)])[0] == seen[-1] + BLOCK
    again.cancel()


def _answers(cluster: Any) -> bool:
    try:
        cluster.client.ControllerGetVolume(volume_id="disk/node-2/v")
    except grpc.RpcError:
        return False
    return True
