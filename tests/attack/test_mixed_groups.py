"""Group snapshots of two backends, of volumes that are written to, by a driver that is killed. Needs root."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from csi_multi.host import mounts
from csi_multi.host.command import LocalHost
from tests.attack.conftest import sweep
from tests.attack.group_world import BLOCK, LONG, MIB, World, advances, until

pytestmark = [pytest.mark.root, pytest.mark.slow]

CUTS = 200 if os.environ.get("MATRIX") else 20
BEST_EFFORT = {"crashConsistency": "best-effort"}
BOTH = pytest.mark.parametrize("world", ["all", "cluster"], indirect=True)
EACH_IN_MATRIX = BOTH if os.environ.get("MATRIX") else pytest.mark.parametrize("world", ["cluster"], indirect=True)


@pytest.fixture
def world(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    host, disk, image = LocalHost(), tmp_path / "disk", tmp_path / "disk.image"
    with image.open("wb") as file:
        file.truncate(1024 * MIB)
    host.run("mkfs.xfs", "-q", str(image))
    disk.mkdir()
    host.run("mount", "-o", "loop", str(image), str(disk))
    for name in ("one", "two"):
        (disk / name).mkdir()
    made = World(tmp_path, cluster=getattr(request, "param", "all") == "cluster")
    try:
        made.start()
        yield made
        made.close()
    finally:
        sweep(tmp_path)
        host.run("umount", str(disk), ok=(0, 32))  # the kernel may release a loop device on it a moment later
    assert [one.target for one in mounts.table() if one.target.startswith(f"{tmp_path}/")] == []


@pytest.fixture
def files(world: World) -> list[Path]:
    """A file of one block on a mounted volume of each instance."""
    made = [world.volume(instance) / "number" for instance in ("one", "two")]
    for file in made:
        file.write_bytes(bytes(BLOCK))
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
    return made


@pytest.fixture
def numbers(world: World, files: list[Path]) -> Callable[[Any], list[int]]:
    """Read the numbers of both files from the members of a group: a file that is overwritten stays where it is."""
    places = []
    for file in files:
        extent = LocalHost().run("filefrag", "-b4096", "-v", str(file)).stdout.splitlines()[3].split()
        places.append(int(extent[3].rstrip(".:")) * BLOCK)

    def read(snapshots: Any) -> list[int]:
        by_source = {one.source_volume_id: world.image(one.snapshot_id) for one in snapshots}
        found = []
        for volume, place in zip(world.volumes, places, strict=True):
            with by_source[volume].open("rb") as image:
                image.seek(place)
                found.append(int.from_bytes(image.read(8), "big"))
        return found

    return read


@BOTH
def test_all_members_are_of_one_moment(world: World, files: list[Path], numbers: Any) -> None:
    world.write(*files)
    advances(files[1])

    found = []
    for number in range(CUTS):
        group = world.cut(f"g{number}")
        found.append(numbers(group.snapshots))
        world.delete(group)
        advances(files[1])

    assert [pair for pair in found if pair[0] - pair[1] not in (0, 1)] == []
    assert len({first for first, _ in found}) == CUTS, "the writer went on between the cuts"
    assert world.snapshots() == []


def test_single_snapshots_are_of_several_moments(world: World, files: list[Path], numbers: Any) -> None:
    """What the test above could not find out otherwise: that its writer is fast enough."""
    world.write(*files)
    for count in itertools.count():
        advances(files[1])
        cuts = [
            world.client.CreateSnapshot(name=f"s{count}-{volume[:3]}", source_volume_id=volume).snapshot
            for volume in world.volumes
        ]
        if numbers(cuts)[0] - numbers(cuts)[1] not in (0, 1):
            return
        assert count < CUTS


@BOTH
def test_a_group_is_found_by_its_name_and_id_and_goes_as_one(world: World, files: list[Path], refused: Any) -> None:
    group = world.cut()
    ids = [one.snapshot_id for one in group.snapshots]

    assert sorted(one.source_volume_id for one in group.snapshots) == sorted(world.volumes)
    assert {one.group_snapshot_id for one in group.snapshots} == {group.group_snapshot_id}
    assert sorted(world.snapshots()) == sorted(ids)
    assert world.cut() == group
    world.kill()
    world.start()
    assert world.cut() == group
    found = world.client.GetVolumeGroupSnapshot(group_snapshot_id=group.group_snapshot_id, snapshot_ids=ids)
    assert found.group_snapshot == group
    assert refused(world.client.DeleteSnapshot, snapshot_id=ids[0]).code is grpc.StatusCode.INVALID_ARGUMENT
    world.delete(group)
    assert world.snapshots() == []
    world.delete(group)


@EACH_IN_MATRIX
@pytest.mark.parametrize("moment", ["1", "2", "3", "mark"])
def test_after_a_death_everything_goes_on_and_the_next_try_makes_the_whole_group(
    moment: str, world: World, files: list[Path], numbers: Any, refused: Any
) -> None:
    world.kill()
    world.start(DIE_AT=moment)
    world.write(*files)
    advances(files[1])

    assert refused(world.cut).code is grpc.StatusCode.UNAVAILABLE
    world.died()
    world.start()
    advances(files[0])
    advances(files[1])
    group = world.cut_again()

    assert len(group.snapshots) == 2
    assert len(world.snapshots()) == 2
    assert numbers(group.snapshots)[0] - numbers(group.snapshots)[1] in (0, 1)


def test_a_group_that_is_not_complete_is_not_found_and_can_be_deleted(
    world: World, files: list[Path], refused: Any
) -> None:
    whole = world.cut("whole")
    world.kill()
    world.start(DIE_AT="mark")
    refused(world.cut)
    world.died()
    world.start()
    (unfinished,) = {entry.snapshot.group_snapshot_id for entry in world.client.ListSnapshots().entries} - {
        whole.group_snapshot_id
    }

    refusal = refused(world.client.GetVolumeGroupSnapshot, group_snapshot_id=unfinished, snapshot_ids=[])
    assert refusal.code is grpc.StatusCode.NOT_FOUND
    world.client.DeleteVolumeGroupSnapshot(group_snapshot_id=unfinished, snapshot_ids=[])
    assert sorted(world.snapshots()) == sorted(one.snapshot_id for one in whole.snapshots)


@pytest.fixture
def waiting(world: World, files: list[Path]) -> Callable[[str], Future[Any]]:
    """Begin to cut, with this limit, while both files are written to; the second member's copy waits for `go`."""
    world.kill()
    world.start(WAIT_AT="3")

    def begin(seconds: str) -> Future[Any]:
        world.write(*files)
        advances(files[1])
        answer = ThreadPoolExecutor(1).submit(world.cut, parameters={"freezeSeconds": seconds})
        until((world.directory / "copying").exists)
        return answer

    return begin


