"""Real volume groups and the backend over them; a test of LVM has the mark devicemapper, and leaves nothing."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from csi_multi.backend import Setting
from csi_multi.host import LocalHost
from csi_multi.testing.checks import CHECKS

from .group import EXTENT, MIB, Group, Lvm, NewGroup, nothing_stays, own_lvm, volume_group

if TYPE_CHECKING:
    from csi_multi_lvm.backend import LvmBackend

NODE = "node-1"
DRIVER = "multi.csi.test"
# What `make lvm` has of the kit; MATRIX=1 runs all of it, for thin and for thick volumes. A guest takes ten seconds for
# a common check, and a minute or more for one that lets every command of an operation fail in four ways.
THIN = ("creation", "crashes", "node_crashes", "devices", "blanks", "snapshots", "sources", "expand", "foreign")
THICK = ("crashes", "devices", "blanks", "snapshots", "expand")
# Copies of thick volumes take a dozen commands, so that a death at each takes many minutes; test_killed.py has some.
LONG = ("a restore that died anywhere is made once", "a clone that died anywhere is made once")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what `make lvm` has no time for."""
    if os.environ.get("MATRIX"):
        return
    left_out = [item for item in items if _left_out(item)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


def _left_out(item: pytest.Item) -> bool:
    if (
        not isinstance(item, pytest.Function)
        or "csi_contract" not in item.fixturenames
        or "instance" not in item.fixturenames
    ):
        return False
    check = CHECKS[item.callspec.params["csi_contract"]]
    if item.callspec.params["instance"] == "thin":
        return check.group not in THIN
    return check.group not in THICK or check.name in LONG


@pytest.fixture(scope="session")
def lvm() -> Iterator[Lvm]:
    """LVM that sees the tests' disks only."""
    with own_lvm() as lvm:
        yield lvm


@pytest.fixture(scope="module")
def group(lvm: Lvm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    """A group that a module's tests share: four disks of 1 GiB, and a thin pool of 512 MiB."""
    with volume_group(lvm, tmp_path_factory.mktemp("group"), pool=512 * MIB) as group:
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
