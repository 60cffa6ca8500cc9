"""How many volumes an instance takes: never more than EC2 says, and in nearly all cases just as many."""

from __future__ import annotations

import gzip
import json
from importlib.resources import files
from typing import Any

import pytest
from csi_multi_ebs import limits
from csi_multi_ebs.config import Config
from csi_multi_ebs.limits import ROOT, Attached

CONFIG = Config(region="eu-west-1")


def recorded() -> dict[str, dict[str, Any]]:
    """Return what DescribeInstanceTypes answered when moto was made."""
    file = files("moto") / "ec2" / "resources" / "instance_types.json.gz"
    types: dict[str, dict[str, Any]] = json.loads(gzip.decompress(file.read_bytes()))
    return types


def local_disks(facts: dict[str, Any]) -> int:
    storage = facts.get("InstanceStorageInfo", {})
    return sum(disk["Count"] for disk in storage.get("Disks", ()) if storage.get("NvmeSupport") == "required")


def test_no_type_gets_more_volumes_than_ec2_attaches_to_it_and_few_get_less() -> None:
    types = recorded()
    ours = {name: limits.volumes(name, Attached(disks=local_disks(facts))) + ROOT for name, facts in types.items()}
    ec2s = {name: facts["EbsInfo"]["MaximumEbsAttachments"] for name, facts in types.items()}

    assert len(types) > 1000
    assert {name: (found, ec2s[name]) for name, found in ours.items() if found > ec2s[name]} == {}
    fewer = {name: ec2s[name] - found for name, found in ours.items() if found < ec2s[name]}
    assert len(fewer) < len(types) / 20
    assert {name for name, lost in fewer.items() if lost > 6} <= {"r7iz.metal-32xl"}


@pytest.mark.parametrize(
    ("instance_type", "attached", "volumes"),
    [
        ("m5.large", Attached(), 26),
        ("m5.large", Attached(interfaces=3), 24),
        ("m5d.24xlarge", Attached(interfaces=2, disks=4), 21),
        ("g4dn.12xlarge", Attached(disks=1), 21),
        ("m5.large", Attached(volumes=2), 24),
        ("m7i.large", Attached(interfaces=3), 31),
        ("m7i-flex.16xlarge", Attached(interfaces=3), 47),
        ("c8gd.24xlarge", Attached(disks=3), 63),
        ("m7g.large", Attached(interfaces=2), 25),
        ("u7in-24tb.224xlarge", Attached(), 127),
        ("m5.metal", Attached(), 30),
        ("m5d.metal", Attached(interfaces=2, disks=4), 29),
        ("t2.micro", Attached(interfaces=2), 39),
        ("i3.16xlarge", Attached(disks=8), 39),
    ],
)
def test_what_shares_the_attachments_is_taken_off(instance_type: str, attached: Attached, volumes: int) -> None:
    assert limits.allowed(CONFIG, instance_type, attached) == volumes


@pytest.mark.parametrize(
    ("instance_type", "volumes"),
    [
        ("m12x.48xlarge", 127),
        ("m12x.large", 31),
        ("m12x.medium", 31),
        ("m12x.metal-200xl", 38),
        ("p9.48xlarge", 63),
        ("t5.large", 26),
        ("something", 26),
        ("something.else", 26),
    ],
)
def test_a_type_that_nobody_knew_goes_by_its_generation_and_size(instance_type: str, volumes: int) -> None:
    assert limits.allowed(CONFIG, instance_type, Attached()) == volumes


def test_the_configuration_has_the_last_word() -> None:
    own = Config(region="eu-west-1", attach_limit=7, reserved_attachments=3)
    less = Config(region="eu-west-1", reserved_attachments=3)

    assert limits.allowed(own, "m5.large", Attached(interfaces=4)) == 7
    assert limits.allowed(less, "m5.large", Attached()) == 23


def test_a_full_instance_takes_one_as_none_would_mean_no_limit() -> None:
    assert limits.allowed(CONFIG, "m5.large", Attached(interfaces=15, disks=15)) == 1


def test_without_a_type_there_is_no_limit_to_tell() -> None:
    assert limits.allowed(CONFIG, "", Attached()) == 0
