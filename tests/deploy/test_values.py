"""What single values change: snapshots, quota, kinds of your own, nodes of your choice."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .conftest import EXAMPLES, Release, stored

HEAD = "driver: {name: multi.csi.example.com}\n"
EBS = HEAD + "backends: {cloud: {kind: ebs, region: eu-west-1}}\n"
OWN = HEAD + "backends: {san: {kind: acme}}\n"
(LOOP,) = (file for file in EXAMPLES if file.stem == "loop")


def snapshots(release: Release) -> list[str]:
    return [one["kind"] for one in release.objects if one["apiVersion"].startswith("snapshot.storage.k8s.io")]


def test_without_a_snapshotter_nothing_needs_the_crds_of_snapshots(rendered: Callable[..., Release]) -> None:
    """One object of a kind that the cluster does not have, and helm installs none of all."""
    values = {"sidecars": {"snapshotter": {"enabled": False}}, "volumeSnapshotClasses": [{"name": "snap"}]}

    assert snapshots(rendered(EBS, **values)) == []
    assert snapshots(rendered(EBS, volumeSnapshotClasses=values["volumeSnapshotClasses"])) == ["VolumeSnapshotClass"]


def test_the_first_look_needs_no_more_than_a_cluster_has_from_the_start() -> None:
    release = Release(LOOP, stored(LOOP))
    groups = {one["apiVersion"].rpartition("/")[0] for one in release.objects}

    assert {group for group in groups if "." in group and not group.endswith(".k8s.io")} == set()
    assert snapshots(release) == []
    assert "snapshotter" not in release.containers("Deployment")


def test_there_is_a_quota_for_the_critical_classes_only_where_one_is_asked_for(
    rendered: Callable[..., Release],
) -> None:
    release = rendered(EBS, resourceQuota={"enabled": True}, node={"priorityClassName": "mine"})
    quota = release.one("ResourceQuota")["spec"]

    assert quota["hard"] == {"pods": "100000"}
    assert quota["scopeSelector"]["matchExpressions"] == [
        {"scopeName": "PriorityClass", "operator": "In", "values": ["mine", "system-cluster-critical"]}
    ]
    assert rendered(EBS).all("ResourceQuota") == []


@pytest.mark.parametrize("attached", [True, False])
def test_volumes_of_a_kind_of_your_own_are_attached_if_the_values_say_so(
    rendered: Callable[..., Release], attached: bool
) -> None:
    release = rendered(OWN, csiDriver={"attachKinds": ["acme"] if attached else []})

    assert release.one("CSIDriver")["spec"]["attachRequired"] is attached
    assert ("attacher" in release.containers("Deployment")) is attached


def test_kubelet_asks_again_how_many_volumes_a_node_can_have_where_volumes_are_attached(
    rendered: Callable[..., Release],
) -> None:
    def seconds(config: str, **values: object) -> object:
        return rendered(config, csiDriver=values).one("CSIDriver")["spec"].get("nodeAllocatableUpdatePeriodSeconds")

    assert seconds(EBS) == 600
    assert seconds(EBS, nodeAllocatableUpdatePeriodSeconds=10) == 10
    assert seconds(EBS, nodeAllocatableUpdatePeriodSeconds=0) is None
    assert seconds(OWN) is None


def test_kinds_that_are_all_attached_need_no_word_in_the_configuration(rendered: Callable[..., Release]) -> None:
    both = HEAD + "backends: {cloud: {kind: ebs, region: eu-west-1}, san: {kind: acme}}\n"

    assert rendered(both, csiDriver={"attachKinds": ["acme"]}).one("CSIDriver")["spec"]["attachRequired"] is True


@pytest.mark.parametrize("labels", ["storage=local", "kubernetes.io/os=linux, storage == local"])
def test_the_controller_may_ask_fewer_nodes_than_have_the_driver(rendered: Callable[..., Release], labels: str) -> None:
    config = EBS + f"cluster: {{kubernetes: {{port: 9810, labels: '{labels}'}}}}\n"

    release = rendered(config, node={"nodeSelector": {"storage": "local"}})

    assert release.pod("DaemonSet")["nodeSelector"] == {"kubernetes.io/os": "linux", "storage": "local"}


@pytest.mark.parametrize("name", ["loop", "lvm"])
def test_the_examples_ask_no_nodes_of_other_systems(name: str) -> None:
    (file,) = (one for one in EXAMPLES if one.stem == name)

    assert "kubernetes.io/os=linux" in Release(file, stored(file)).config["cluster"]["kubernetes"]["labels"]
