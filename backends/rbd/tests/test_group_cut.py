"""The members of a group are of one moment, while their volumes are written."""

from __future__ import annotations

import os

import pytest
from csi_multi_rbd.backend import RbdBackend

from csi_multi.contract import Busy

from .ceph import Cluster
from .commands import watched
from .groups import delete_group, group, listed, nothing_left, rbd_group
from .two_writers import BLOCK, NUMBER, number, two_writers
from .volumes import create, image, read

CUTS = 200 if os.environ.get("MATRIX") else 5


def test_two_volumes_that_are_written_in_turn_differ_by_one_write_at_most(
    cluster: Cluster, backend: RbdBackend
) -> None:
    """Every place that a number was written to is in the first volume when it is in the second."""
    with nothing_left(cluster, backend) as (one, other):
        with two_writers(cluster, backend.config.namespace, image(backend, one), image(backend, other)):
            made = [group(backend, f"g{count}", one, other) for count in range(CUTS)]
        for each in made:
            first, second = (read(cluster, backend, member, member.size) for member in each.snapshots)
            assert number(first) - number(second) in (0, 1)
            assert [at for at in range(BLOCK, len(second), BLOCK) if _later(second, first, at)] == []
            delete_group(backend, each)


def _later(second: bytes, first: bytes, at: int) -> bool:
    """Return whether the second volume has a later number in a block than the first, which is written before it."""
    return number(second[at : at + NUMBER]) > number(first[at : at + NUMBER])


def test_a_process_that_has_lost_the_group_to_another_one_leaves_it_alone(
    cluster: Cluster, backend: RbdBackend
) -> None:
    """What has the members' names may be the other one's; whoever has the group at last removes it."""
    where = f"{cluster.pool}/{backend.config.namespace}/{rbd_group(backend, 'g')}"

    def takes_over(command: str) -> None:
        if command.startswith("/usr/bin/python3"):
            cluster.rbd("group", "rm", where)
            cluster.rbd("group", "create", where)

    with nothing_left(cluster, backend) as volumes:
        with watched(after=takes_over), pytest.raises(Busy):
            group(backend, "g", *volumes)
        assert listed(backend) == set()
        assert rbd_group(backend, "g") in cluster.rbd("group", "ls", where.rpartition("/")[0])
        delete_group(backend, group(backend, "g", *volumes))


def test_a_group_of_one_volume_needs_no_bindings(cluster: Cluster, backend: RbdBackend) -> None:
    volume = create(backend, "v")
    with watched() as commands:
        made = group(backend, "g", volume)

    assert [one for one in commands if one.startswith("/usr/bin/python3")] == []
    delete_group(backend, made)
