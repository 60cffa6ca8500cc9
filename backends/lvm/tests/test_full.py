"""Pools that are full, on real LVM: that is reported, nothing hangs, and no data changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from csi_multi_lvm.backend import LvmBackend

from csi_multi.contract import PageRequest, ResourceExhausted

from .faulty import clear
from .group import MIB, Group, Lvm, NewGroup, volume_group
from .volume_steps import (
    copy,
    create,
    delete,
    expand,
    in_time,
    listed_names,
    open_device,
    opened,
    read,
    reasons,
    refused,
    snapshot,
    storage_reasons,
    write,
)

pytestmark = pytest.mark.devicemapper

POOL = 32 * MIB
NO_SPACE = Path("/sys/module/dm_thin_pool/parameters/no_space_timeout")

Make = Callable[..., LvmBackend]


@pytest.fixture(scope="module")
def group(lvm: Lvm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    """A group with a pool that is soon full."""
    with volume_group(lvm, tmp_path_factory.mktemp("full"), disks=1, size=256 * MIB, pool=POOL) as group:
        yield group


@pytest.fixture(autouse=True)
def nothing_left(group: Group) -> Iterator[None]:
    """Remove what a failed test left, so that it does not affect the next one."""
    yield
    clear(group)


# A thin pool


@pytest.fixture
def impatient_pool() -> Iterator[None]:
    """Let writes to a full pool fail after a second; the kernel's own default is a minute."""
    before = NO_SPACE.read_text()
    NO_SPACE.write_text("1")
    yield
    NO_SPACE.write_text(before)


def test_a_full_pool_recovers(backend_on: Make, new_group: NewGroup, impatient_pool: None) -> None:
    """It is reported, nothing hangs, deleting and extending help, and no data has changed."""
    group = new_group(disks=1, size=128 * MIB, pool=POOL)  # of its own, because the pool grows
    ours = backend_on(group, pool_full_percent=100)
    keep, spare, greedy = (create(ours, name, POOL, type="thin") for name in ("keep", "spare", "greedy"))
    for one in (keep, spare):
        with opened(ours, one) as device:
            write(device.path, 0, 8)
            if one is keep:
                before = read(device.path)
    full = open_device(ours, greedy).path
    assert write(full, 0, POOL // MIB, ok=(1,)) == 1, "the pool did not fill up"
    ours.check()

    with refused(ResourceExhausted, "full"):
        create(ours, "more", type="thin")
    with refused(ResourceExhausted, "full"):
        snapshot(ours, "snap", keep)
    with in_time():
        assert listed_names(ours) == ["greedy", "keep", "spare"]
        assert reasons(ours, keep) == ["PoolFull"]
        assert "PoolAlmostFull" in storage_reasons(ours)
    with in_time(), opened(ours, keep) as device:
        assert read(device.path) == before

    with in_time():
        delete(ours, spare)
    write(full, 20, 4)
    assert reasons(ours, keep) == []

    group.lvm.run("lvextend", "-qq", "-L", "+16M", f"{group.name}/{group.pool}")
    write(full, 0, POOL // MIB)
    ours.close_device(greedy.handle)
    with opened(ours, keep) as device:
        assert read(device.path) == before
    ours.check()
    more, snap = create(ours, "more", type="thin"), snapshot(ours, "snap", keep)
    delete(ours, snap, more, keep, greedy)


def test_snapshots_can_be_deleted_while_the_pool_is_full(
    backend_on: Make, new_group: NewGroup, impatient_pool: None
) -> None:
    """Each deletion gives back what the volume has written since, and then the volume can be written again."""
    group = new_group(disks=1, size=128 * MIB, pool=POOL)
    ours = backend_on(group, pool_full_percent=100)
    one = create(ours, "one", POOL, type="thin")
    with opened(ours, one) as device:
        write(device.path, 0, 16)
        first, second = snapshot(ours, "first", one), snapshot(ours, "second", one)
        assert write(device.path, 0, POOL // MIB, ok=(1,)) == 1, "the pool did not fill up"

        with in_time():
            delete(ours, first, second)
        assert [found.stamp.name for found in ours.list_snapshots(PageRequest()).items] == []
        write(device.path, 0, 8)
    delete(ours, one)


def test_a_pool_that_is_nearly_full_refuses_new_volumes_and_its_volumes_keep_working(backend: Make) -> None:
    ours = backend(pool_full_percent=40)
    one = create(ours, "one", 2 * POOL, type="thin")
    with opened(ours, one) as device:
        write(device.path, 0, 24)
        ours.check()

        asked: list[Callable[[], object]] = [
            lambda: create(ours, "more", type="thin"),
            lambda: snapshot(ours, "snap", one),
            lambda: copy(ours, "two", one, type="thin"),
            lambda: expand(ours, one, 3 * POOL),
        ]
        for ask in asked:
            with refused(ResourceExhausted, "from 40 % on"):
                ask()
        assert listed_names(ours) == ["one"]
        assert storage_reasons(ours) == ["PoolAlmostFull"]
        assert reasons(ours, one) == []
        write(device.path, 24, 2)
    delete(ours, one)
