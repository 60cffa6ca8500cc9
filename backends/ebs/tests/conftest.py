"""EC2 for the tests of a backend that speaks to it (rig.py), and an environment in which boto3 asks nobody else."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from .rig_environment import ENVIRONMENT, foreign

if TYPE_CHECKING:
    from csi_multi_ebs.backend import EbsBackend

    from .accounts import Connect
    from .rig import Cloud
    from .rig_http import Door

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what stands on moto: it takes minutes in all, so it is no part of the quick tests."""
    for item in items:  # of all directories
        if item.path.parent == HERE and "door" in getattr(item, "fixturenames", ()):
            item.add_marker("ec2")


@pytest.fixture(autouse=True)
def no_other_aws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let boto3 have credentials that are none, and neither files, nor metadata, nor a proxy."""
    for name in [name for name in os.environ if foreign(name)]:
        monkeypatch.delenv(name)
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="session")
def door() -> Iterator[Door]:
    """The rig's server. Starting it costs the seconds that moto takes to be imported."""
    from .rig_accounts import client
    from .rig_http import Door

    door = Door()
    yield door
    door.close()
    client.cache_clear()


@pytest.fixture
def cloud(door: Door) -> Iterator[Cloud]:
    """EC2 with nothing in it."""
    from .rig import Cloud

    cloud = Cloud(door)
    yield cloud
    cloud.end()
    assert cloud.trouble == []


@pytest.fixture
def other_role() -> str:
    """A role in another account: for Config.role_arn."""
    from .rig_accounts import OTHER_ROLE

    return OTHER_ROLE


@pytest.fixture
def connect(cloud: Cloud) -> Iterator[Connect]:
    """Make backends over this EC2, as processes that start do."""
    from .accounts import connecting

    with connecting(cloud) as connect:
        yield connect


@pytest.fixture
def ebs(connect: Connect) -> EbsBackend:
    """One backend, whose volumes are all in one zone."""
    from .accounts import A

    return connect(zones=(A,))
