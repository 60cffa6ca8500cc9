"""Backups that are made of allocated and changed blocks: never a block too few, whatever became of the volume."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterable
from hashlib import sha256

import pytest
from csi_multi_rbd import object_maps
from csi_multi_rbd.backend import RbdBackend

from csi_multi.contract import Extent, FailedPrecondition, NotFound, OutOfRange, Snapshot, Volume

from . import contents
from .ceph import Cluster
from .volumes import BACKGROUND_SECONDS, MIB, NONE, SIZE, copy, create, delete, expand, info, snapshot, spec, write

OBJECT = 64 * 1024  # bytes
INCREMENTS = 10


def whole(cluster: Cluster, backend: RbdBackend, one: Snapshot) -> bytes:
    return contents.read(cluster, spec(backend, one), 0, one.size)


def discard(cluster: Cluster, backend: RbdBackend, volume: Volume, at: int, length: int) -> None:
    zeros = contents.HEAD + b"z" + struct.pack("<QQ", at, length) + b"e"
    cluster.run_bytes("rbd", "import-diff", "-", spec(backend, volume), "--no-progress", given=zeros)


def changes(backend: RbdBackend, base: Snapshot, target: Snapshot, offset: int = 0) -> list[Extent]:
    return list(backend.changed_blocks(base.handle, target.handle, offset, NONE).extents)


def allocated(backend: RbdBackend, one: Snapshot, offset: int = 0) -> list[Extent]:
    return list(backend.allocated_blocks(one.handle, offset, NONE).extents)


def patched(old: bytes, new: bytes, extents: Iterable[Extent]) -> bytes:
    """Return what a backup program has that reads these extents only."""
    made = bytearray(old.ljust(len(new), b"\0"))
    for one in extents:
        made[one.offset : one.offset + one.length] = new[one.offset : one.offset + one.length]
    return bytes(made)


def change(cluster: Cluster, backend: RbdBackend, volume: Volume, size: int, chance: random.Random) -> None:
    """Write and discard here and there, in all sizes."""
    for _ in range(chance.randint(1, 3)):
        length = chance.choice((1, 4096, OBJECT, 3 * OBJECT + 17))
        at = chance.randrange(0, size - length)
        if chance.random() < 0.3:
            discard(cluster, backend, volume, at, length)
        else:
            write(cluster, backend, volume, chance.randbytes(length), at)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_full_copy_and_ten_increments_are_the_snapshot(cluster: Cluster, backend: RbdBackend, seed: int) -> None:
    """The volume grows, snapshots between two others are deleted, and it is itself deleted before the last delta."""
    chance = random.Random(seed)
    volume, size = create(backend, "v", object_size=OBJECT), SIZE
    change(cluster, backend, volume, size, chance)
    last = snapshot(backend, "s", volume)
    backup = patched(b"", whole(cluster, backend, last), allocated(backend, last))
    assert sha256(backup).digest() == sha256(whole(cluster, backend, last)).digest()
    for number in range(INCREMENTS):
        change(cluster, backend, volume, size, chance)
        if number == INCREMENTS // 2:
            size = expand(backend, volume, SIZE + 5 * OBJECT // MIB * MIB + MIB)
        if number % 3 == 1:
            between = snapshot(backend, f"between-{number}", volume)
            change(cluster, backend, volume, size, chance)
            if number != 4:
                delete(backend, between)
                assert backend.wait_until_idle(BACKGROUND_SECONDS)
        made = snapshot(backend, f"s{number}", volume)
        if number == INCREMENTS - 1:
            delete(backend, volume)
        content = whole(cluster, backend, made)
        backup = patched(backup, content, changes(backend, last, made))
        assert sha256(backup).digest() == sha256(content).digest(), f"increment {number} of seed {seed}"
        last = made


def test_a_delta_has_the_changed_objects_only(cluster: Cluster, backend: RbdBackend) -> None:
    volume = create(backend, "v", object_size=OBJECT)
    write(cluster, backend, volume, b"x" * SIZE)
    base = snapshot(backend, "base", volume)
    write(cluster, backend, volume, b"y", 3 * OBJECT + 5)
    write(cluster, backend, volume, b"y", 4 * OBJECT)
    write(cluster, backend, volume, b"y", SIZE - 1)
    target = snapshot(backend, "target", volume)

    found = [Extent(offset=3 * OBJECT, length=2 * OBJECT), Extent(offset=SIZE - OBJECT, length=OBJECT)]
    assert changes(backend, base, target) == found
    assert changes(backend, target, base) == found
    assert changes(backend, base, target, 5 * OBJECT) == found[1:]
    assert changes(backend, target, target) == []
    assert allocated(backend, target) == [Extent(offset=0, length=SIZE)]
    with pytest.raises(OutOfRange):
        changes(backend, base, target, SIZE + 1)


def test_an_image_with_stripes_has_its_changes_in_whole_sets_of_objects(cluster: Cluster, backend: RbdBackend) -> None:
    volume = create(backend, "v", object_size=MIB, stripe_unit=OBJECT, stripe_count=4)
    write(cluster, backend, volume, b"x", MIB)
    base = snapshot(backend, "base", volume)
    write(cluster, backend, volume, b"y", 9 * MIB + OBJECT)
    target = snapshot(backend, "target", volume)

    assert changes(backend, base, target) == [Extent(offset=8 * MIB, length=4 * MIB)]


def test_a_restored_volume_has_deltas_of_its_own(cluster: Cluster, backend: RbdBackend) -> None:
    volume = create(backend, "v", object_size=OBJECT)
    write(cluster, backend, volume, b"x" * 4 * MIB)
    origin = snapshot(backend, "origin", volume)
    restored = copy(backend, "restored", origin)
    base = snapshot(backend, "base", restored)
    write(cluster, backend, restored, b"y", MIB)
    discard(cluster, backend, restored, 2 * MIB, OBJECT)
    target = snapshot(backend, "target", restored)

    backup = patched(whole(cluster, backend, base), whole(cluster, backend, target), changes(backend, base, target))
    assert backup == whole(cluster, backend, target)
    with pytest.raises(FailedPrecondition, match="full backup"):
        changes(backend, origin, target)


def test_a_volume_that_was_flattened_between_two_snapshots_lacks_no_change(
    cluster: Cluster, backend: RbdBackend
) -> None:
    volume = create(backend, "v", object_size=OBJECT)
    write(cluster, backend, volume, b"x" * 2 * MIB)
    restored = copy(backend, "restored", snapshot(backend, "origin", volume))
    base = snapshot(backend, "base", restored)
    write(cluster, backend, restored, b"y", MIB)
    cluster.rbd("flatten", spec(backend, restored), "--no-progress")
    target = snapshot(backend, "target", restored)

    backup = patched(whole(cluster, backend, base), whole(cluster, backend, target), changes(backend, base, target))
    assert backup == whole(cluster, backend, target)


def test_the_changes_of_a_flattened_snapshot_are_not_known_and_its_blocks_are(
    cluster: Cluster, backend: RbdBackend
) -> None:
    volume = create(backend, "v", object_size=OBJECT)
    write(cluster, backend, volume, b"x", MIB)
    base, target = snapshot(backend, "base", volume), snapshot(backend, "target", volume)
    cluster.rbd("flatten", spec(backend, target), "--no-progress")

    with pytest.raises(FailedPrecondition, match="full backup"):
        changes(backend, base, target)
    assert patched(b"", whole(cluster, backend, target), allocated(backend, target)) == whole(cluster, backend, target)


def without_features(cluster: Cluster, backend: RbdBackend, volume: Volume) -> None:
    cluster.rbd("feature", "disable", spec(backend, volume), "fast-diff", "object-map")


def with_a_map_that_is_not_valid(cluster: Cluster, backend: RbdBackend, volume: Volume) -> None:
    without_features(cluster, backend, volume)
    cluster.rbd("feature", "enable", spec(backend, volume), "object-map", "fast-diff")


def without_a_map(cluster: Cluster, backend: RbdBackend, volume: Volume) -> None:
    [id] = [info(cluster, backend, volume)["id"]]
    last = object_maps.read_record(backend.main.client, id).snapshots[-1].id
    where = ("--pool", cluster.pool, "--namespace", backend.config.namespace)
    cluster.rados(*where, "rm", f"rbd_object_map.{id}.{last:016x}")


@pytest.mark.parametrize("spoil", [without_features, with_a_map_that_is_not_valid, without_a_map])
def test_changes_that_no_object_map_tells_are_refused(
    cluster: Cluster, backend: RbdBackend, spoil: Callable[[Cluster, RbdBackend, Volume], None]
) -> None:
    volume = create(backend, "v", object_size=OBJECT)
    base, target = snapshot(backend, "base", volume), snapshot(backend, "target", volume)
    assert changes(backend, base, target) == []
    spoil(cluster, backend, volume)

    with pytest.raises(FailedPrecondition, match="full backup"):
        changes(backend, base, target)


def test_a_snapshot_that_is_not_there_has_no_blocks(backend: RbdBackend) -> None:
    made = snapshot(backend, "s", create(backend, "v"))
    with pytest.raises(NotFound):
        backend.allocated_blocks("no-such-snapshot", 0, NONE)
    with pytest.raises(NotFound):
        backend.changed_blocks("no-such-snapshot", made.handle, 0, NONE)
    with pytest.raises(NotFound):
        backend.changed_blocks(made.handle, "no-such-snapshot", 0, NONE)
