"""Restores and clones on real LVM that are interrupted: a retry completes them, and nothing is left."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from csi_multi_lvm import block_io, labels
from csi_multi_lvm.backend import LvmBackend

from csi_multi.contract import (
    Busy,
    NotFound,
    PageRequest,
    Setting,
    Snapshot,
    Volume,
)
from csi_multi.host.command import LocalHost

from . import volume_steps
from .faulty import clear, resume_devices
from .group import EXTENT, MIB, Group, Lvm, NewGroup, volume_group
from .volume_steps import (
    Died,
    DyingHost,
    copy,
    create,
    delete,
    fill,
    lv_fields,
    opened,
    read,
    snapshot,
)

pytestmark = pytest.mark.devicemapper

SIZE = 8 * EXTENT
MARK = b"!" * 4096
SOON = 120.0  # seconds, for a process in an emulated guest
Make = Callable[..., LvmBackend]


@pytest.fixture(scope="module")
def group(lvm: Lvm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    with volume_group(lvm, tmp_path_factory.mktemp("killed"), disks=1, size=256 * MIB) as group:
        yield group


@pytest.fixture(autouse=True)
def nobody_hangs(group: Group) -> Iterator[None]:
    yield
    resume_devices(group)
    clear(group)


@pytest.fixture
def noting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Record the progress of a copy after every chunk."""
    monkeypatch.setattr(block_io, "RECORD_INTERVAL", 0.0)
    monkeypatch.setattr(block_io, "CHUNK", EXTENT)


def copied(group: Group, name: str) -> int:
    """Return the recorded progress of a copy, 0 without a record."""
    rows = group.lvm.run("lvs", "--noheadings", "-o", "lv_tags", "-S", f"lv_name=csi-{name}", group.name)
    notes = [tag for row in rows for tag in row.split(",") if tag.startswith("csi.copied=")]
    return min((int(note.partition("=")[2]) for note in notes), default=0)


