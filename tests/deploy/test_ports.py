"""Ports of the host: the pods of nodes are in its network, beside those of other drivers."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from .conftest import CHART, Object, Release

HEAD = "driver: {name: multi.csi.example.com, metrics: '0.0.0.0:19809'}\n"
EBS = HEAD + "backends: {cloud: {kind: ebs, region: eu-west-1}}\n"
TAKEN = {
    9808,  # the usual port of livenessprobe, which hostpath, vSphere, Hetzner, Piraeus and others keep
    9809,  # juicefs
    9810,  # Alibaba's disks
    9909,  # juicefs before
    10300,  # OpenShift's drivers
    10301,
}


def ports(release: Release) -> dict[str, Object]:
    return {port["name"]: port for one in release.containers("DaemonSet").values() for port in one.get("ports", ())}


def test_the_scheduler_sees_every_port_that_is_opened_on_the_host(release: Release) -> None:
    found = ports(release)
    (endpoint,) = [
        word
        for word in release.containers("DaemonSet")["livenessprobe"]["args"]
        if word.startswith("--http-endpoint=127.0.0.1:")
    ]
    listen = release.config.get("cluster", {}).get("listen", "")

    assert found["healthz"]["hostPort"] == found["healthz"]["containerPort"] == int(endpoint.rpartition(":")[2])
    assert found["healthz"]["hostIP"] == "127.0.0.1"
    assert [str(port["containerPort"]) for name, port in found.items() if name == "cluster"] == re.findall(
        r"\d+$", listen
    )


def test_the_probe_asks_where_the_livenessprobe_listens(release: Release) -> None:
    probe = release.containers("DaemonSet")["driver"]["livenessProbe"]["httpGet"]

    assert (probe["host"], probe["port"]) == ("127.0.0.1", ports(release)["healthz"]["containerPort"])


def test_no_port_of_the_host_is_the_usual_one_of_another_driver() -> None:
    values: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
    chosen = {values["node"]["healthPort"], values["controller"]["healthPort"], values["metrics"]["port"]}

    assert len(chosen) == 3
    assert not chosen & TAKEN
    assert all(1024 < port < 30000 for port in chosen)  # above: node ports, and what the kernel hands out


@pytest.mark.parametrize("address", ["0.0.0.0:19809", "'[::]:19809'"])
def test_metrics_are_declared_on_the_port_where_they_are_served(rendered: Callable[..., Release], address: str) -> None:
    config = EBS.replace("'0.0.0.0:19809'", address)

    assert ports(rendered(config, metrics={"enabled": True}))["metrics"]["containerPort"] == 19809


def test_a_controller_in_the_network_of_its_node_is_probed_on_loopback_only(rendered: Callable[..., Release]) -> None:
    release = rendered(EBS, controller={"hostNetwork": True, "healthPort": 19999})
    containers = release.containers("Deployment")

    assert release.pod("Deployment")["hostNetwork"] is True
    assert release.pod("Deployment")["dnsPolicy"] == "ClusterFirstWithHostNet"
    assert "--http-endpoint=127.0.0.1:19999" in containers["livenessprobe"]["args"]
    assert containers["driver"]["livenessProbe"]["httpGet"]["host"] == "127.0.0.1"
    assert containers["driver"]["ports"] == [{"name": "healthz", "containerPort": 19999}]


def test_a_controller_in_its_own_network_is_probed_by_the_kubelet(rendered: Callable[..., Release]) -> None:
    release = rendered(EBS)
    containers = release.containers("Deployment")

    assert "hostNetwork" not in release.pod("Deployment")
    assert "--http-endpoint=:19807" in containers["livenessprobe"]["args"]
    assert "host" not in containers["driver"]["livenessProbe"]["httpGet"]


@pytest.mark.parametrize(("network", "address"), [(True, "127.0.0.1"), (False, "")])
def test_the_diagnostics_of_changed_blocks_are_on_loopback_in_the_network_of_a_node(
    rendered: Callable[..., Release], network: bool, address: str
) -> None:
    served = {"enabled": True, "caCert": "-----BEGIN CERTIFICATE-----"}
    config = EBS.replace("{name", "{alpha: true, name", 1)
    release = rendered(config, controller={"hostNetwork": network}, sidecars={"snapshotMetadata": served})
    sidecar = release.containers("Deployment")["snapshot-metadata"]

    assert f"--http-endpoint={address}:19806" in sidecar["args"]
    assert sidecar["readinessProbe"]["httpGet"].get("host", "") == address


def test_backup_programs_are_told_where_changed_blocks_are_served_and_by_whom(whole: Release) -> None:
    service = next(one for one in whole.all("Service") if one["metadata"]["name"] == "csi-multi-snapshot-metadata")
    told = whole.one("SnapshotMetadataService")
    sidecar = whole.containers("Deployment")["snapshot-metadata"]
    (port,) = service["spec"]["ports"]

    assert told["metadata"]["name"] == whole.one("CSIDriver")["metadata"]["name"]
    assert told["spec"]["address"] == f"csi-multi-snapshot-metadata.csi-multi.svc:{port['port']}"
    assert b"BEGIN CERTIFICATE" in base64.b64decode(told["spec"]["caCert"])
    assert {"name": port["targetPort"], "containerPort": 50051} in sidecar["ports"]
    controller = next(one for one in whole.all("Deployment") if one["metadata"]["name"] == "csi-multi-controller")
    assert service["spec"]["selector"].items() <= controller["spec"]["template"]["metadata"]["labels"].items()
