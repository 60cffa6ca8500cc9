"""Real volume groups and the backend over them; a test of LVM has the mark devicemapper, and leaves nothing."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from csi_multi_testing.checks import CHECKS

from csi_multi.contract import Setting
from csi_multi.host.command import LocalHost

from .group import EXTENT, MIB, Group, Lvm, NewGroup, nothing_stays, own_lvm, volume_group
from .matrix import FULL

if TYPE_CHECKING:
    from csi_multi_lvm.backend import LvmBackend

NODE = "node-1"
DRIVER = "multi.csi.test"
# What `make lvm` has of the kit; MATRIX=1 runs all of it, for thin and for thick volumes. A guest takes ten seconds for
# a common check, and a minute or more for one that lets every command of an operation fail in four ways.
GROUPS = {
    "thin": ("creation", "crashes", "node_crashes", "devices", "blanks", "snapshots", "sources", "expand", "foreign"),
    "linear": ("blanks", "snapshots"),  # where thick volumes are unlike thin ones; test_killed.py has deaths of theirs
}
# Checks in these groups that come by no other line of the backend than one that is run.
REPEATED = {
    "thin": (
        "a clone completes once after a crash at any call",  # a start after it is tried, for every moment of its death
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
        "a copy of a copy holds the data of both",  # as each of them
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
    ),
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what `make lvm` has no time for."""
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


@pytest.fixture
def new_group(lvm: Lvm, tmp_path: Path) -> Iterator[NewGroup]:
    """Make a group for one test: new_group(disks=2, size=256 * MIB, pool=64 * MIB). It takes seconds."""
    with contextlib.ExitStack() as undo:
        yield lambda **more: undo.enter_context(volume_group(lvm, tmp_path, **more))


@pytest.fixture(autouse=True)
def nothing_leaks(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[None]:
    """A test leaves no device, no table, nothing mounted, and nothing in the group that it shares."""
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
    """Make a backend as a new process would: backend_on(new_group(disks=2), reserve_percent=5)."""
    from csi_multi_lvm.backend import LvmBackend
    from csi_multi_lvm.config import Config

    def backend(group: Group, *, setting: Setting = setting, **config: Any) -> LvmBackend:
        defaults = {"reserve_percent": 0, "overprovision": 1000, "min_size": EXTENT}
        config = {"volume_group": group.name, "thin_pool": group.pool, **defaults, **config}
        return LvmBackend(Config(**config), setting)

    return backend


@pytest.fixture
def backend(group: Group, backend_on: Callable[..., LvmBackend]) -> Callable[..., LvmBackend]:
    """Make a backend on the group that the module's tests share: backend(), or backend(reserve_percent=5)."""
    return functools.partial(backend_on, group)
