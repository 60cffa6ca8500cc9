"""A filesystem that a backend has frozen is thawed: at the block's end, in time, and after the death of its process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from csi_multi.config.settings import load_config
from csi_multi.contract import Busy, Device, Unavailable
from csi_multi.host import exclusive, mounts
from csi_multi.host.command import LocalHost
from csi_multi.loading.loader import load_instances
from csi_multi.node import device_filesystems, freeze, freeze_notes, frozen_leftovers, thaw
from csi_multi.process import driver_process
from csi_multi.process.driver_process import DriverProcess
from tests.node.freezing import is_frozen

MIB = 1 << 20
LONG = 60.0  # seconds, for what is waited for
pytestmark = pytest.mark.root


def begin_write(target: Path) -> threading.Event:
    """Write and sync a file in a thread of its own; return what is set when that is done."""
    done = threading.Event()

    def write() -> None:
        with contextlib.suppress(OSError):
            with (target / "probe").open("w") as file:
                file.write("x")
                file.flush()
                os.fsync(file.fileno())
            done.set()

    threading.Thread(target=write, daemon=True).start()
    return done


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture(autouse=True)
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory for notes that no other driver on this machine looks at."""
    monkeypatch.setattr(freeze_notes, "NOTES", tmp_path / "notes")
    return tmp_path / "notes"


@pytest.fixture
def driver(tmp_path: Path, notes: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DriverProcess]:
    """A driver with these notes and a loop backend, whose copies say that they have begun, and take an hour."""
    program = f"""
import pathlib, sys, time
from csi_multi.commands import cli
from csi_multi.node import freeze_notes
from csi_multi_loop.client import Client

freeze_notes.NOTES = pathlib.Path({str(notes)!r})
Client.can_reflink = lambda *_: False
Client.copy = lambda *_, **__: (pathlib.Path({str(tmp_path / "copying")!r}).touch(), time.sleep(3600))
sys.exit(cli.main())
"""
    monkeypatch.setattr(driver_process, "START_LIMIT", 2 * LONG)
    (tmp_path / "volumes").mkdir()
    config = f"""
driver: {{name: thaw.csi-multi.example, node: n1, default_backend: disk}}
backends: {{disk: {{kind: loop, directory: {tmp_path / "volumes"}}}}}
"""
    made = DriverProcess(tmp_path, config, program=(sys.executable, "-c", program))
    yield made
    if made.process.poll() is None:
        made.kill()
    frozen_leftovers.thaw_all(LocalHost())  # after a failed test


@pytest.fixture(params=["ext4", "xfs", "btrfs"])
def mounted(world: Any, request: Any) -> Iterator[Path]:
    """A staged volume of 320 MiB; what a test leaves frozen is thawed."""
    world.volume(size=320 * MIB)
    staging = world.stage(fs=request.param)
    yield staging
    if staging in map(Path, world.mounted()):
        LocalHost().run("fsfreeze", "--unfreeze", str(staging), ok=(0, 1))
        until(lambda: not LocalHost().run("umount", str(staging), ok=(0, 32)).status)  # a writer may have it open
        world.unstage()


@pytest.fixture
def device(mounted: Path, world: Any) -> Path:
    path: Path = world.device().path
    return path


def killed_when_frozen(device: Path, notes: Path) -> None:
    child = f"""
import os, pathlib, signal
from csi_multi.loading.loader import load_instances
from csi_multi.node import freeze, freeze_notes
freeze_notes.NOTES = pathlib.Path({str(notes)!r})
with freeze.frozen(pathlib.Path({str(device)!r})):
    os.kill(os.getpid(), signal.SIGKILL)
"""
    ended = subprocess.run([sys.executable, "-c", child], check=False, timeout=LONG)
    assert ended.returncode == -signal.SIGKILL


def test_it_is_frozen_for_the_block_only(device: Path, mounted: Path, notes: Path) -> None:
    with freeze.frozen(device):
        write = begin_write(mounted)
        assert is_frozen(mounted)
        assert len(os.listdir(notes)) == 1

    assert write.wait(LONG)
    assert not is_frozen(mounted)
    assert os.listdir(notes) == []


