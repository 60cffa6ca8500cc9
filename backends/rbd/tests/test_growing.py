"""Larger volumes: at once, in use or not, and never smaller ones."""

from __future__ import annotations

import msgspec
import pytest
from csi_multi_rbd.backend import RbdBackend
from csi_multi_rbd.config import Config

from csi_multi.contract import NotFound, OutOfRange, ResourceExhausted, Setting, Unavailable

from .ceph import Cluster
from .commands import changing, fails, once, watched
from .volumes import MIB, SIZE, create, delete, expand, held, info, read, write


def test_a_volume_grows_and_keeps_its_data(cluster: Cluster, backend: RbdBackend) -> None:
    volume = create(backend, "v")
    write(cluster, backend, volume, b"data")

    assert expand(backend, volume, 3 * SIZE) == info(cluster, backend, volume)["size"] == 3 * SIZE
    assert backend.get_volume("v").size == 3 * SIZE
    assert read(cluster, backend, volume, 4) == b"data"
    assert read(cluster, backend, volume, SIZE, 2 * SIZE) == bytes(SIZE)


def test_a_volume_grows_while_it_is_open(cluster: Cluster, backend: RbdBackend) -> None:
    volume = create(backend, "v")
    with held(cluster, backend, volume):
        assert expand(backend, volume, 2 * SIZE) == 2 * SIZE


def test_a_volume_that_is_large_enough_stays_as_it_is(backend: RbdBackend) -> None:
    volume = create(backend, "v", 2 * SIZE)
    with watched() as seen:
        assert expand(backend, volume, SIZE) == expand(backend, volume, 2 * SIZE) == 2 * SIZE

    assert changing(seen) == []


def test_a_volume_never_shrinks_nor_passes_its_limit(backend: RbdBackend) -> None:
    volume = create(backend, "v", 2 * SIZE)
    with pytest.raises(OutOfRange):
        expand(backend, volume, SIZE, limit=SIZE)
    with pytest.raises(OutOfRange):
        expand(backend, volume, 3 * SIZE + 1, limit=3 * SIZE + 2)

    assert expand(backend, volume, 2 * SIZE + 1, limit=3 * SIZE) == 2 * SIZE + MIB


def test_a_volume_above_a_maximum_that_was_lowered_since_is_large_enough(
    backend: RbdBackend, config: Config, setting: Setting
) -> None:
    volume = create(backend, "v", 3 * SIZE)
    other = RbdBackend(msgspec.structs.replace(config, max_size=2 * SIZE), setting)

    assert expand(other, volume, SIZE) == 3 * SIZE
    with pytest.raises(OutOfRange):
        expand(other, volume, 4 * SIZE)
    other.close()


def test_a_volume_grows_by_what_there_is_room_for(backend: RbdBackend) -> None:
    """It counts what is added: the rest was promised when it was made."""
    room = backend.config
    available = backend._space.report(room.pool).available
    volume = create(backend, "v", available // MIB * MIB)

    assert expand(backend, volume, volume.size + SIZE) == volume.size + SIZE
    with pytest.raises(ResourceExhausted):
        expand(backend, volume, 3 * volume.size)


def test_a_growth_that_was_cut_short_is_finished_by_the_retry(cluster: Cluster, backend: RbdBackend) -> None:
    volume = create(backend, "v")
    with watched(after=once(fails("rbd resize", 5))), pytest.raises(Unavailable):
        expand(backend, volume, 2 * SIZE)

    assert expand(backend, volume, 2 * SIZE) == info(cluster, backend, volume)["size"] == 2 * SIZE


def test_what_is_gone_does_not_grow(backend: RbdBackend) -> None:
    volume = create(backend, "v")
    delete(backend, volume)
    with pytest.raises(NotFound):
        expand(backend, volume, 2 * SIZE)
