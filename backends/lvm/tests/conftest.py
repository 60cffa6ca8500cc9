"""Real volume groups, and the backend on them. Tests of real LVM are marked devicemapper, and must leave nothing."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from csi_multi_testing.checks import CHECKS

from csi_multi.contract import Setting, Volume
from csi_multi.host.command import LocalHost

from .group import EXTENT, MIB, Group, Lvm, NewGroup, nothing_stays, own_lvm, volume_group
from .matrix import FULL

if TYPE_CHECKING:
    from csi_multi_lvm.backend import LvmBackend

NODE = "node-1"
DRIVER = "multi.csi.test"
# The groups of checks that `make lvm` runs; MATRIX=1 runs all of them, for thin and for thick volumes. In a guest, a
# check takes four seconds, and one that lets every command of an operation fail in four ways a minute or more.
GROUPS = {
    "thin": (
        *("creation", "crashes", "node_crashes", "devices", "blanks", "snapshots", "sources", "expand", "foreign"),
        *("in_use", "blocks"),  # groups: test_groups.py, test_group_cut.py
    ),
    "linear": (
        "blanks",
        "snapshots",
    ),  # where thick volumes differ from thin ones; test_killed.py and test_copies.py kill operations on them
}
# Checks in these groups that execute no other line of the backend than a check that is run.
REPEATED = {
    "thin": (
        "a clone completes once after a crash at any call",  # a start after it is tried, for every moment of its death
        # test_groups.py does these on a pool in memory, with a death before and after each command.
        "a group snapshot completes once after a crash at any call",
        "a group deletion completes after a crash at any call",
        "a group of volumes in use is of one point in time or refused",  # test_group_cut.py
        "an expansion completes after a crash at any call",  # one command: dead before it, or its request is repeated
        "closing a device completes after a crash at any call",
        "the formatting note is old or new after a crash at any call",
        "the formatted note is old or new after a crash at any call",
        "refreshing a device completes after a crash at any call",  # it only looks
        "a cloned volume may be larger than its source",  # as a restored one
        "a cloned volume is never smaller than its source",
        "a cloned volume and its source share no writes",
        "a cloned volume survives the deletion of its source",
        "a cloned volume is never blank",
        "a clone of a volume in use is of one point in time or refused",
        "a copy of a copy holds the data of both",  # as each of them
        "deletions of snapshots keep what is written meanwhile",  # one lvremove, which takes no part in the volume
        "a volume restored under its old name has no snapshot of the earlier one",  # as one that is made anew
        "a clone under the name of a blank volume is never blank",  # as one that is restored
        "a block map can be continued from any offset",  # test_changed_blocks.py, and the core's tests of offsets
    ),
    "linear": (
        "formatting notes survive a restart",  # as with thin ones
        "formatting notes can be written while the device is open",
        "a formatted volume is never blank again",
        "a cloned volume is never blank",
        "an unknown snapshot is not found",
        "a repeated request gets the same snapshot",
        "another volume under the name of a snapshot is a conflict",
        "a snapshot of a deleted volume is refused",
        "a snapshot has its creation time",
        # Blankness under a name is a matter of the notes, which thin and thick volumes have in the same tags.
        "a volume restored under the name of a blank one is never blank",
        "a clone under the name of a blank volume is never blank",
        "the creation time of a snapshot is the same in every time zone",
        "deleting a snapshot keeps the data of others",
        "the size of a snapshot is enough to restore it",
    ),
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the checks for which `make lvm` has no time."""
    if FULL:
        return
    left_out = [item for item in items if _left_out(item)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


def _left_out(item: pytest.Item) -> bool:
    own = item.path.parent == Path(__file__).parent  # the hook sees the tests of other backends, too
    if not own or not isinstance(item, pytest.Function) or "csi_contract" not in item.fixturenames:
        return False
    check, type_ = CHECKS[item.callspec.params["csi_contract"]], item.callspec.params["instance"]
    return check.group not in GROUPS[type_] or check.name in REPEATED[type_]


@pytest.fixture(scope="session")
def lvm() -> Iterator[Lvm]:
    """LVM that sees the tests' disks only."""
    with own_lvm() as lvm:
        yield lvm


@pytest.fixture(scope="module")
def group(lvm: Lvm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    """A group that a module's tests share: two disks of 1 GiB, and a thin pool of 512 MiB."""
    with volume_group(lvm, tmp_path_factory.mktemp("group"), disks=2, pool=512 * MIB) as group:
        yield group


@pytest.fixture(scope="module")
def five(lvm: Lvm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    """A group with enough disks for raid6; the first and the last of them have less space than the others."""
    with volume_group(lvm, tmp_path_factory.mktemp("five"), disks=5, size=128 * MIB, pool=64 * MIB) as group:
        yield group


@pytest.fixture
def new_group(lvm: Lvm, tmp_path: Path) -> Iterator[NewGroup]:
    """Create a group for one test: new_group(disks=2, size=256 * MIB, pool=64 * MIB). It takes seconds."""
    with contextlib.ExitStack() as undo:
        yield lambda **more: undo.enter_context(volume_group(lvm, tmp_path, **more))


@pytest.fixture(autouse=True)
def nothing_leaks(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[None]:
    """Demand that a test leaves no device, no table, nothing mounted, and nothing in the shared group."""
    if not request.node.get_closest_marker("devicemapper"):
        yield
        return
    with nothing_stays(request.getfixturevalue("lvm"), tmp_path):
        yield
    if "group" in request.fixturenames:
        assert request.getfixturevalue("group").left() == []


@pytest.fixture
def host() -> LocalHost:
    return LocalHost()


@pytest.fixture
def setting(host: LocalHost) -> Setting:
    return Setting(instance="disks", driver=DRIVER, cluster="c", node=NODE, host=host)


@pytest.fixture
def backend_on(setting: Setting) -> Callable[..., LvmBackend]:
    """Create a backend as a new process does: backend_on(new_group(disks=2), reserve_percent=5)."""
    from csi_multi_lvm.backend import LvmBackend
    from csi_multi_lvm.config import Config

    def backend(group: Group, *, setting: Setting = setting, **config: Any) -> LvmBackend:
        defaults = {"reserve_percent": 0, "overprovision": 1000, "min_size": EXTENT}
        config = {"volume_group": group.name, "thin_pool": group.pool, **defaults, **config}
        return LvmBackend(Config(**config), setting)

    return backend


@pytest.fixture
def backend(group: Group, backend_on: Callable[..., LvmBackend]) -> Callable[..., LvmBackend]:
    """Create a backend on the group that the module's tests share: backend(), or backend(reserve_percent=5)."""
    return functools.partial(backend_on, group)


@pytest.fixture
def volume(backend: Callable[..., LvmBackend]) -> Iterator[Volume]:
    """A thin volume on the group that the module's tests share."""
    from .volume_steps import create, delete

    one = create(backend(), "v", EXTENT, type="thin")
    yield one
    backend().close_device(one.handle)
    delete(backend(), one)
