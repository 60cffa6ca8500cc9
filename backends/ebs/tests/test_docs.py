"""The examples in the documentation work: policy, configuration, classes, tags."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from csi_multi_ebs import labels
from csi_multi_ebs.botocore_model import CALLS, SERVICES
from csi_multi_ebs.config import Config, MutableParameters, Parameters, SnapshotParameters
from csi_multi_ebs.volume_types import TYPE_LIMITS, new_spec

from csi_multi.config.settings import load_config
from csi_multi.contract import SizeRange, SnapshotRequest, Stamp, VolumeRequest
from csi_multi.contract.params import camel, fields, parse
from csi_multi.node.mkfs_options import FilesystemOptions

from .test_labels import CONFIG, SETTING

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs/ebs.md").read_text()
POLICY, QUOTAS, *TRUST = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", TEXT, re.DOTALL)]
CLAIM = {"pvc/name": "data", "pvc/namespace": "db", "pv/name": "pvc-1"}
CUT = {"volumesnapshot/name": "s", "volumesnapshot/namespace": "db", "volumesnapshotcontent/name": "c"}
CLASSES = {
    one["metadata"]["name"]: one for one in yaml.safe_load_all((ROOT / "config/storageclass-ebs.yaml").read_text())
}
FILESYSTEM = {camel(field.name) for field in fields(FilesystemOptions)}


def actions(policy: dict[str, Any]) -> set[str]:
    found = [statement["Action"] for statement in policy["Statement"]]
    return {action for one in found for action in ([one] if isinstance(one, str) else one)}


def own(name: str) -> dict[str, str]:
    """Return what the core hands to the backend of a class's parameters."""
    given = CLASSES[name]["parameters"]
    return {
        key: value
        for key, value in given.items()
        if key != "backend" and key not in FILESYSTEM and not key.startswith("csi.storage.k8s.io/")
    }


def test_the_policy_allows_the_calls_that_are_made_and_no_others() -> None:
    made = {f"{SERVICES.get(group, 'ec2').replace('-', '')}:{call}" for call, group in CALLS.items()}

    assert actions(POLICY) == {one for one in made if one.startswith(("ec2:", "ebs:"))}
    assert actions(QUOTAS) == made - actions(POLICY)


def test_whatever_changes_something_is_bound_to_the_drivers_tags_or_to_instances() -> None:
    for statement in POLICY["Statement"]:
        if all(action.startswith("ec2:Describe") for action in statement["Action"]):
            continue
        assert "Condition" in statement or statement["Resource"] == "arn:aws:ec2:*:*:instance/*"


@pytest.mark.parametrize("condition", re.findall(r'"aws:\w+Tag/([^"]+)"', TEXT))
def test_the_policy_names_the_tag_that_is_written(condition: str) -> None:
    assert condition == labels.OWNER
    assert "multi.csi.example.com/prod/*" in TEXT
    assert labels.owner_tag("multi.csi.example.com", "prod", "ireland") == "multi.csi.example.com/prod/ireland"


def test_roles_are_assumed_by_the_call_that_is_made() -> None:
    assert [actions(policy) for policy in TRUST] == [{"sts:AssumeRole"}, {"sts:AssumeRole"}]


def test_the_example_configuration_is_valid_and_shows_the_defaults() -> None:
    loaded = load_config(ROOT / "config/ebs.yaml")
    sections = {
        one.name: loaded.document.section(("backends", one.name), Config, one.values) for one in loaded.instances
    }
    shown = dict(re.findall(r"^    # (\w+): (.*)$", (ROOT / "config/ebs.yaml").read_text(), re.MULTILINE))
    default = Config(region="eu-west-1")

    assert sections.keys() == {"ireland", "ohio", "payments"}
    assert shown.keys() > {"zones", "wait_seconds", "metadata"}
    for key, text in shown.items():
        told = yaml.safe_load(text)
        assert getattr(default, key) == (tuple(told) if isinstance(told, list) else told), key


@pytest.mark.parametrize("name", ["ebs-gp3", "ebs-io2"])
def test_the_example_storage_classes_make_volumes(name: str) -> None:
    parameters = parse(Parameters, own(name), "parameters")
    stamp = Stamp(driver="d", cluster="c", name="pvc-1", digest="")
    request = VolumeRequest(stamp=stamp, parameters=parameters, metadata=CLAIM)

    assert new_spec(parameters, None, SizeRange(required=10 * 2**30)).size == 10
    assert labels.volume_tags(request, SETTING, CONFIG)


def test_the_example_attributes_class_suits_the_example_storage_class() -> None:
    found = new_spec(
        parse(Parameters, own("ebs-gp3"), "parameters"),
        parse(MutableParameters, own("ebs-fast"), "mutable_parameters"),
        SizeRange(required=20 * 2**30),
    )

    assert (found.iops, found.throughput) == (8000, 1000)


def test_the_example_snapshot_class_cuts_snapshots() -> None:
    parameters = parse(SnapshotParameters, own("ebs"), "parameters")
    stamp = Stamp(driver="d", cluster="c", name="snapshot-1", digest="")
    request = SnapshotRequest(stamp=stamp, source="vol-0a", parameters=parameters, metadata=CUT)

    assert labels.snapshot_tags(request, SETTING, CONFIG)["of"] == "db/s"


def test_a_volume_that_is_handed_over_by_hand_has_a_stamp() -> None:
    written = dict(re.findall(r"Key=([^,]+),Value=(\S+)", TEXT))
    found = labels.read_stamp(written)

    assert found == Stamp(
        driver="multi.csi.example.com",
        cluster="prod",
        name="pvc-1f0e",
        digest="adopted",
        context={"fsType": "ext4"},
    )
    assert written[labels.NAME] == "pvc-1f0e"


@pytest.mark.parametrize("kind", TYPE_LIMITS)
def test_the_table_of_types_has_the_numbers_that_are_checked(kind: str) -> None:
    rows = [line.split("|") for line in TEXT.splitlines() if line.startswith("| ")]
    row = next(row for row in rows if kind in row[1].strip().split(", "))
    numbers = [int(number) for number in re.findall(r"\d+", "|".join(row[2:]))]
    rule = TYPE_LIMITS[kind]
    iops = [] if rule.iops is None else [*rule.iops, rule.per_gib]

    assert numbers == [*rule.size, *iops, *(rule.throughput or ())]
