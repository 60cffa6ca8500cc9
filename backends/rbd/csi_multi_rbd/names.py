"""Names of images and temporary snapshots, and the handles that stand for them.

csi-vol-<owner>-<leaf>    a volume           csi-tmp-<leaf>   snapshot of a volume while a copy is made of it
csi-snap-<owner>-<leaf>   a snapshot         csi-base         snapshot of a snapshot's image that volumes are made of

<owner> is a hash of driver and cluster, so that two drivers that share a pool never meet under one name. A
handle is the leaf: pool, namespace and cluster are the instance's.
"""

from __future__ import annotations

import hashlib

from csi_multi.contract import VolumeRequest, ids, missing

VOLUME = "volume"
SNAPSHOT = "snapshot"
BASE = "csi-base"
_WORDS = {VOLUME: "vol", SNAPSHOT: "snap"}
_TEMPORARY = "csi-tmp-"


def owner(driver: str, cluster: str) -> str:
    """Return 8 characters that stand for a driver in a cluster."""
    return hashlib.sha256(f"{driver}\n{cluster}".encode()).hexdigest()[:8]


def prefix(kind: str, driver: str, cluster: str) -> str:
    """Return what the names of all our images of this kind start with."""
    return f"csi-{_WORDS[kind]}-{owner(driver, cluster)}-"


def temporary(kind: str, leaf: str) -> str:
    """Return the name of the snapshot that a copy (a volume or a snapshot, with this leaf) is made of."""
    return f"{_TEMPORARY}{_WORDS[kind]}-{leaf}"


def is_temporary(snapshot: str) -> bool:
    return snapshot.startswith(_TEMPORARY)


def leaf(kind: str, handle: str) -> str:
    """Return the leaf of a handle. One of another shape was never made by anybody: raises NotFound."""
    if not ids.LEAF_SHAPE.fullmatch(handle):
        raise missing(kind, handle)
    return handle


def leaf_for(name: str) -> str:
    """Return the leaf, and handle, for a requested name."""
    return ids.leaf(name)


def source(request: VolumeRequest) -> str:
    """Return the handle of what a new volume is copied from."""
    assert request.source is not None, "the core calls with a source"
    return request.source.handle
