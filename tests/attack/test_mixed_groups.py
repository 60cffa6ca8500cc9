"""Group snapshots of two backends, of volumes that are written to, by a driver that is killed. Needs root."""

from __future__ import annotations

import itertools
import mmap
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from csi_multi.host import mounts
from csi_multi.host.command import LocalHost
from csi_multi.process.driver_process import DriverProcess
from csi_multi.rpc.client import Client

from .conftest import sweep

pytestmark = [pytest.mark.root, pytest.mark.slow]

MIB = 1 << 20
BLOCK = 4096
LONG = 60.0
CUTS = 200 if os.environ.get("MATRIX") else 20
MODE = {"access_mode": {"mode": "SINGLE_NODE_WRITER"}}
BEST_EFFORT = {"crashConsistency": "best-effort"}

CONFIG = """
driver: {{name: groups.csi-multi.example, node: n1, log_level: info}}
backends:
  one: {{kind: loop, directory: {directory}/disk/one, reserve_percent: 0}}
  two: {{kind: loop, directory: {directory}/disk/two, reserve_percent: 0}}
"""

# The driver, with notes of its own. DIE_AT=3 kills it at its third copy, `mark` when the group's mark is to be deleted;
# WAIT_AT=3 makes its third copy wait for the file `go`.
PROGRAM = """
import os, pathlib, signal, sys, time
from csi_multi.commands import cli
from csi_multi.node import freeze_notes
from csi_multi_loop.client import Client
from csi_multi_loop.backend import LoopBackend

copies, copy, delete = 0, Client.copy, LoopBackend.delete_snapshot
die_at, wait_at = os.environ.get("DIE_AT", ""), os.environ.get("WAIT_AT", "")
directory = pathlib.Path({directory!r})

def counted(*words, **options):
    global copies
    copies += 1
    if die_at == str(copies):
        os.kill(os.getpid(), signal.SIGKILL)
    if wait_at == str(copies):
        (directory / "copying").touch()
        while not (directory / "go").exists():
            time.sleep(0.02)
    return copy(*words, **options)

def mortal(self, handle, secrets):
    if die_at == "mark" and handle.endswith("-pending"):
        os.kill(os.getpid(), signal.SIGKILL)
    return delete(self, handle, secrets)

freeze_notes.NOTES = directory / "notes"
Client.copy, LoopBackend.delete_snapshot = counted, mortal
sys.exit(cli.main())
"""

# Writes 1 into the first file, 1 into the second, 2 into the first and so on, each durable before the next.
WRITER = """
import mmap, os, sys
block = mmap.mmap(-1, 4096)
files = [os.open(path, os.O_WRONLY | os.O_DIRECT | os.O_DSYNC) for path in sys.argv[1:]]
number = 0
while True:
    number += 1
    block[:8] = number.to_bytes(8, "big")
    for file in files:
        os.pwrite(file, block, 0)
"""