def kill_in_the_middle(group: Group, name: str, work: Callable[[], object]) -> int:
    """Do it in a process that is killed when it has recorded progress. Return the recorded progress."""
    child = os.fork()
    if child == 0:
        with suppress(BaseException):
            work()
        os._exit(1)
    ends = time.monotonic() + SOON
    while not copied(group, name):
        assert time.monotonic() < ends
    os.kill(child, signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL, "the copy was completed, or failed"
    ends = time.monotonic() + SOON
    while LocalHost().run("pgrep", "-P", "1", "-x", "lvm", ok=(0, 1)).status == 0:
        assert time.monotonic() < ends
        time.sleep(0.05)  # the last command outlives the driver
    return copied(group, name)


BackendOn = Callable[..., LvmBackend]
Torn = tuple[LvmBackend, Volume, Snapshot, int]


@pytest.fixture
def torn(backend_on: Make, group: Group, noting: None) -> Iterator[Torn]:
    """A restore whose driver was killed: the next driver, the source, its snapshot, the recorded progress."""
    ours = backend_on(group)
    one = create(ours, "one", SIZE, type="linear")
    with opened(ours, one, block=False) as device:
        volume_steps.fill(device.path)
    snap = snapshot(ours, "snap", one)
    done = kill_in_the_middle(group, "two", lambda: copy(backend_on(group), "two", snap, type="linear"))
    assert EXTENT <= done < SIZE
    ours = backend_on(group)
    yield ours, one, snap, done
    delete(ours, snap, one)
    assert group.devices() == []


def test_a_copy_is_resumed_where_the_killed_driver_was(torn: Torn, group: Group) -> None:
    ours, one, snap, _ = torn
    half = device_of(group, "two")
    with half.open("r+b") as disk:
        disk.write(MARK)  # a copy that began again would overwrite it
        os.fsync(disk.fileno())
    ours.resume()

    two = copy(ours, "two", snap, type="linear")
    with opened(ours, one, block=False) as device:
        source = read(device.path)
    with opened(ours, two) as device:
        found = read(device.path)
    assert found[: len(MARK)] == MARK
    assert found[len(MARK) :] == source[len(MARK) :]
    delete(ours, two)


def test_an_incomplete_copy_is_not_listed_and_can_be_deleted(torn: Torn, group: Group) -> None:
    ours, one, _, _ = torn
    handle = one.handle.replace("one", "two")

    assert [found.handle for found in ours.list_volumes(PageRequest()).items] == [one.handle]
    for look in (lambda: ours.find_volume("two"), lambda: ours.get_volume(handle), lambda: ours.find_device(handle)):
        with pytest.raises(NotFound):
            look()
    with suppress(NotFound):
        ours.delete_volume(handle, {})
    assert held(group) == ["csi-one", "csis-snap"]
    ours.resume()  # the source was active only to be read


def test_while_an_incomplete_copy_is_open_elsewhere_its_name_is_busy(torn: Torn, group: Group) -> None:
    """Nothing final is answered while something half-made is left: the orchestrator would forget it."""
    ours, one, _, _ = torn
    with device_of(group, "two").open("rb"):
        for act in (lambda: create(ours, "two", SIZE), lambda: copy(ours, "two", one)):
            with pytest.raises(Busy):
                act()
    delete(ours, create(ours, "two", SIZE, type="linear"))
    ours.resume()  # the source was active only to be read


def test_only_abandoned_leftovers_are_removed(torn: Torn, group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """An incomplete copy stays for a day; temporary volumes are removed at once, and the source is deactivated."""
    ours, _, _, _ = torn
    owner = labels.owner_tag(ours.setting.driver, ours.setting.cluster)
    for name in ("csit-gone", "csix-gone", "csit-foreign"):
        words = () if name.endswith("foreign") else ("--addtag", owner)
        group.lvm.run("lvcreate", "-qq", "-an", "-Zn", "-Wn", "-l", "1", "-n", name, *words, group.name)
    ours.resume()
    assert held(group) == ["csi-one", "csi-two", "csis-snap", "csit-foreign"]
    assert [name for name in group.devices() if name.endswith(("one", "snap", "real", "cow"))] == []

    later = time.time() + 25 * 3600
    monkeypatch.setattr(time, "time", lambda: later)
    ours.resume()
    group.lvm.run("lvremove", "-qq", "-y", f"{group.name}/csit-foreign")
    assert held(group) == ["csi-one", "csis-snap"]


def device_of(group: Group, leaf: str) -> Path:
    (name,) = (name for name in group.devices() if name.endswith(f"csi--{leaf}"))
    return Path("/dev/mapper") / name


def held(group: Group) -> list[str]:
    """Return the logical volumes as LVM shows them."""
    return sorted(group.lvm.run("lvs", "--noheadings", "-o", "lv_name", group.name))


@pytest.mark.parametrize("words", [("lvconvert",), ("lvchange", "--deltag", "csi.todo=")])
def test_an_interrupted_copy_is_complete_and_has_integrity_after_the_retry(
    words: tuple[str, ...], five: Group, backend_on: BackendOn, setting: Setting
) -> None:
    """Without integrity the copy begins again; with it, the same logical volume is completed."""
    backend = backend_on(five)
    source = create(backend, "source", EXTENT, type="linear", wipe="zero")
    with opened(backend, source) as device:
        fill(device.path)
        data = read(device.path)
    snap = snapshot(backend, "snap", source)
    dying = backend_on(five, setting=replace(setting, host=DyingHost(*words)))
    with pytest.raises(Died):
        copy(dying, "v", snap, type="raid1", integrity=True)
    before = five.lvm.run("lvs", "--noheadings", "-o", "lv_uuid", f"{five.name}/csi-v")
    five.lvm.run("lvchange", "-qq", "-an", f"{five.name}/csi-v", f"{five.name}/csi-source")  # as after a restart

    volume = copy(backend_on(five), "v", snap, type="raid1", integrity=True)
    said = lv_fields(five, volume, "raidintegritymode", "lv_uuid")
    assert said["raidintegritymode"] == "journal"
    assert (said["lv_uuid"] == before[0]) == (words[0] == "lvchange")
    with opened(backend, volume) as device:
        assert read(device.path) == data
    delete(backend, volume, snap, source)


@pytest.mark.parametrize("kind", ["linear", "thin"])
def test_a_copy_whose_source_was_deleted_in_between_leaves_nothing(
    kind: str, backend_on: BackendOn, new_group: NewGroup, setting: Setting
) -> None:
    """NOT_FOUND is final, and the orchestrator forgets the copy."""
    group = new_group(disks=1, size=256 * MIB, pool=32 * MIB)
    ours = backend_on(group)
    one = create(ours, "one", EXTENT, type=kind)
    source = one if kind == "thin" else snapshot(ours, "snap", one)
    dying = backend_on(group, setting=replace(setting, host=DyingHost("lvchange", "--deltag", "csi.todo=")))
    with pytest.raises(Died):
        copy(dying, "two", source, type="linear")
    assert "csi-two" in held(group)
    delete(ours, source)

    with pytest.raises(NotFound):
        copy(ours, "two", source, type="linear")
    assert [name for name in held(group) if "two" in name] == []
    if kind == "linear":
        delete(ours, one)
