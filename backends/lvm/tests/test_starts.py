"""A process starts while another one copies, opens or expands a volume: it takes nothing away, and nothing is left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from csi_multi_lvm import labels
from csi_multi_lvm.backend import LvmBackend

from csi_multi.contract import Busy, InUse, Result, Setting, Snapshot, Unavailable, Volume
from csi_multi.host.command import LocalHost

from .faulty import clear
from .group import EXTENT, MIB, Group, Lvm, volume_group
from .volume_steps import (
    Died,
    DyingHost,
    copy,
    create,
    delete,
    expand,
    fill,
    lv_fields,
    open_device,
    opened,
    read,
    snapshot,
    zeros,
)

pytestmark = pytest.mark.devicemapper

Make = Callable[..., LvmBackend]
RETRIED = (Busy, Unavailable)


class PausedHost(LocalHost):
    """A host on which something else happens, once, before a command with these words, after `spared` of them."""

    def __init__(self, meanwhile: Callable[[], object], *words: str, spared: int = 0) -> None:
        self._meanwhile = meanwhile
        self._words = words
        self._spared = spared
        self.paused = False

    def run(self, *argv: str, **more: Any) -> Result:
        if not self.paused and all(any(one.endswith(word) for one in argv) for word in self._words):
            if self._spared == 0:
                self.paused = True
                self._meanwhile()
            self._spared -= 1
        return super().run(*argv, **more)


class DeadHost(DyingHost):
    """A host on which no command runs after the driver has died."""

    dead = False

    def run(self, *argv: str, **more: Any) -> Result:
        if self.dead:
            raise Died
        try:
            return super().run(*argv, **more)
        except Died:
            self.dead = True
            raise


Paused = Callable[..., tuple[LvmBackend, PausedHost]]


@pytest.fixture(scope="module")
def group(lvm: Lvm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    with volume_group(lvm, tmp_path_factory.mktemp("starts"), disks=1, size=256 * MIB, pool=32 * MIB) as group:
        yield group


@pytest.fixture(autouse=True)
def nothing_left(group: Group) -> Iterator[None]:
    yield
    clear(group)


@pytest.fixture
def paused(backend: Make, setting: Setting) -> Paused:
    """Return a process that pauses before a command with these words, while `meanwhile` happens."""

    def make(meanwhile: Callable[[], object], *words: str, spared: int = 0) -> tuple[LvmBackend, PausedHost]:
        host = PausedHost(meanwhile, *words, spared=spared)
        return backend(setting=replace(setting, host=host)), host

    return make


@pytest.fixture
def source(backend: Make) -> tuple[Volume, Snapshot]:
    ours = backend()
    one = create(ours, "one", 2 * EXTENT, type="linear")
    with opened(ours, one, block=False) as device:
        fill(device.path)
    return one, snapshot(ours, "snap", one)


def active(group: Group) -> list[str]:
    """Return the devices of volumes and snapshots; those of a pool stay."""
    return [name for name in group.devices() if "-csi" in name.removeprefix("csi--test")]


def expect_copy(ours: LvmBackend, one: Volume, two: Volume) -> None:
    with opened(ours, one, block=False) as first, opened(ours, two, block=False) as second:
        assert read(first.path) == read(second.path)


AT = {
    "activates the source": ("-ay", "/csi-one"),
    "activates the copy": ("-ay", "/csi-two"),
    "deactivates the copy": ("-an", "/csi-two"),
    "deactivates the source": ("-an", "/csi-one"),
}


@pytest.mark.parametrize("moment", AT)
def test_a_start_lets_a_copy_of_another_process_end_and_nothing_stays_active(
    moment: str, backend: Make, group: Group, paused: Paused, source: tuple[Volume, Snapshot]
) -> None:
    one, snap = source
    copier, host = paused(backend().resume, *AT[moment])

    two = copy(copier, "two", snap, type="linear")
    assert host.paused
    assert active(group) == []
    expect_copy(backend(), one, two)
    delete(backend(), two, snap, one)


def test_a_copy_that_ends_leaves_nothing_active_for_one_that_begins(
    backend: Make, group: Group, paused: Paused, source: tuple[Volume, Snapshot]
) -> None:
    one, snap = source
    copies: list[Volume] = []
    second, host = paused(lambda: copies.append(copy(backend(), "two", snap, type="linear")), "-ay", "/csi-one")

    copies.append(copy(second, "three", snap, type="linear"))
    assert host.paused
    assert active(group) == []
    delete(backend(), *copies, snap, one)


def test_a_volume_that_is_opened_when_a_copy_begins_stays_open(
    backend: Make, group: Group, paused: Paused, source: tuple[Volume, Snapshot]
) -> None:
    """The process that copies has seen that the volume is inactive, and so had the one that opens it."""
    one, snap = source

    def begin() -> None:
        group.lvm.run("lvchange", "-qq", "--addtag", labels.READING, f"{group.name}/csi-one")
        group.lvm.run("lvchange", "-qq", "-ay", "-K", f"{group.name}/csi-one")

    opener, host = paused(begin, "-ay", "/csi-one")
    device = open_device(opener, one, block=False)
    assert host.paused

    ours = backend()
    ours.resume()
    assert ours.find_device(one.handle) == device
    two = copy(ours, "two", snap, type="linear")
    assert ours.find_device(one.handle) == device
    ours.close_device(one.handle)
    delete(ours, two, snap, one)


def test_a_volume_that_is_opened_before_a_copy_activates_it_stays_open(
    backend: Make, paused: Paused, source: tuple[Volume, Snapshot]
) -> None:
    one, snap = source
    ours = backend()
    for words in (("--addtag", labels.READING, "/csi-one"), ("-ay", "/csi-one")):
        copier, host = paused(lambda: open_device(ours, one, block=False), *words)
        two = copy(copier, "two", snap, type="linear")
        assert host.paused
        ours.resume()
        assert ours.find_device(one.handle) is not None
        ours.close_device(one.handle)
        delete(ours, two)
    delete(ours, snap, one)


def test_a_volume_that_a_killed_copy_left_active_is_deleted_once_its_snapshot_is_gone(
    backend: Make, group: Group, source: tuple[Volume, Snapshot]
) -> None:
    """Also before a start has put it right, which it does in the background."""
    one, snap = source
    group.lvm.run("lvchange", "-qq", "--addtag", labels.READING, f"{group.name}/csi-one")
    group.lvm.run("lvchange", "-qq", "-ay", "-K", f"{group.name}/csi-one")
    ours = backend()

    with pytest.raises(InUse, match="has snapshots that depend on it"):
        ours.delete_volume(one.handle, {})
    delete(ours, snap)
    with Path(f"/dev/{group.name}/csi-one").open("rb"), pytest.raises(InUse, match="in use on this node"):
        ours.delete_volume(one.handle, {})
    delete(ours, one)
    assert active(group) == []


def test_a_new_volume_whose_snapshot_was_copied_is_opened(backend: Make, group: Group) -> None:
    ours = backend()
    one = create(ours, "one", 2 * EXTENT, type="linear")
    snap = snapshot(ours, "snap", one)
    two = copy(ours, "two", snap, type="linear")

    with opened(ours, one, block=False):
        assert labels.READING not in lv_fields(group, one, "lv_tags")["lv_tags"].split(",")
    delete(ours, two, snap, one)


def test_a_thin_snapshot_that_a_killed_copy_left_active_is_deactivated(
    backend: Make, group: Group, setting: Setting
) -> None:
    ours = backend()
    one = create(ours, "one", 2 * EXTENT, type="thin")
    snap = snapshot(ours, "snap", one)
    with pytest.raises(Died):
        copy(backend(setting=replace(setting, host=DeadHost("-ay", "/csi-two"))), "two", snap, type="linear")

    assert active(group) != []
    ours = backend()
    ours.resume()
    assert active(group) == []
    two = copy(ours, "two", snap, type="linear")
    delete(ours, two, snap, one)


AT_ZEROED_SPACE: dict[str, tuple[tuple[str, ...], int]] = {
    "looks for what is left": (('lv_name="csix-one"',), 0),
    "looks at the space": (('lv_name="csix-one"',), 1),
    "activates the space": (("-ay", "/csix-one"), 0),
    "looks where the space is": (("--segments",), 0),
    "removes the space": (("lvremove",), 0),
}


@pytest.mark.parametrize("moment", AT_ZEROED_SPACE)
def test_a_start_never_makes_an_expansion_add_space_with_old_data(moment: str, backend: Make, paused: Paused) -> None:
    ours = backend()
    one = create(ours, "one", EXTENT, type="linear")
    with opened(ours, one):
        pass  # it is zeroed, and shows no old data from now on
    secret = create(ours, "secret", 12 * EXTENT, type="linear", wipe="none")
    with opened(ours, secret, block=False) as device:
        fill(device.path)
    delete(ours, secret)
    others: list[Volume] = []

    def start() -> None:
        new = backend()
        new.resume()
        others.append(create(new, "other", 3 * EXTENT, type="linear"))  # it may be where the space was

    words, spared = AT_ZEROED_SPACE[moment]
    expander, host = paused(start, *words, spared=spared)
    try:
        expand(expander, one, 4 * EXTENT)
    except RETRIED:
        expand(expander, one, 4 * EXTENT)
    assert host.paused
    with opened(ours, one) as device:
        assert zeros(device.path)
    delete(ours, one, *others)


def test_a_clone_whose_temporary_snapshot_a_start_removes_is_repeated(
    backend: Make, group: Group, paused: Paused, source: tuple[Volume, Snapshot]
) -> None:
    one, snap = source
    for words in (('lv_name="csit-two"',), ("lvcreate", "csi-two")):
        cloner, host = paused(backend().resume, *words)
        try:
            two = copy(cloner, "two", one, type="linear")
        except RETRIED:
            two = copy(cloner, "two", one, type="linear")
        assert host.paused
        backend().resume()
        assert active(group) == []
        expect_copy(backend(), one, two)
        delete(backend(), two)
    delete(backend(), snap, one)