class World:
    """A driver with two instances on one filesystem that can share blocks, and a volume of each."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._program = (sys.executable, "-c", PROGRAM.format(directory=str(directory)))
        self._drivers: list[DriverProcess] = []
        self.client: Client
        self.volumes: list[str] = []
        self.writers: list[subprocess.Popen[bytes]] = []

    def start(self, **environment: str) -> DriverProcess:
        config = CONFIG.format(directory=self.directory)
        self._drivers.append(
            DriverProcess(self.directory, config, program=self._program, environment={**os.environ, **environment})
        )
        self.client = self._drivers[-1].start()
        self.client.timeout = LONG
        return self._drivers[-1]

    def kill(self) -> None:
        self.client.close()
        self._drivers[-1].kill()

    def died(self) -> None:
        assert self._drivers[-1].process.wait(LONG) == -signal.SIGKILL
        self.client.close()

    def volume(self, instance: str, *, block: bool = False) -> Path:
        """Create, stage and publish a volume; return where it is."""
        access: dict[str, Any] = {"block": {}} if block else {"mount": {"fs_type": "ext4"}}
        capability = {**MODE, **access}
        made = self.client.CreateVolume(
            name=f"v{len(self.volumes)}",
            parameters={"backend": instance},
            capacity_range={"required_bytes": 64 * MIB},
            volume_capabilities=[capability],
        ).volume
        self.volumes.append(made.volume_id)
        staging, target = self.paths(made.volume_id)
        staging.mkdir()
        use = {"volume_id": made.volume_id, "staging_target_path": str(staging), "volume_capability": capability}
        self.client.NodeStageVolume(**use, volume_context=made.volume_context)
        self.client.NodePublishVolume(**use, target_path=str(target), volume_context=made.volume_context)
        return target

    def paths(self, volume: str) -> tuple[Path, Path]:
        """Return where a volume is staged and published."""
        number = self.volumes.index(volume)
        return self.directory / f"staging-{number}", self.directory / f"target-{number}"

    def write(self, *files: Path) -> None:
        """Begin to write increasing numbers into all files, alternately."""
        self.writers.append(subprocess.Popen([sys.executable, "-c", WRITER, *map(str, files)]))

    def cut(self, name: str | None = None, parameters: Any = None) -> Any:
        return self.client.CreateVolumeGroupSnapshot(
            name=name or "g", source_volume_ids=self.volumes, parameters=parameters or {}
        ).group_snapshot

    def delete(self, group: Any) -> None:
        members = [one.snapshot_id for one in group.snapshots]
        self.client.DeleteVolumeGroupSnapshot(group_snapshot_id=group.group_snapshot_id, snapshot_ids=members)

    def snapshots(self) -> list[str]:
        return [entry.snapshot.snapshot_id for entry in self.client.ListSnapshots().entries]

    def image(self, snapshot_id: str) -> Path:
        instance, _, leaf = snapshot_id.split("/")
        return self.directory / "disk" / instance / "snapshots" / leaf / "image"

    def close(self) -> None:
        (self.directory / "go").touch()
        for writer in self.writers:
            writer.kill()
        if self._drivers[-1].process.poll() is not None:
            self.start()  # which thaws
        for writer in self.writers:
            writer.wait(LONG)
        for volume in self.volumes:
            staging, target = self.paths(volume)
            self.client.NodeUnpublishVolume(volume_id=volume, target_path=str(target))
            self.client.NodeUnstageVolume(volume_id=volume, staging_target_path=str(staging))
        self.client.close()
        self._drivers[-1].stop()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    host, disk, image = LocalHost(), tmp_path / "disk", tmp_path / "disk.image"
    with image.open("wb") as file:
        file.truncate(1024 * MIB)
    host.run("mkfs.xfs", "-q", str(image))
    disk.mkdir()
    host.run("mount", "-o", "loop", str(image), str(disk))
    for name in ("one", "two"):
        (disk / name).mkdir()
    made = World(tmp_path)
    made.start()
    try:
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


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def now(file: Path) -> int:
    """Return the number that is in a file now."""
    descriptor, block = os.open(file, os.O_RDONLY | os.O_DIRECT), mmap.mmap(-1, BLOCK)
    os.preadv(descriptor, [block], 0)
    os.close(descriptor)
    return int.from_bytes(block[:8], "big")


def advances(file: Path) -> None:
    """Wait until the writer of a file goes on."""
    before = now(file)
    until(lambda: now(file) > before)


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
    group = world.cut()

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
    assert "is thawed after" in (world.directory / "csi.log").read_text()
    assert len(world.cut().snapshots) == 2


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


def test_the_log_says_how_long_each_member_was_frozen(world: World, files: list[Path]) -> None:
    world.cut()
    log = (world.directory / "csi.log").read_text()

    for volume in world.volumes:
        assert any("frozen for its group" in line and volume in line for line in log.splitlines())


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
