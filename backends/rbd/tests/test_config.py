"""Classes written for ceph-csi are accepted unchanged; parameters without an effect here are refused with a remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from csi_multi_rbd.config import Config, GroupSnapshotParameters, Parameters, SnapshotParameters

from csi_multi.config.document import ConfigError, Document
from csi_multi.contract import InvalidArgument, Schema
from csi_multi.contract.params import camel, fields, keys_of, parse

LEAST = {
    "monitors": ["10.0.0.1", "10.0.0.2:6789"],
    "fsid": "3cb7b59b-9a3d-4b34-9a79-73900f2a06f6",
    "pool": "k8s",
    "user": "csi",
}

# fmt: off
LIMITS_OF_CEPH_CSI = {
    "baseIops", "maxIops", "baseReadIops", "maxReadIops", "baseWriteIops", "maxWriteIops", "iopsPerGiB",
    "readIopsPerGiB", "writeIopsPerGiB", "baseBps", "maxBps", "baseReadBps", "maxReadBps", "baseWriteBps",
    "maxWriteBps", "bpsPerGiB", "readBpsPerGiB", "writeBpsPerGiB", "baseVolSizeBytes",
}
# fmt: on


def config(**values: Any) -> Config:
    """Read a configuration as the driver does; None leaves a key out."""
    document = Document(Path("driver.yaml"), {}, {("backends", "ceph"): 4})
    given = {key: value for key, value in {**LEAST, **values}.items() if value is not None}
    return document.section(("backends", "ceph"), Config, given)


def wrong(**values: Any) -> str:
    with pytest.raises(ConfigError) as found:
        config(**values)
    return str(found.value)


def refused(schema: type[Schema], **given: str) -> str:
    with pytest.raises(InvalidArgument) as found:
        parse(schema, given, "parameters")
    return str(found.value)


def test_four_keys_are_enough() -> None:
    found = config()

    assert found.monitors == ("10.0.0.1", "10.0.0.2:6789")
    assert (found.mounter, found.conf, found.keyring, found.overprovision) == ("rbd", "/dev/null", "", 1.0)


@pytest.mark.parametrize("key", LEAST)
def test_a_cluster_pool_and_user_have_to_be_named(key: str) -> None:
    assert f"{key!r} is required" in wrong(**{key: None})


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"monitors": []}, "'monitors'"),
        ({"monitors": "10.0.0.1"}, "'monitors'"),
        ({"monitors": ["10.0.0.1,10.0.0.2"]}, "one monitor per item"),
        ({"fsid": "rook-ceph"}, "`ceph fsid` prints it"),
        ({"user": "client.csi"}, "without the prefix 'client.'"),
        ({"pool": "k8s/team"}, "'pool': 'k8s/team' is not a name"),
        ({"pool": ""}, "'pool': it is empty; name the pool"),
        ({"namespace": "a@b"}, "'namespace': 'a@b' is not a name"),
        ({"data_pool": "a b"}, "'data_pool': 'a b' is not a name"),
        ({"keyring": "csi.keyring"}, "'keyring'"),
        ({"conf": "ceph.conf"}, "'conf'"),
        ({"image_features": ["layering", "fast-diff"]}, "'fast-diff' needs 'object-map'"),
        ({"image_features": ["layering", "snappy"]}, "snappy"),
        ({"mounter": "krbd"}, "it takes: rbd, rbd-nbd"),
        ({"map_options": "krbd:lock on read"}, "'map_options'"),
        ({"map_options": "krbd:exclusive"}, "'map_options': leave out 'exclusive'"),
        ({"unmap_options": "krbd:force"}, "'unmap_options': leave out 'force'"),
        ({"topology": {"Zone": "a"}}, "'topology': Zone='a' is not a segment"),
        ({"topology": {"node": "a"}}, "the key 'node' belongs to the core"),
        ({"nodes": ["zone-b-*"]}, "'nodes' needs 'topology'"),
        ({"crush_locations": {"node-a": "zone=a"}}, "'crush_locations': 'zone=a' of 'node-a' is not a CRUSH location"),
        ({"crush_locations": {"node-a": "zone:a,share"}}, "is not a CRUSH location; write zone:a or zone:a|rack:b"),
        ({"crush_locations": {"node-a": ""}}, "is not a CRUSH location"),
        ({"flatten_depth": 9}, "'flatten_depth' is above 'max_depth'"),
        ({"max_depth": 16}, "'max_depth'"),
        ({"flatten_snapshots": 451}, "'flatten_snapshots' is above 'max_snapshots'"),
        ({"command_seconds": 0}, "'command_seconds'"),
        ({"overprovision": 0.5}, "'overprovision'"),
        ({"min_size": 512}, "'min_size'"),
        ({"poool": "k8s"}, "did you mean 'pool'?"),
        ({"pools": {"k8s": {}}}, "'pools': 'k8s' is the instance's `pool` already"),
        ({"pools": {"k8s/b": {}}}, "'pools': 'k8s/b' is not a name for one of several pools"),
        ({"pools": {"b": {"topology": {"Zone": "b"}}}}, "'pools': Zone='b' is not a segment"),
        ({"pools": {"b": {"nodes": ["b-*"]}}}, "'nodes' of 'b' needs 'topology'"),
        ({"pools": {"b": {"data_pool": "b ec"}}}, "'pools': 'b ec' is not a name"),
        ({"pools": {"b": {"datapool": "b"}}}, "'pools"),
    ],
)
def test_a_mistake_in_the_file_is_told_at_start(values: dict[str, Any], says: str) -> None:
    said = wrong(**values)

    assert said.startswith("driver.yaml:4: ")
    assert says in said


def test_every_parameter_has_the_name_that_users_know() -> None:
    own = {camel(field.name) for field in fields(Parameters) if not keys_of(field)}
    collected = {name for field in fields(Parameters) for name in keys_of(field).split("|") if name}

    # fmt: off
    assert own | collected == {
        "clusterID", "pool", "dataPool", "imageFeatures", "imageFormat", "objectSize", "stripeUnit", "stripeCount",
        "mounter", "tryOtherMounters", "mapOptions", "unmapOptions", "encryptionKMSID", "encryptionType",
        "integrityMode", *LIMITS_OF_CEPH_CSI,
        "thickProvision", "topologyConstrainedPools", "volumeNamePrefix", "mkfsOptions", "cephLogDir",
        "cephLogStrategy", "fsType", "fstype",
    }
    # fmt: on


def test_a_storage_class_of_ceph_csi_is_read_as_it_is() -> None:
    given = {
        "clusterID": LEAST["fsid"],
        "pool": "k8s",
        "dataPool": "k8s-ec",
        "imageFeatures": "layering,exclusive-lock,object-map,fast-diff,deep-flatten",
        "imageFormat": "2",
        "mounter": "rbd-nbd",
        "tryOtherMounters": "false",
        "mapOptions": "krbd:lock_on_read,queue_depth=1024;nbd:try-netlink,io-timeout=300",
        "unmapOptions": "nbd:reattach-timeout=60",
        "stripeUnit": "65536",
        "stripeCount": "16",
        "objectSize": "8388608",
        "thickProvision": "false",
        "cephLogDir": "/var/log/ceph",
        "cephLogStrategy": "remove",
        "fsType": "xfs",
    }
    found = parse(Parameters, given, "parameters")

    assert (found.data_pool, found.mounter, found.stripe_count) == ("k8s-ec", "rbd-nbd", 16)
    assert found.features == ("layering", "exclusive-lock", "object-map", "fast-diff", "deep-flatten")


def test_what_a_class_leaves_out_is_the_instances_to_say() -> None:
    found = parse(Parameters, {}, "parameters")

    assert (found.features, found.mounter, found.map_options, found.object_size) == ((), None, "", None)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("thickProvision", "true", "images are thin"),
        ("tryOtherMounters", "true", "set 'mounter: rbd-nbd' for"),
        ("mkfsOptions", "-m0", "blockSize, inodeSize"),
        ("volumeNamePrefix", "team-a-", "the driver names its images itself"),
        ("topologyConstrainedPools", "k8s", "since the instance has the pools: `pool`, `topology` and `pools`"),
        ("topologyConstrainedPools", '[{"poolName": "k8s"}]', "not a list of pools as ceph-csi writes it"),
        ("encryptionKMSID", "vault", "leave it out"),
        ("integrityMode", "hmac-sha256", "set encryption: luks2"),
        ("maxReadIops", "1000", "limits no I/O"),
        ("imageFormat", "1", "'imageFormat'"),
        ("objectSize", "1000", "'objectSize'"),
        ("objectSize", "5000000", "is not a power of two"),
        ("objectSize", "67108864", "'objectSize'"),
        ("stripeUnit", "65536", "needs stripeCount"),
        ("mounter", "krbd", "it takes: rbd, rbd-nbd"),
        ("dataPool", "a/b", "'dataPool': 'a/b' is not a name"),
        ("mapOptions", "krbd:no share", "'mapOptions'"),
        ("mapOptions", "nbd:exclusive", "'mapOptions': leave out 'exclusive'"),
        ("unmapOptions", "force", "'unmapOptions': leave out 'force'"),
        ("imageFeature", "layering", "did you mean 'imageFeatures'?"),
        ("datapool", "ec", "did you mean 'dataPool'?"),
    ],
)
def test_a_parameter_that_cannot_be_met_is_refused_with_a_remedy(key: str, value: str, says: str) -> None:
    assert says in refused(Parameters, **{key: value})


def test_a_snapshot_class_of_ceph_csi_is_read_as_it_is() -> None:
    assert parse(SnapshotParameters, {"clusterID": LEAST["fsid"], "pool": "k8s"}, "parameters").pool == "k8s"
    assert "names its images itself" in refused(SnapshotParameters, snapshotNamePrefix="nightly-")
    assert "names its images itself" in refused(GroupSnapshotParameters, volumeGroupNamePrefix="nightly-")
    assert parse(GroupSnapshotParameters, {"clusterID": LEAST["fsid"], "pool": "k8s"}, "parameters").pool == "k8s"


def test_a_node_is_where_the_first_name_that_matches_says() -> None:
    found = config(crush_locations={"node-a1": "zone:a|rack:r1", "node-a*": "zone:a", "node-b?": "zone:b"})

    wanted = {"node-a1": "zone:a|rack:r1", "node-a2": "zone:a", "node-b1": "zone:b", "node-b": "", "node-c1": ""}
    assert {node: found.crush_location(node) for node in wanted} == wanted
    assert config().crush_location("node-a1") == ""
