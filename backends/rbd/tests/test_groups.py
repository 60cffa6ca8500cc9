"""Group snapshots on a real cluster: all members or none, whatever happens in between."""

from __future__ import annotations

from contextlib import suppress

import msgspec
import pytest
from csi_multi_rbd import labels
from csi_multi_rbd.backend import RbdBackend
from csi_multi_rbd.config import Config, GroupSnapshotParameters
from csi_multi_rbd.pool_rules import OtherPool

from csi_multi.contract import (
    AlreadyExists,
    FailedPrecondition,
    GroupSnapshotRequest,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    Setting,
    Unavailable,
)
from csi_multi.core.idempotent import create_group_snapshot

from .ceph import Cluster
from .commands import Died, dies, fails, once, watched
from .groups import delete_group, found, group, group_request, listed, members, nothing_left, rbd_group
from .volumes import NONE, copy, create, delete, everything, image, read, retried, snapshot, stamp, write

EIO, EDQUOT = 5, 122
STEPS = (
    "rbd group create",
    "rbd group image add",
    "rbd snap create",
    "rbd group snap create",
    "rbd clone",
    "rbd image-meta set",
    "/usr/bin/python3",
    "rbd group snap ls",
    "rbd import",
    "rbd group rm",
)


def test_members_hold_what_their_volumes_held_and_outlive_them(cluster: Cluster, backend: RbdBackend) -> None:
    with nothing_left(cluster, backend) as (one, other):
        write(cluster, backend, one, b"one")
        write(cluster, backend, other, b"other", 9)
        made = group(backend, "g", one, other)
        write(cluster, backend, one, b"two")

        assert [one.source for one in made.snapshots] == ["v", "w"]
        assert read(cluster, backend, made.snapshots[0], 3) == b"one"
        assert read(cluster, backend, made.snapshots[1], 5, 9) == b"other"
        restored = copy(backend, "restored", made.snapshots[0])
        delete_group(backend, made)
        assert read(cluster, backend, restored, 3) == b"one"
        delete(backend, restored)


def test_a_group_of_rbd_exists_only_while_the_group_is_made(cluster: Cluster, backend: RbdBackend) -> None:
    with nothing_left(cluster, backend) as volumes:
        made = group(backend, "g", *volumes)
        left = everything(cluster, backend)
        delete_group(backend, made)

    assert [one for one in left if one.startswith("group ") or "(group)" in one or "(user)" in one] == []


@pytest.mark.parametrize("step", STEPS)
def test_a_driver_that_dies_leaves_nothing_that_the_next_one_does_not_finish(
    cluster: Cluster, config: Config, setting: Setting, step: str
) -> None:
    first, second = RbdBackend(config, setting), RbdBackend(config, setting)
    with nothing_left(cluster, second) as volumes:
        with watched(before=dies(step)), pytest.raises(Died):
            group(first, "g", *volumes)
        first.close()
        shown = listed(second)

        made = retried(lambda: create_group_snapshot(second, group_request(second, "g", *volumes)))
        assert shown in (set(), members(made))
        assert found(second, made) == listed(second) == members(made)
        delete_group(second, made)
    second.close()


@pytest.mark.parametrize(("step", "status"), [*((step, EIO) for step in STEPS[:-1]), ("rbd clone", EDQUOT)])
def test_a_creation_that_fails_leaves_nothing(cluster: Cluster, backend: RbdBackend, step: str, status: int) -> None:
    with nothing_left(cluster, backend) as volumes:
        with watched(before=once(fails(step, status))), pytest.raises((Unavailable, ResourceExhausted)):
            group(backend, "g", *volumes)

        assert listed(backend) == set()


def test_half_a_group_is_never_shown(cluster: Cluster, config: Config, setting: Setting) -> None:
    first, second = RbdBackend(config, setting), RbdBackend(config, setting)
    volumes = create(first, "v"), create(first, "w")
    with watched(before=dies("/usr/bin/python3")), pytest.raises(Died):
        group(first, "g", *volumes)
    second.resume()

    handles = [one.rpartition("-x-")[2] for one in everything(cluster, second) if one.startswith("image csi-snap-")]
    assert len(handles) == 2
    assert listed(second) == set()
    for one in handles:
        with pytest.raises(NotFound):
            second.get_snapshot(f"x-{one}")
        with pytest.raises(NotFound):
            second.delete_snapshot(f"x-{one}", NONE)
    with pytest.raises(NotFound):
        second.find_group_snapshot("g")
    first.close()
    second.close()


@pytest.mark.parametrize("step", ["rbd status", "rbd trash mv"])
def test_a_deletion_that_is_interrupted_is_finished_by_the_next_one(
    cluster: Cluster, config: Config, setting: Setting, step: str
) -> None:
    first, second = RbdBackend(config, setting), RbdBackend(config, setting)
    with nothing_left(cluster, second) as volumes:
        made = group(first, "g", *volumes)
        for count in range(1, 4):
            with watched(after=dies(step) if count == 1 else dies("rbd trash mv")), pytest.raises(Died):
                delete_group(first, made)
            assert found(second, made) in (set(), members(made))
            assert listed(second) in (set(), members(made))
            if count == 1 and step == "rbd status":
                break
        with suppress(NotFound):  # the last one died after its last step
            delete_group(second, made)
        with pytest.raises(NotFound):
            delete_group(second, made)
    first.close()
    second.close()


def test_a_member_is_deleted_with_its_group_only(backend: RbdBackend) -> None:
    made = group(backend, "g", create(backend, "v"))
    with pytest.raises(InvalidArgument, match="'g'"):
        backend.delete_snapshot(made.snapshots[0].handle, NONE)

    assert found(backend, made) == members(made)


