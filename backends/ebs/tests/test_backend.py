"""The EBS backend: its features, how volumes may be used, and a node without AWS credentials."""

from __future__ import annotations

import subprocess
import sys

import pytest
from csi_multi_ebs.backend import EbsBackend
from csi_multi_ebs.config import Config
from csi_multi_ebs.device_names import WRITABLE

from csi_multi.contract import SINGLE_NODE_MODES, AccessMode, Capability, Mount

from .backend_requests import A, connecting, parameters, setting
from .fake_ec2 import FakeEc2

NODE = """
import json, os, sys
for name in list(os.environ):
    if name.startswith("AWS_"):
        del os.environ[name]
from csi_multi.contract.backend import Setting
from csi_multi.contract.errors import StorageError
from csi_multi.host.command import LocalHost
from csi_multi.contract.model import OpenRequest
from csi_multi_ebs.backend import EbsBackend
from csi_multi_ebs.config import Config

config = Config(
    region="eu-west-1",
    metadata="static",
    instance_id="i-0123456789abcdef0",
    zone="eu-west-1a",
    instance_type="m5.large",
)
ebs = EbsBackend(config, Setting(instance="cloud", driver="d.example", cluster="", node="node-1", host=LocalHost()))
ebs._devices._appear = 0.1
handle, told = "vol-0123456789abcdef0", []
told += [ebs.node_fact(), dict(ebs.node_segments()), ebs.max_volumes()]
for act in (
    lambda: ebs.open_device(OpenRequest(handle=handle, publish_context={"device": "/dev/xvdba"})),
    lambda: ebs.find_device(handle),
    lambda: ebs.refresh_device(handle),
    lambda: ebs.close_device(handle),
):
    try:
        told.append(act())
    except StorageError as error:
        told.append(type(error).__name__)
ebs.close()
told.append([name for name in sys.modules if name.startswith(("boto3", "botocore", "urllib3"))])
print(json.dumps(told))
"""


@pytest.fixture
def ebs() -> EbsBackend:
    return EbsBackend(Config(region="eu-west-1"), setting())


def test_a_node_needs_neither_boto3_nor_credentials() -> None:
    done = subprocess.run([sys.executable, "-c", NODE], capture_output=True, check=False, text=True, timeout=60)

    assert done.stderr == ""
    assert done.stdout.strip() == (
        '["i-0123456789abcdef0", {"zone": "eu-west-1a"}, 26, "Unavailable", null, "NotFound", null, []]'
    )


@pytest.mark.parametrize("mode", [mode for mode in AccessMode if mode in SINGLE_NODE_MODES])
def test_one_node_may_use_any_volume_in_any_way(ebs: EbsBackend, mode: AccessMode) -> None:
    for mount in (None, Mount(fs_type="xfs")):
        assert ebs.unsupported(Capability(mode=mode, mount=mount), parameters(type="gp3")) == ""


@pytest.mark.parametrize("mode", [mode for mode in AccessMode if mode not in SINGLE_NODE_MODES])
def test_several_nodes_may_use_raw_volumes_of_io1_and_io2(ebs: EbsBackend, mode: AccessMode) -> None:
    raw, mounted = Capability(mode=mode), Capability(mode=mode, mount=Mount())

    assert "two nodes cannot mount one filesystem" in ebs.unsupported(mounted, parameters(type="io2"))
    assert "needs type io1 or io2 (Multi-Attach), not gp3" in ebs.unsupported(raw, parameters())
    for kind in ("io1", "io2"):
        assert ebs.unsupported(raw, parameters(type=kind)) == ""
    assert ebs.unsupported(raw) == ""


def test_a_backend_asks_nobody_before_it_is_asked(cloud: FakeEc2) -> None:
    with connecting(cloud) as connect:
        connect()

    assert cloud.calls.total() == 0


def test_a_node_takes_no_more_volumes_than_there_are_device_names(cloud: FakeEc2) -> None:
    with connecting(cloud) as connect:
        static = {"metadata": "static", "instance_id": "i-0123456789abcdef0", "zone": A}
        assert connect(**static, instance_type="m8azn.24xlarge").max_volumes() == 127
        assert connect(**static, instance_type="m5.large", attach_limit=500).max_volumes() == len(WRITABLE)
        assert connect(**static, instance_type="m5.large", attach_limit=5).max_volumes() == 5


def test_the_node_reports_the_id_of_its_zone_where_it_knows_it() -> None:
    static = {"region": "eu-west-1", "metadata": "static", "instance_id": "i-0123456789abcdef0", "zone": A}

    assert EbsBackend(Config(**static), setting()).node_segments() == {"zone": A}
    assert EbsBackend(Config(**static, zone_id="euw1-az1"), setting()).node_segments() == {
        "zone": A,
        "zone-id": "euw1-az1",
    }


def test_an_instance_reports_zones_by_the_well_known_keys_unless_it_is_configured_otherwise() -> None:
    assert EbsBackend(Config(region="eu-west-1"), setting()).well_known_keys
    assert not EbsBackend(Config(region="eu-west-1", well_known_zone_keys=False), setting()).well_known_keys