@pytest.mark.parametrize("mounted", ["ext4"], indirect=True)
def test_it_is_thawed_when_the_block_fails(device: Path, mounted: Path, notes: Path) -> None:
    with pytest.raises(KeyError), freeze.frozen(device):
        raise KeyError

    assert begin_write(mounted).wait(LONG)
    assert os.listdir(notes) == []


@pytest.mark.parametrize("mounted", ["ext4"], indirect=True)
def test_it_is_thawed_in_time_and_the_copy_is_given_up(device: Path, mounted: Path, notes: Path) -> None:
    with pytest.raises(Unavailable, match=r"was thawed after 0\.2 s, before its copy was complete"):  # noqa: SIM117
        with freeze.frozen(device, 0.2):
            assert begin_write(mounted).wait(LONG)

    assert os.listdir(notes) == []


@pytest.mark.parametrize("mounted", ["ext4"], indirect=True)
def test_one_block_at_a_time_has_it_frozen(device: Path, mounted: Path, notes: Path) -> None:
    with freeze.frozen(device):
        with pytest.raises(Busy, match="is frozen for another copy"), freeze.frozen(device):
            pass
        frozen_leftovers.thaw_all(LocalHost())
        assert is_frozen(mounted)

    assert begin_write(mounted).wait(LONG)


def test_a_device_that_is_not_mounted_is_left_alone(world: Any, notes: Path) -> None:
    world.volume()
    staging = world.stage(fs=None)
    with freeze.frozen(world.device().path):
        assert not notes.exists()
    world.unstage(staging=staging)


@pytest.mark.parametrize("again", [False, True], ids=["at the next start", "by the next freeze"])
def test_it_is_thawed_after_the_death_of_its_process(device: Path, mounted: Path, notes: Path, again: bool) -> None:
    killed_when_frozen(device, notes)
    write = begin_write(mounted)
    assert is_frozen(mounted)

    if again:
        with freeze.frozen(device):
            pass
    else:
        frozen_leftovers.thaw_all(LocalHost())
    assert write.wait(LONG)
    assert os.listdir(notes) == []


def test_it_is_thawed_when_it_was_unmounted_meanwhile(device: Path, mounted: Path, notes: Path, world: Any) -> None:
    killed_when_frozen(device, notes)
    LocalHost().run("umount", str(mounted))
    assert exclusive.is_held(device)

    frozen_leftovers.thaw_all(LocalHost())
    until(lambda: not exclusive.is_held(device))
    assert os.listdir(notes) == []
    world.unstage()