def given_up(world: World, answer: Future[Any]) -> str:
    """Let the copy go on, and return why the group was refused."""
    (world.directory / "go").touch()
    error = answer.exception(LONG)
    assert isinstance(error, grpc.RpcError)
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    return error.details() or ""


def test_a_group_that_takes_too_long_is_given_up_and_leaves_nothing(
    world: World, files: list[Path], waiting: Any
) -> None:
    answer = waiting("5")
    advances(files[1])

    assert "not cut within 5 s" in given_up(world, answer)
    assert world.snapshots() == []
    assert "is thawed after" in world.log
    assert len(world.cut().snapshots) == 2


@pytest.mark.parametrize("world", ["cluster"], indirect=True)
def test_the_node_ends_the_freeze_by_itself_when_the_controller_has_died(
    world: World, files: list[Path], waiting: Any
) -> None:
    waiting("5")
    world.kill_controller()
    advances(files[1])
    (world.directory / "go").touch()
    world.start_controller()

    until(lambda: "CreateVolumeGroupSnapshot ends" in world.log)
    assert world.snapshots() == []
    assert len(world.cut().snapshots) == 2


@pytest.mark.parametrize("world", ["cluster"], indirect=True)
def test_the_next_controller_finds_the_group_that_the_node_has_made(world: World, waiting: Any, numbers: Any) -> None:
    waiting("60")
    world.kill_controller()
    (world.directory / "go").touch()
    until(lambda: "a group snapshot is complete" in world.log)
    world.start_controller()
    made = world.snapshots()
    group = world.cut()

    assert sorted(made) == sorted(one.snapshot_id for one in group.snapshots)
    assert numbers(group.snapshots)[0] - numbers(group.snapshots)[1] in (0, 1)


def test_a_group_is_given_up_when_another_program_thaws_a_member(world: World, files: list[Path], waiting: Any) -> None:
    answer = waiting("60")
    LocalHost().run("fsfreeze", "--unfreeze", str(files[1].parent))

    assert "was thawed by another program" in given_up(world, answer)
    assert world.snapshots() == []


def test_a_second_group_of_the_same_volumes_is_refused_meanwhile(world: World, waiting: Any, refused: Any) -> None:
    answer = waiting("60")

    assert refused(lambda _: world.cut("other")).code is grpc.StatusCode.ABORTED
    assert refused(world.cut).code is grpc.StatusCode.ABORTED
    (world.directory / "go").touch()
    assert len(answer.result(LONG).snapshots) == 2
    assert len(world.snapshots()) == 2


def test_the_log_and_the_metrics_say_how_long_each_member_was_frozen(world: World, files: list[Path]) -> None:
    world.cut()
    metrics = world.metrics()

    for volume in world.volumes:
        assert any("frozen for its group" in line and volume in line for line in world.log.splitlines())
        freeze = f'{{backend="{volume[:3]}",operation="group",program="freeze"}}'
        assert f"csi_multi_storage_call_seconds_count{freeze} 1.0" in metrics


def test_raw_volumes_that_nothing_suspends_are_refused_unless_the_class_says_best_effort(
    world: World, refused: Any
) -> None:
    for instance in ("one", "two"):
        world.volume(instance, block=True)

    refusal = refused(world.cut)
    assert refusal.code is grpc.StatusCode.FAILED_PRECONDITION
    assert "crashConsistency: best-effort" in refusal.text
    assert world.snapshots() == []
    assert len(world.cut(parameters=BEST_EFFORT).snapshots) == 2
    label = world.image(world.snapshots()[0]).with_name("snapshot.json").read_text()
    assert "best-effort" in label


def test_one_raw_volume_may_be_written_while_all_others_stand_still(world: World) -> None:
    target = world.volume("one", block=True)
    file = world.volume("two") / "number"
    file.write_bytes(bytes(BLOCK))
    world.write(target, file)
    advances(file)

    assert len(world.cut().snapshots) == 2
    advances(file)
