"""The EBS direct APIs that list blocks, and the data of volumes: blocks that were written, by their number.

A block that was written counts, also with zeros. Pages end where a test says, and their tokens expire.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

from . import fake_ec2_moto as moto
from .fake_ec2_calls import Answer, Call, Refusal

if TYPE_CHECKING:
    from .fake_ec2_service import Service

SERVICE = "ebs"  # in signatures
BLOCK = 512 * 1024
ZEROS = bytes(BLOCK)
PARAMETERS = {
    "pageToken": "NextToken",
    "startingBlockIndex": "StartingBlockIndex",
    "maxResults": "MaxResults",
    "firstSnapshotId": "FirstSnapshotId",
}

Blocks = Mapping[int, object]


@dataclass(slots=True)
class Pages:
    """How lists are cut into pages, and which tokens are good."""

    size: int = 10_000  # blocks per page, at most
    empty: int = 0  # so many pages from now on hold nothing but a token, as EBS's may
    tokens: dict[str, int] = field(default_factory=dict)  # the first block of the page; a test may clear them
    unrelated: set[frozenset[str]] = field(default_factory=set)  # pairs of snapshots without a common history
    # What a snapshot holds, where the data is not here but on a guest's disks.
    contents: Callable[[str], Blocks] | None = None


def call_of(path: str, account: str, region: str) -> Call:
    """Read a request: everything is in the path."""
    parts = urlsplit(path)
    _, _, snapshot, what = parts.path.split("/")
    params = {PARAMETERS[name]: value for name, value in parse_qsl(parts.query)}
    action, id = {
        "blocks": ("ListSnapshotBlocks", "SnapshotId"),
        "changedblocks": ("ListChangedBlocks", "SecondSnapshotId"),
    }[what]
    return Call(action, {**params, id: snapshot}, account, region, SERVICE)


def snapshot_blocks(cloud: Service, call: Call) -> Answer:
    found = _contents(cloud, call, call.get("SnapshotId"))
    size = _snapshot(call, call.get("SnapshotId")).volume_size
    return _page(cloud, call, "Blocks", sorted(found), size)


def changed_blocks(cloud: Service, call: Call) -> Answer:
    ids = call.get("FirstSnapshotId"), call.get("SecondSnapshotId")
    old, new = (_contents(cloud, call, id) for id in ids)
    first, second = (_snapshot(call, id) for id in ids)
    if frozenset(ids) in cloud.block_pages.unrelated or first.volume_id != second.volume_id:
        raise Refusal("ValidationException UNRELATED_SNAPSHOTS", "The snapshots are of different lineages.")
    differ = [block for block in sorted(old.keys() | new.keys()) if old.get(block) != new.get(block)]
    return _page(cloud, call, "ChangedBlocks", differ, second.volume_size)


def write(cloud: Service, volume: str, offset: int, data: bytes) -> None:
    """Write to a volume, as its guest would: before or after a call to EC2, never in the middle of one."""
    with moto.lock:
        blocks = _volume(volume).blocks
        while data:
            block, start = divmod(offset, BLOCK)
            part = data[: BLOCK - start]
            old = blocks.get(block, ZEROS)
            blocks[block] = old[:start] + part + old[start + len(part) :]
            data, offset = data[len(part) :], offset + len(part)


def read(cloud: Service, volume: str, offset: int, length: int) -> bytes:
    blocks, found = _volume(volume).blocks, b""
    while len(found) < length:
        block, start = divmod(offset + len(found), BLOCK)
        found += blocks.get(block, ZEROS)[start : start + length - len(found)]
    return found


def _volume(id: str) -> Any:
    return next(place.volumes[id] for place in moto.stores() if id in place.volumes)


def _snapshot(call: Call, id: str) -> Any:
    snapshot = moto.store(call).snapshots.get(id)
    if not snapshot:
        raise Refusal("ResourceNotFoundException SNAPSHOT_NOT_FOUND", f"The snapshot '{id}' does not exist.", 404)
    if snapshot.status != "completed":
        raise Refusal("ValidationException INVALID_SNAPSHOT_ID", f"The snapshot '{id}' is not completed.")
    return snapshot


def _contents(cloud: Service, call: Call, id: str) -> Blocks:
    snapshot = _snapshot(call, id)
    elsewhere = cloud.block_pages.contents
    return elsewhere(id) if elsewhere else snapshot.blocks


def _page(cloud: Service, call: Call, items: str, found: list[int], size: int) -> Answer:
    pages, token = cloud.block_pages, call.get("NextToken")
    if token and token not in pages.tokens:
        raise Refusal("ValidationException INVALID_PAGE_TOKEN", "The page token has expired.")
    start = pages.tokens[token] if token else int(call.get("StartingBlockIndex") or 0)
    rest = [block for block in found if block >= start]
    most = min(pages.size, int(call.get("MaxResults") or 10_000))
    if pages.empty:
        pages.empty, most = pages.empty - 1, 0
    page, after = rest[:most], rest[most:]
    told: dict[str, object] = {
        items: [{"BlockIndex": block, "BlockToken": "token"} for block in page],
        "VolumeSize": size,
        "BlockSize": BLOCK,
        "ExpiryTime": 1893456000.0,
    }
    if after:
        told["NextToken"] = f"page{len(pages.tokens)}"
        pages.tokens[str(told["NextToken"])] = after[0]
    return Answer(json.dumps(told).encode())
