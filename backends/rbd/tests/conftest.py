"""A real Ceph cluster for the tests that need one, with a namespace for each of them.

It is started here (ceph.py), or in a guest is one that runs outside of it (guest.py).
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from csi_multi.contract import Setting
from csi_multi.host import release
from csi_multi.host.command import LocalHost

from .matrix import left_out

if TYPE_CHECKING:
    from csi_multi_rbd.backend import RbdBackend
    from csi_multi_rbd.config import Config

    from .ceph_commands import Commands
    from .fake_node import FakeKernel, FakeRbd, Node

HERE = Path(__file__).parent
CLUSTERS = {"cluster", "frail"}  # fixtures that start one
_numbers = itertools.count()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what stands on a cluster: it takes minutes in all, so it is no part of the quick tests."""
    own = [item for item in items if item.path.parent == HERE]  # of all directories
    for item in own:
        if CLUSTERS & {*getattr(item, "fixturenames", ())}:
            item.add_marker("ceph")
    late = {item for item in own if left_out(item)}
    config.hook.pytest_deselected(items=[*late])
    items[:] = [item for item in items if item not in late]


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    """The cluster that all tests of this process share. Whoever breaks it repairs it."""
    with _cluster(0, tmp_path_factory.mktemp("ceph")) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def other_cluster(cluster: Commands, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    """A second one."""
    with _cluster(1, tmp_path_factory.mktemp("ceph")) as cluster:
        yield cluster


@contextmanager
def _cluster(number: int, directory: Path) -> Iterator[Commands]:
    from .ceph import Cluster
    from .ceph_remote import VARIABLE, Remote

    if VARIABLE in os.environ:
        yield Remote(number, directory)
    else:
        with Cluster(directory) as cluster:
            yield cluster


@pytest.fixture
def namespace(cluster: Commands) -> Iterator[str]:
    """An empty namespace of the cluster's pool. A test may leave images in it, but nothing that has one open."""
    name = f"test-{next(_numbers)}"
    cluster.add(name)
    yield name
    open_images = cluster.watched(name)
    cluster.remove(name)
    assert open_images == []


@pytest.fixture
def config(cluster: Commands, namespace: str) -> Config:
    """An instance's configuration for that namespace."""
    from csi_multi_rbd.config import Config

    return Config(
        monitors=cluster.monitors,
        fsid=cluster.fsid,
        pool=cluster.pool,
        namespace=namespace,
        user=cluster.user,
        keyring=str(cluster.keyring),
    )


@pytest.fixture
def setting() -> Setting:
    return Setting(instance="ceph", driver="multi.csi.test", cluster="c", node="node-1", host=LocalHost())


@pytest.fixture
def backend(config: Config, setting: Setting) -> Iterator[RbdBackend]:
    """A backend as a process that starts makes it."""
    from csi_multi_rbd.backend import RbdBackend

    backend = RbdBackend(config, setting)
    yield backend
    backend.close()


@pytest.fixture
def kernel(tmp_path: Path) -> FakeKernel:
    from .fake_node import FakeKernel

    return FakeKernel(tmp_path)


@pytest.fixture
def rbd(kernel: FakeKernel) -> FakeRbd:
    from .fake_node import FakeRbd

    return FakeRbd(kernel)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    from csi_multi_rbd import devices, mapping, nbd, watchers

    monkeypatch.setattr(nbd, "sees_processes", lambda kernel: kernel.whole)
    for module in (watchers, devices, mapping):
        monkeypatch.setattr(module, "POLL_SECONDS", 0.001)
    monkeypatch.setattr(watchers, "MAX_WAIT", 0.01)
    monkeypatch.setattr(release, "RELEASE_SECONDS", 0.01)
    monkeypatch.setattr(devices, "GROW_SECONDS", 0.01)
    monkeypatch.setattr(mapping, "APPEAR_SECONDS", 0.01)
    monkeypatch.setattr(mapping, "DISAPPEAR_SECONDS", 0.01)


@pytest.fixture
def node(rbd: FakeRbd, setting: Setting) -> Node:
    from .fake_node import Node

    rbd.image("v")
    return Node(rbd, setting)