def test_a_filesystem_that_is_mounted_to_be_thawed_has_no_effect_on_the_node(
    device: Path, mounted: Path, notes: Path, world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A superblock of ext4 may ask for a panic of the kernel, and its files may be programs of another user."""
    (found,) = mounts.all_at(mounted)
    killed_when_frozen(device, notes)
    LocalHost().run("umount", str(mounted))
    if found.fs_type == "ext4":
        LocalHost().run("tune2fs", "-e", "panic", str(device))
    seen: list[mounts.MountPoint] = []
    real = thaw._opened

    def watching(device: Device, staging: Path) -> contextlib.AbstractContextManager[int]:
        seen.extend(mounts.all_at(staging))
        return real(device, staging)

    monkeypatch.setattr(thaw, "_opened", watching)
    frozen_leftovers.thaw_all(LocalHost())

    assert [one.fs_type for one in seen] == [found.fs_type]
    assert seen[0].options >= {"nosuid", "nodev", "noexec"}
    assert ("errors=remount-ro" in seen[0].super_options) == (found.fs_type == "ext4")
    world.unstage()


@pytest.mark.parametrize("mounted", ["ext4"], indirect=True)
def test_another_filesystem_at_the_path_is_not_frozen(
    device: Path, mounted: Path, notes: Path, world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The volume is unmounted between the look at the mount table and the freeze."""
    found = mounts.at(mounted)
    LocalHost().run("umount", str(mounted))
    calls: list[int] = []
    monkeypatch.setattr(device_filesystems, "find", lambda _device: [found])
    monkeypatch.setattr(thaw, "call_kernel", lambda _descriptor, request: calls.append(request))

    with pytest.raises(Unavailable, match="was unmounted just now"), freeze.frozen(device):
        pass

    assert calls == []
    assert os.listdir(notes) == []
    world.unstage()


@pytest.mark.parametrize("mounted", ["ext4"], indirect=True)
def test_a_note_of_a_device_that_is_gone_has_no_effect_on_the_one_with_its_number(
    device: Path, mounted: Path, notes: Path, world: Any
) -> None:
    killed_when_frozen(device, notes)
    note = next(notes.iterdir())
    note.write_text(f'["{device}", "1"]\n')

    frozen_leftovers.thaw_all(LocalHost())

    assert is_frozen(mounted)
    assert os.listdir(notes) == []


@pytest.mark.parametrize("mounted", ["ext4"], indirect=True)
def test_what_another_program_froze_stays_frozen(device: Path, mounted: Path, notes: Path) -> None:
    LocalHost().run("fsfreeze", "--freeze", str(mounted))

    with pytest.raises(Unavailable, match=f"fsfreeze --unfreeze {mounted}"), freeze.frozen(device):
        pass
    frozen_leftovers.thaw_all(LocalHost())
    assert is_frozen(mounted)


@pytest.mark.parametrize("mounted", ["ext4"], indirect=True)
def test_a_copy_is_given_up_when_another_program_thaws(device: Path, mounted: Path, notes: Path) -> None:
    with pytest.raises(Unavailable, match="was thawed by another program"), freeze.frozen(device):
        LocalHost().run("fsfreeze", "--unfreeze", str(mounted))

    assert os.listdir(notes) == []


@pytest.mark.parametrize("mounted", ["ext4"], indirect=True)
def test_the_next_driver_thaws_what_a_killed_one_left_frozen(
    device: Path, mounted: Path, notes: Path, driver: DriverProcess
) -> None:
    killed_when_frozen(device, notes)
    write = begin_write(mounted)
    driver.start().close()

    assert write.wait(LONG)


def test_a_driver_that_stops_thaws_what_it_copies(driver: DriverProcess, world: Any, tmp_path: Path) -> None:
    """The copy may take a day, and the next driver may never come."""
    staging, single = tmp_path / "staged", {"access_mode": {"mode": 1}, "mount": {}}
    staging.mkdir()
    client = driver.start()
    request = {"name": "v", "capacity_range": {"required_bytes": 32 * MIB}, "volume_capabilities": [single]}
    volume = client.CreateVolume(**request).volume.volume_id
    staged = {"volume_id": volume, "staging_target_path": str(staging)}
    client.NodeStageVolume(**staged, volume_capability=single)

    def copy() -> None:
        with contextlib.suppress(grpc.RpcError):  # the driver is killed in it
            client.CreateSnapshot(name="s", source_volume_id=volume)

    copying = threading.Thread(target=copy)
    copying.start()
    until((tmp_path / "copying").exists)
    assert is_frozen(staging)

    driver.process.send_signal(signal.SIGTERM)
    until(lambda: not is_frozen(staging))
    driver.kill()
    copying.join(LONG)
    client.close()
    client = driver.start()
    client.NodeUnstageVolume(**staged)
    client.close()


def test_an_instance_gets_the_engine(install: Callable[..., str], tmp_path: Path) -> None:
    install("mem", "from csi_multi_testing.memory import MemoryBackend as Own")
    file = tmp_path / "csi.yaml"
    file.write_text("driver: {name: multi.csi.example.com}\nbackends: {fast: {kind: mem}}")

    assert load_instances(load_config(file), LocalHost()).get("fast").backend.setting.frozen is freeze.frozen