def test_a_repeated_request_gets_its_group_and_another_one_is_a_conflict(cluster: Cluster, backend: RbdBackend) -> None:
    with nothing_left(cluster, backend) as volumes:
        made = group(backend, "g", *volumes)
        before = everything(cluster, backend)
        with pytest.raises(AlreadyExists) as error:
            group(backend, "g", *volumes)
        with pytest.raises(AlreadyExists):
            create_group_snapshot(backend, group_request(backend, "g", volumes[0]))

        assert error.value.existing == made == backend.find_group_snapshot("g")
        assert everything(cluster, backend) == before
        delete_group(backend, made)


def test_a_volume_that_is_made_anew_is_not_the_source_of_an_older_group(backend: RbdBackend) -> None:
    volume = create(backend, "v")
    made = group(backend, "g", volume)
    delete(backend, volume)
    create(backend, "v")

    [member] = backend.get_group_snapshot(made.handle).snapshots
    assert member.source != "v"
    assert backend.get_snapshot(member.handle) == member


def test_a_group_with_a_volume_that_does_not_exist_is_not_made(cluster: Cluster, backend: RbdBackend) -> None:
    with nothing_left(cluster, backend) as (one, other):
        delete(backend, create(backend, "gone"))
        request = GroupSnapshotRequest(stamp=stamp(backend, "g"), sources=(one.handle, "gone", other.handle))
        with pytest.raises(NotFound, match="gone"):
            backend.create_group_snapshot(request)

        assert listed(backend) == set()


def test_volumes_whose_writers_take_no_lock_are_refused(cluster: Cluster, backend: RbdBackend) -> None:
    with nothing_left(cluster, backend) as (one, _):
        plain = create(backend, "plain", image_features="layering")
        with pytest.raises(FailedPrecondition, match="exclusive-lock"):
            group(backend, "g", one, plain)
        delete_group(backend, group(backend, "alone", plain))
        delete(backend, plain)


def test_an_image_in_a_group_of_somebody_else_is_refused_and_stays_in_it(cluster: Cluster, backend: RbdBackend) -> None:
    volumes = create(backend, "v"), create(backend, "w")
    where = f"{cluster.pool}/{backend.config.namespace}"
    cluster.rbd("group", "create", f"{where}/theirs")
    cluster.rbd("group", "image", "add", f"{where}/theirs", f"{where}/{image(backend, volumes[1])}")

    with pytest.raises(FailedPrecondition, match="group that this driver did not create"):
        group(backend, "g", *volumes)
    assert image(backend, volumes[1]) in cluster.rbd("group", "image", "ls", f"{where}/theirs")
    assert listed(backend) == set()


def test_a_group_that_a_dead_driver_left_does_not_keep_its_volumes(
    cluster: Cluster, config: Config, setting: Setting
) -> None:
    """Neither from other groups, nor from being deleted."""
    first, second = RbdBackend(config, setting), RbdBackend(config, setting)
    volumes = create(first, "v"), create(first, "w")
    with watched(before=dies("rbd clone")), pytest.raises(Died):
        group(first, "dead", *volumes)
    first.close()

    made = group(second, "g", *volumes)
    assert found(second, made) == members(made)
    delete_group(second, made)
    with watched(before=dies("rbd clone")), pytest.raises(Died):
        group(second, "dead", *volumes)
    third = RbdBackend(config, setting)
    delete(third, *volumes)
    third.resume()
    assert everything(cluster, third) == []
    second.close()
    third.close()


def test_what_stays_of_a_group_that_nobody_asks_for_again_is_removed_after_a_while(
    cluster: Cluster, config: Config, setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    from csi_multi_rbd import group_members

    first, second = RbdBackend(config, setting), RbdBackend(config, setting)
    with nothing_left(cluster, second) as volumes:
        with watched(before=dies("rbd import")), pytest.raises(Died):
            group(first, "g", *volumes)
        first.close()
        second.resume()
        kept = [one for one in everything(cluster, second) if "csi-snap" in one]
        monkeypatch.setattr(group_members, "ABANDONED_SECONDS", 0.0)
        second.check()

    assert len(kept) == 2
    second.close()


def test_members_are_told_from_other_snapshots_by_their_names(backend: RbdBackend) -> None:
    volume = create(backend, "v")
    made = group(backend, "g", volume)
    alone = snapshot(backend, "s", volume)

    assert rbd_group(backend, "g") == labels.name_prefix(labels.GROUP, "multi.csi.test", "c") + made.handle
    assert listed(backend) == {*members(made), alone.handle}
    delete(backend, alone)
    assert listed(backend) == members(made)


def test_a_class_may_name_no_other_pool(backend: RbdBackend) -> None:
    request = GroupSnapshotRequest(
        stamp=stamp(backend, "g"), sources=("v",), parameters=GroupSnapshotParameters(pool="other")
    )
    with pytest.raises(InvalidArgument, match="'pool'"):
        backend.create_group_snapshot(request)


def test_volumes_in_two_pools_are_refused(config: Config, setting: Setting) -> None:
    pools = {"other": OtherPool(topology={"zone": "b"}, nodes=("b-*",))}
    backend = RbdBackend(msgspec.structs.replace(config, topology={"zone": "a"}, pools=pools), setting)
    request = GroupSnapshotRequest(stamp=stamp(backend, "g"), sources=("v", "other/w"))
    with pytest.raises(FailedPrecondition, match="2 pools"):
        backend.create_group_snapshot(request)

    backend.close()
