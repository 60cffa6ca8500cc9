"""Labels and annotations of one's own, how replicas are spread, and where the environment comes from."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .conftest import Object, Release

EBS = "driver: {name: multi.csi.example.com}\nbackends: {cloud: {kind: ebs, region: eu-west-1}}\n"
PARTS = [("Deployment", "controller"), ("DaemonSet", "node")]
COMPONENT = "app.kubernetes.io/component"


def pod_labels(release: Release, kind: str) -> Object:
    return dict(release.one(kind)["spec"]["template"]["metadata"]["labels"])


def test_labels_are_on_all_objects_and_pods(rendered: Callable[..., Release]) -> None:
    release = rendered(EBS, labels={"cost-center": "storage"}, tls={"certManager": {"enabled": True}})

    without = [
        (one["kind"], one["metadata"]["name"])
        for one in release.objects
        if one["metadata"].get("labels", {}).get("cost-center") != "storage"
    ]
    assert without == []
    assert {pod_labels(release, kind)["cost-center"] for kind, _ in PARTS} == {"storage"}


@pytest.mark.parametrize(("kind", "part"), PARTS)
def test_labels_and_annotations_of_a_part_are_on_its_pods_and_its_workload_only(
    rendered: Callable[..., Release], kind: str, part: str
) -> None:
    release = rendered(
        EBS, labels={"tier": "all"}, **{part: {"podLabels": {"tier": "one"}, "annotations": {"owner": "team"}}}
    )

    assert pod_labels(release, kind)["tier"] == "one"
    assert release.one(kind)["metadata"]["labels"]["tier"] == "all"
    assert release.one(kind)["metadata"]["annotations"] == {"owner": "team"}
    assert "owner" not in release.one(kind)["spec"]["template"]["metadata"]["annotations"]


@pytest.mark.parametrize(("kind", "part"), PARTS)
def test_a_label_does_not_replace_one_that_the_chart_selects_pods_by(
    rendered: Callable[..., Release], kind: str, part: str
) -> None:
    taken = {"app.kubernetes.io/name": "x", "app.kubernetes.io/instance": "x", COMPONENT: "x"}
    release = rendered(EBS, labels=taken, **{part: {"podLabels": taken}})

    selector = release.one(kind)["spec"]["selector"]["matchLabels"]
    assert selector[COMPONENT] == part
    assert selector.items() <= pod_labels(release, kind).items()


def test_replicas_are_spread_as_the_values_say_and_only_they_count(rendered: Callable[..., Release]) -> None:
    constraint = {"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "ScheduleAnyway"}
    release = rendered(EBS, controller={"topologySpreadConstraints": [constraint]})

    (given,) = release.pod("Deployment")["topologySpreadConstraints"]
    selector = release.one("Deployment")["spec"]["selector"]["matchLabels"]
    assert given == {**constraint, "labelSelector": {"matchLabels": selector}}
    assert "topologySpreadConstraints" not in rendered(EBS).pod("Deployment")


@pytest.mark.parametrize(("kind", "part"), PARTS)
def test_the_environment_of_a_driver_may_come_from_a_whole_config_map_or_secret(
    rendered: Callable[..., Release], kind: str, part: str
) -> None:
    sources = [{"configMapRef": {"name": "proxies"}}, {"secretRef": {"name": "keys"}}]
    containers = rendered(EBS, **{part: {"envFrom": sources}}).containers(kind)

    assert containers.pop("driver")["envFrom"] == sources
    assert [name for name, container in containers.items() if "envFrom" in container] == []


def test_all_sidecars_have_the_environment_of_the_values_and_drivers_have_not(rendered: Callable[..., Release]) -> None:
    variable = {"name": "GOMEMLIMIT", "value": "200MiB"}
    release = rendered(EBS, sidecars={"env": [variable]})

    for kind, _ in PARTS:
        for name, container in release.containers(kind).items():
            assert (variable in container.get("env", [])) is (name != "driver"), (kind, name)
