"""How many volumes an instance can have: never more than EC2 allows, and in nearly all cases as many."""

from __future__ import annotations

import gzip
import json
from importlib.resources import files
from typing import Any

import pytest
from csi_multi_ebs import attachment_limits
from csi_multi_ebs.attachment_limits import ROOT, OtherAttachments
from csi_multi_ebs.config import Config

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
    ours = {
        name: attachment_limits.volumes(name, OtherAttachments(disks=local_disks(facts))) + ROOT
        for name, facts in types.items()
    }
    ec2s = {name: facts["EbsInfo"]["MaximumEbsAttachments"] for name, facts in types.items()}

    assert len(types) > 1000
    assert {name: (found, ec2s[name]) for name, found in ours.items() if found > ec2s[name]} == {}
    fewer = {name: ec2s[name] - found for name, found in ours.items() if found < ec2s[name]}
    assert len(fewer) < len(types) / 20
    assert max(fewer.values(), default=0) <= 6


@pytest.mark.parametrize(
    ("instance_type", "attached", "volumes"),
    [
        ("m5.large", OtherAttachments(), 26),
        ("m5.large", OtherAttachments(interfaces=3), 24),
        ("m5d.24xlarge", OtherAttachments(interfaces=2, disks=4), 21),
        ("g4dn.12xlarge", OtherAttachments(disks=1), 21),
        ("m5.large", OtherAttachments(volumes=2), 24),
        ("m7i.large", OtherAttachments(interfaces=3), 31),
        ("m7i-flex.16xlarge", OtherAttachments(interfaces=3), 47),
        ("c8gd.24xlarge", OtherAttachments(disks=3), 63),
        ("m7g.large", OtherAttachments(interfaces=2), 25),
        ("u7in-24tb.224xlarge", OtherAttachments(), 127),
        ("r7iz.metal-32xl", OtherAttachments(interfaces=3), 78),
        ("c8g.metal-48xl", OtherAttachments(interfaces=3), 78),
        ("c8gn.metal-48xl", OtherAttachments(interfaces=3), 77),
        ("m8i.metal-96xl", OtherAttachments(interfaces=3), 78),
        ("m8ib.metal-96xl", OtherAttachments(interfaces=3), 77),
        ("m8i.metal-48xl", OtherAttachments(interfaces=3), 63),
        ("m7i.metal-24xl", OtherAttachments(interfaces=3), 38),
        ("inf2.48xlarge", OtherAttachments(), 27),
        ("inf2.xlarge", OtherAttachments(), 25),
        ("trn1.32xlarge", OtherAttachments(interfaces=2, disks=4), 26),
        ("trn1.2xlarge", OtherAttachments(disks=1), 24),
        ("m5.metal", OtherAttachments(), 30),
        ("m5d.metal", OtherAttachments(interfaces=2, disks=4), 29),
        ("t2.micro", OtherAttachments(interfaces=2), 39),
        ("i3.16xlarge", OtherAttachments(disks=8), 39),
    ],
)
def test_what_shares_the_attachments_is_taken_off(instance_type: str, attached: OtherAttachments, volumes: int) -> None:
    assert attachment_limits.allowed(CONFIG, instance_type, attached) == volumes


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
    assert attachment_limits.allowed(CONFIG, instance_type, OtherAttachments()) == volumes


def test_the_configuration_has_the_last_word() -> None:
    own = Config(region="eu-west-1", attach_limit=7, reserved_attachments=3)
    less = Config(region="eu-west-1", reserved_attachments=3)

    assert attachment_limits.allowed(own, "m5.large", OtherAttachments(interfaces=4)) == 7
    assert attachment_limits.allowed(less, "m5.large", OtherAttachments()) == 23


def test_a_full_instance_takes_one_as_none_would_mean_no_limit() -> None:
    assert attachment_limits.allowed(CONFIG, "m5.large", OtherAttachments(interfaces=15, disks=15)) == 1


def test_without_a_type_there_is_no_limit_to_tell() -> None:
    assert attachment_limits.allowed(CONFIG, "", OtherAttachments()) == 0


def test_the_number_of_ebs_cards_is_ec2s_for_every_type() -> None:
    types = recorded()
    ec2s = {name: facts["EbsInfo"].get("MaximumEbsCards", 1) for name, facts in types.items()}

    assert {name: attachment_limits.cards(name) for name in types} == ec2s
    assert len([one for one in ec2s.values() if one > 1]) == 33


def test_a_type_that_nobody_knows_has_one_card() -> None:
    assert attachment_limits.cards("m12gb.48xlarge") == 1
