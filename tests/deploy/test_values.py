"""What single values change: snapshots, quota, kinds of your own, nodes of your choice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import EXAMPLES, OWN, Object, Release, render, stored

HEAD = "driver: {name: multi.csi.example.com}\n"
EBS = HEAD + "backends: {cloud: {kind: ebs, region: eu-west-1}}\n"
OWN_KIND = HEAD + "backends: {san: {kind: acme}}\n"
(LOOP,) = (file for file in EXAMPLES if file.stem == "loop")


def snapshots(release: Release) -> list[str]:
    return [one["kind"] for one in release.objects if one["apiVersion"].startswith("snapshot.storage.k8s.io")]


def test_without_a_snapshotter_nothing_needs_the_crds_of_snapshots(rendered: Callable[..., Release]) -> None:
    """One object of a kind that the cluster does not have, and helm installs none of all."""
    values = {"sidecars": {"snapshotter": {"enabled": False}}, "volumeSnapshotClasses": [{"name": "snap"}]}

    assert snapshots(rendered(EBS, **values)) == []
    assert snapshots(rendered(EBS, volumeSnapshotClasses=values["volumeSnapshotClasses"])) == ["VolumeSnapshotClass"]


def test_groups_of_volumes_are_cut_only_where_the_cluster_has_their_crds(rendered: Callable[..., Release]) -> None:
    def groups(**snapshotter: bool) -> list[str]:
        release = rendered(EBS, volumeGroupSnapshotClasses=[{"name": "all"}], sidecars={"snapshotter": snapshotter})
        return [one["kind"] for one in release.objects if one["apiVersion"].startswith("groupsnapshot")]

    assert groups() == []
    assert groups(groups=True, enabled=False) == []
    assert groups(groups=True) == ["VolumeGroupSnapshotClass"]


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
    release = rendered(OWN_KIND, csiDriver={"attachKinds": ["acme"] if attached else []})

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
    assert seconds(OWN_KIND) is None


def driver(release: Release) -> Object:
    return release.containers("DaemonSet")["driver"]


def test_what_a_kind_of_your_own_needs_of_the_host_is_what_the_values_say(rendered: Callable[..., Release]) -> None:
    paths = [{"path": "/run/udev"}, {"path": "/etc/acme.conf", "type": "File", "readOnly": True}]
    variable = {"name": "ACME_REGION", "value": "eu"}
    release = rendered(OWN_KIND, node={"hostIPC": True, "hostPID": True, "hostPaths": paths, "env": [variable]})
    pod, mounts = release.pod("DaemonSet"), driver(release)["volumeMounts"]

    assert (pod["hostIPC"], pod["hostPID"]) == (True, True)
    assert [one["hostPath"] for one in pod["volumes"] if one["name"].startswith("host-")] == [
        {"path": "/run/udev", "type": "Directory"},
        {"path": "/etc/acme.conf", "type": "File"},
    ]
    assert [one.get("readOnly", False) for one in mounts if one["name"].startswith("host-")] == [False, True]
    assert variable in driver(release)["env"]


def test_a_controller_reaches_a_share_that_the_values_name(rendered: Callable[..., Release]) -> None:
    share = {"nfs": {"server": "nfs.example.com", "path": "/export"}}
    release = rendered(OWN_KIND, controller={"volumes": [{"path": "/srv/share", "source": share}]})

    assert {"name": "volume-0", **share} in release.pod("Deployment")["volumes"]
    mounts = release.containers("Deployment")["driver"]["volumeMounts"]
    assert {"name": "volume-0", "mountPath": "/srv/share"} in mounts


def test_a_kind_of_your_own_gets_nothing_of_the_host_by_itself(rendered: Callable[..., Release]) -> None:
    release = rendered(OWN_KIND)
    pod = release.pod("DaemonSet")

    assert not {"hostIPC", "hostPID"} & set(pod)
    assert {one["name"] for one in pod["volumes"] if "hostPath" in one} == {
        *("plugin", "registration", "kubelet", "dev", "modules")
    }


@pytest.mark.parametrize("values", OWN, ids=lambda file: file.parent.name)
def test_the_values_of_an_example_use_its_own_images_and_the_directory_of_its_configuration(
    values: Path, helm: str
) -> None:
    release = Release(values, render(helm, values))
    ((kind, place),) = ((one["kind"], one["directory"]) for one in release.config["backends"].values())
    (mount,) = (one for one in driver(release)["volumeMounts"] if one["mountPath"] == place)

    assert mount["mountPropagation"] == "HostToContainer"
    assert driver(release)["image"] == f"registry.example.com/{kind}-node:0.1.0"
    assert release.containers("Deployment")["driver"]["image"] == f"registry.example.com/{kind}-controller:0.1.0"


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
