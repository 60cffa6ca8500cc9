"""What a filesystem has freed is given back to the storage, by real discards on real loop devices."""

from __future__ import annotations

import itertools
import os
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from csi_multi.commands import cli
from csi_multi.contract import Busy, CommandFailed, FailedPrecondition, Result
from csi_multi.node import device_records, trim
from csi_multi.node.device_records import DeviceRecord, VolumeKey
from csi_multi.node.trim_schedule import TrimSchedule

pytestmark = pytest.mark.root

MIB = 1 << 20
SIZES = {"ext4": 64 * MIB, "xfs": 320 * MIB, "btrfs": 200 * MIB}
DAY = 24 * 3600
DAILY = {"trim": "daily"}


@pytest.fixture(autouse=True)
def own_notes(world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(trim, "NOTES", tmp_path / "trim-notes")
    yield
    world.host.replaced.clear()
    for handle in ("v1", "v2"):
        if world.backend.image(handle).exists():
            world.unstage(handle)


def record(world: Any, handle: str = "v1") -> DeviceRecord:
    (found,) = device_records.of_volume(VolumeKey.of(world.backend, handle))
    return found


def allocated(world: Any, handle: str = "v1") -> int:
    return world.backend.image(handle).stat().st_blocks * 512


def fill_and_free(directory: Path, size: int = 16 * MIB) -> None:
    """Write a file of random bytes to the disk, and delete it."""
    file = directory / "file"
    file.write_bytes(os.urandom(size))
    os.sync()
    file.unlink()
    descriptor = os.open(directory, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
    os.sync()


@pytest.mark.parametrize("fs", list(SIZES))
def test_what_was_deleted_is_given_back_to_the_storage(world: Any, fs: str) -> None:
    staging = world.stage(world.volume(size=SIZES[fs]), fs=fs, context=DAILY)
    fill_and_free(staging)
    before = allocated(world)

    assert before > 16 * MIB
    assert trim.trim(world.host, record(world)) >= 16 * MIB
    assert allocated(world) < before - 15 * MIB


def test_a_large_filesystem_is_trimmed_in_parts(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trim, "PART", 16 * MIB)
    staging = world.stage(world.volume(size=64 * MIB), context=DAILY)
    fill_and_free(staging)

    assert trim.trim(world.host, record(world)) >= 16 * MIB
    assert world.host.commands.count("ionice") == 4


def test_a_read_only_mount_is_not_trimmed(world: Any) -> None:
    world.stage(world.volume())
    world.unstage()
    world.stage(mode="SINGLE_NODE_READER_ONLY", context=DAILY)

    assert record(world).trim == 0
    with pytest.raises(FailedPrecondition, match="mounted for writing"):
        trim.trim(world.host, record(world))


def test_a_raw_block_volume_is_not_trimmed(world: Any) -> None:
    world.stage(world.volume(), fs=None, context=DAILY)

    assert record(world).trim == 0


def test_one_trim_runs_at_a_time(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    world.stage(world.volume(), context=DAILY)
    found, began, may_end = record(world), threading.Event(), threading.Event()
    real = world.host.run

    def slow(*argv: str, **more: Any) -> Any:
        began.set()
        may_end.wait(30)
        return real(*argv, **more)

    monkeypatch.setattr(world.host, "run", slow)
    thread = threading.Thread(target=trim.trim, args=(world.host, found))
    thread.start()
    began.wait(30)
    with pytest.raises(Busy, match="another volume is being trimmed"):
        trim.trim(world.host, found)
    may_end.set()
    thread.join()

    assert trim.trim(world.host, found) >= 0


def test_unstaging_waits_for_the_part_that_runs_and_no_other_follows(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trim, "PART", 4 * MIB)
    world.stage(world.volume(size=64 * MIB), context=DAILY)
    began, parts, real = threading.Event(), [], world.host.run

    def slow(*argv: str, **more: Any) -> Any:
        if argv[0] != "ionice":
            return real(*argv, **more)
        with os.scandir(argv[-1]):  # as fstrim, it keeps the mount busy
            began.set()
            time.sleep(0.2)
            parts.append(argv)
            return real(*argv, **more)

    monkeypatch.setattr(world.host, "run", slow)
    thread = threading.Thread(target=trim.trim, args=(world.host, record(world)))
    thread.start()
    began.wait(30)
    world.unstage()
    thread.join()

    assert len(parts) < 4
    assert (world.mounted(), world.loops()) == ([], [])


def test_a_volume_is_trimmed_once_per_interval_at_a_moment_of_its_own(world: Any) -> None:
    world.stage(world.volume(), context=DAILY)
    now = [1e9]
    schedule = TrimSchedule(world.host, "test", lambda: now[0])
    times = []
    for _ in range(4 * 24):
        schedule.trim_due()
        if world.host.commands.count("ionice") > len(times):
            times.append(now[0])
        now[0] += DAY / 24

    assert len(times) in (3, 4)
    assert {round(later - earlier) for earlier, later in itertools.pairwise(times)} == {DAY}


def test_a_driver_that_starts_makes_up_for_what_was_due_and_repeats_nothing(world: Any) -> None:
    world.stage(world.volume(), context=DAILY)
    now = [1e9]
    TrimSchedule(world.host, "test", lambda: now[0]).trim_due()
    now[0] += 2 * DAY
    for _ in range(3):  # each is another process
        TrimSchedule(world.host, "test", lambda: now[0]).trim_due()

    assert world.host.commands.count("ionice") == 1


def test_volumes_of_other_drivers_and_of_classes_without_it_are_not_trimmed(world: Any) -> None:
    world.stage(world.volume("v1"))
    world.stage(world.volume("v2"), context=DAILY)
    now = [1e9]
    for driver in ("another", "test"):
        schedule = TrimSchedule(world.host, driver, lambda: now[0])
        schedule.trim_due()
        now[0] += 2 * DAY
        schedule.trim_due()

    assert [argv[-1] for argv in world.host.calls if argv[0] == "ionice"] == [str(world.staging("v2"))]


def test_a_device_without_discards_is_told_once_per_interval(
    world: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world.stage(world.volume(), context=DAILY)
    result = Result(1, "", "fstrim: /x: the discard operation is not supported")

    def refuse(*argv: str, **_: Any) -> Result:
        raise CommandFailed(argv, result)

    world.host.replaced["ionice"] = refuse
    now = [1e9]
    schedule = TrimSchedule(world.host, "test", lambda: now[0])
    schedule.trim_due()
    now[0] += DAY
    for _ in range(3):
        schedule.trim_due()

    assert [one.message for one in caplog.records if "takes no discards" in one.message] != []
    assert world.host.commands.count("ionice") == 1


def test_an_operator_trims_a_volume_by_its_id(world: Any, capsys: pytest.CaptureFixture[str]) -> None:
    fill_and_free(world.stage(world.volume(), context={}))

    assert cli.main(["trim", "test/v1"]) == 0
    assert re.fullmatch(r"volume test/v1: \d{8} bytes were given back to the storage\n", capsys.readouterr().out)
    assert cli.main(["trim", "test/v2"]) == 1
    assert "not open on this node" in capsys.readouterr().err
