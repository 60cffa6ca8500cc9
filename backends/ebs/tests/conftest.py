"""A simulated EC2 (fake_ec2.py), and an environment in which boto3 reaches no other AWS."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from csi_multi_ebs.blankness import Blankness

from .aws_environment import ENVIRONMENT, foreign

if TYPE_CHECKING:
    from csi_multi_ebs.backend import EbsBackend

    from .backend_requests import Connect
    from .fake_ec2 import FakeEc2
    from .fake_ec2_server import Ec2Server

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests on moto: they take minutes, so they are not among the quick tests."""
    for item in items:  # of all directories
        if item.path.parent == HERE and "ec2_server" in getattr(item, "fixturenames", ()):
            item.add_marker("ec2")


@pytest.fixture(autouse=True)
def no_other_aws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give boto3 invalid credentials, and no files, metadata or proxy."""
    for name in [name for name in os.environ if foreign(name)]:
        monkeypatch.delenv(name)
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(autouse=True)
def no_notes_in_dev(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave this machine's /dev alone; a guest of hotplug.py has its own."""
    if "HOTPLUG_EC2" in os.environ:
        return
    begin = Blankness.begin
    monkeypatch.setattr(Blankness, "begin", lambda self: None if self._kernel.dev == Path("/dev") else begin(self))


@pytest.fixture(scope="session")
def ec2_server() -> Iterator[Ec2Server]:
    """The server of the simulated EC2. Starting it costs the seconds that moto takes to be imported."""
    from .fake_aws_services import client
    from .fake_ec2_server import Ec2Server

    ec2_server = Ec2Server()
    yield ec2_server
    ec2_server.close()
    client.cache_clear()


@pytest.fixture
def cloud(ec2_server: Ec2Server) -> Iterator[FakeEc2]:
    """An empty EC2."""
    from .fake_ec2 import FakeEc2

    cloud = FakeEc2(ec2_server)
    yield cloud
    cloud.end()
    assert cloud.internal_errors == []


@pytest.fixture
def other_role() -> str:
    """A role in another account: for Config.role_arn."""
    from .fake_aws_services import OTHER_ROLE

    return OTHER_ROLE


@pytest.fixture
def connect(cloud: FakeEc2) -> Iterator[Connect]:
    """Create backends on this EC2, as new processes do."""
    from .backend_requests import connecting

    with connecting(cloud) as connect:
        yield connect


@pytest.fixture
def ebs(connect: Connect) -> EbsBackend:
    """One backend, whose volumes are all in one zone."""
    from .backend_requests import A

    return connect(zones=(A,))
