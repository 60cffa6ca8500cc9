"""Classes written for aws-ebs-csi-driver are accepted unchanged, and mistakes are reported at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from csi_multi_ebs.config import Config, MutableParameters, Parameters, SnapshotParameters

from csi_multi.config.document import ConfigError, Document
from csi_multi.contract import InvalidArgument, Schema
from csi_multi.contract.params import camel, fields, keys_of, parse

GIB = 2**30


def refused(schema: type[Schema], **given: str) -> str:
    with pytest.raises(InvalidArgument) as found:
        parse(schema, given, "parameters")
    return str(found.value)


def config(**values: Any) -> Config:
    """Read a configuration as the driver does."""
    document = Document(Path("driver.yaml"), {}, {("backends", "cloud"): 4})
    return document.section(("backends", "cloud"), Config, {"region": "eu-west-1", **values})


def test_every_parameter_has_the_name_that_users_know() -> None:
    own = [field for field in fields(Parameters) if not keys_of(field)]

    assert {camel(field.name) for field in own} == {
        "type",
        "iops",
        "iopsPerGB",
        "allowAutoIOPSPerGBIncrease",
        "allowAutoIOPSIncreaseOnModify",
        "throughput",
        "encrypted",
        "kmsKeyId",
        "volumeInitializationRate",
        "blockAttachUntilInitialized",
        "blockExpress",
    }


def test_a_storage_class_with_everything_in_it_is_read() -> None:
    given = {
        "type": "io2",
        "iopsPerGB": "50",
        "allowAutoIOPSPerGBIncrease": "true",
        "encrypted": "true",
        "kmsKeyId": "arn:aws:kms:eu-west-1:123456789012:key/1234abcd",
        "blockExpress": "true",
        "volumeInitializationRate": "200",
        "tagSpecification_1": "team=db",
        "tagSpecification_cost": "center=42",
    }
    found = parse(Parameters, given, "parameters")

    assert (found.type, found.iops_per_gb, found.encrypted, found.volume_initialization_rate) == ("io2", 50, True, 200)
    assert found.tags == {"tagSpecification_1": "team=db", "tagSpecification_cost": "center=42"}


@pytest.mark.parametrize("key", ["fsType", "fstype", "FSType"])
def test_the_old_name_of_the_filesystem_is_left_to_the_provisioner(key: str) -> None:
    assert parse(Parameters, {key: "xfs"}, "parameters").type == "gp3"


@pytest.mark.parametrize("change", [str.lower, str.upper])
def test_keys_may_have_any_capitals_as_in_aws_ebs_csi_driver(change: Callable[[str], str]) -> None:
    given = {"type": "gp3", "kmsKeyId": "alias/Ours", "iopsPerGB": "50", "tagSpecification_1": "Team=DB"}
    cut = {"fastSnapshotRestoreAvailabilityZones": "eu-west-1a", "tagSpecification_1": "a=b"}
    changes = {"allowAutoIOPSIncreaseOnModify": "true", "tagDeletion_1": "Team"}

    for schema, keys in ((Parameters, given), (SnapshotParameters, cut), (MutableParameters, changes)):
        assert parse(schema, {change(key): value for key, value in keys.items()}, "p") == parse(schema, keys, "p")
    with pytest.raises(InvalidArgument, match="'lockMode' needs either"):
        parse(SnapshotParameters, {change("lockMode"): "governance"}, "parameters")
    with pytest.raises(InvalidArgument, match="'type' and 'Type' mean the same"):
        parse(Parameters, {"type": "gp3", "Type": "gp3"}, "parameters")


def test_empty_values_are_as_if_they_were_not_there() -> None:
    assert parse(Parameters, {"type": "", "encrypted": "", "kmsKeyId": "", "iops": ""}, "p") == Parameters()


@pytest.mark.parametrize(
    ("value", "means"), [("true", True), ("True", True), ("1", True), ("false", False), ("0", False)]
)
def test_booleans_are_what_the_documentation_says(value: str, means: bool) -> None:
    assert parse(Parameters, {"encrypted": value}, "p").encrypted is means
    with pytest.raises(InvalidArgument):
        parse(Parameters, {"encrypted": "yes"}, "p")


def test_whether_to_encrypt_may_be_left_to_the_account() -> None:
    assert parse(Parameters, {}, "parameters").encrypted is None
    assert parse(Parameters, {"encrypted": "false"}, "parameters").encrypted is False


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("type", "gp4", "takes: gp2, gp3, io1, io2"),
        ("iops", "many", "it takes: integer"),
        ("iops", "0", "it takes: integer ≥ 1"),
        ("encrypted", "perhaps", "it takes: boolean"),
        ("iopspergib", "5", "did you mean 'iopsPerGB'?"),
        ("volumeInitializationRate", "99", "integer ≥ 100 ≤ 300"),
        ("blockAttachUntilInitialized", "maybe", "blockAttachUntilInitialized"),
        ("tags", "a=b", "unknown key 'tags'"),
    ],
)
def test_a_mistake_in_a_storage_class_names_the_key_and_what_it_takes(key: str, value: str, says: str) -> None:
    text = refused(Parameters, **{key: value})

    assert text.startswith("parameters: ")
    assert key in text
    assert says in text


def test_what_excludes_each_other_is_refused() -> None:
    assert "exclude each other" in refused(Parameters, iops="3000", iopsPerGB="5")
    assert "exclude each other" in refused(MutableParameters, iops="3000", iopsPerGB="5")
    assert "'kmsKeyId' requires encryption" in refused(Parameters, kmsKeyId="k", encrypted="false")


def test_in_a_volume_attributes_class_nothing_is_set_by_default() -> None:
    assert parse(MutableParameters, {}, "mutable_parameters") == MutableParameters()
    assert {getattr(MutableParameters(), field.name) or None for field in fields(MutableParameters)} == {None}


def test_a_volume_attributes_class_is_read() -> None:
    given = {"type": "io2", "iops": "200", "tagSpecification_1": "a=b", "tagDeletion_1": "old"}
    found = parse(MutableParameters, given, "mutable_parameters")

    assert (found.type, found.iops) == ("io2", 200)
    assert (found.tags, found.deletions) == ({"tagSpecification_1": "a=b"}, {"tagDeletion_1": "old"})


@pytest.mark.parametrize("given", [{"volumeType": "io2"}, {"volumeType": "gp2", "type": "io2"}])
def test_a_volume_attributes_class_may_have_the_old_name_of_the_type(given: dict[str, str]) -> None:
    assert parse(MutableParameters, given, "mutable_parameters").type == "io2"
    assert "'volumeType'" in refused(MutableParameters, volumeType="gp4")


def test_a_snapshot_class_names_zones_separated_by_commas() -> None:
    given = {"fastSnapshotRestoreAvailabilityZones": "eu-west-1a, eu-west-1b"}

    assert parse(SnapshotParameters, given, "parameters").fast_zones == ("eu-west-1a", "eu-west-1b")
    assert SnapshotParameters().fast_zones == ()
    assert "fastSnapshot" in refused(SnapshotParameters, fastSnapshotRestoreAvailabilityZones="eu-west-1a;b")


def test_an_instance_needs_a_region_and_nothing_else() -> None:
    found = config()

    assert (found.region, found.encrypted, found.zones, found.default_size) == ("eu-west-1", None, (), 100 * GIB)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("region", "Ireland, please", "region"),
        ("role_arn", "csi", "role_arn"),
        ("endpoint", "ec2.example.com", "endpoint"),
        ("extra_tags", {"csi-multi/owner": "me"}, "is reserved for the driver"),
        ("extra_tags", {"aws:x": "y"}, "are reserved for AWS"),
        ("extra_tags", {"cost": 5}, "extra_tags"),
        ("kubernetes_cluster", "blue green", "kubernetes_cluster"),
        ("default_size", 5, "default_size"),
        ("regoin", "x", "did you mean 'region'?"),
    ],
)
def test_a_mistake_in_the_file_is_told_before_anything_starts(key: str, value: object, says: str) -> None:
    with pytest.raises(ConfigError) as found:
        config(**{key: value})

    assert str(found.value).startswith("driver.yaml:4: ")
    assert says in str(found.value)


@pytest.mark.parametrize("partition", ["aws", "aws-cn", "aws-us-gov"])
def test_roles_of_every_partition_are_known(partition: str) -> None:
    assert config(role_arn=f"arn:{partition}:iam::123456789012:role/path/csi").role_arn


def test_fips_and_an_endpoint_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="'fips' and 'endpoint' exclude each other"):
        Config(region="us-east-1", fips=True, endpoint="https://vpce-1.ec2.us-east-1.vpce.amazonaws.com")
