"""Values that cannot work are refused before anything is installed, and the message says what to do."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from csi_multi.loading.reload import RELOADABLE

from .conftest import CHART

HEAD = "driver: {name: multi.csi.example.com}\n"
LOOP = "backends: {scratch: {kind: loop, directory: /srv}}\n"
EBS = "backends: {cloud: {kind: ebs, region: eu-west-1}}\n"
MIXED = "backends: {cloud: {kind: ebs, region: eu-west-1}, ceph: {kind: rbd}}\n"


@pytest.fixture
def refusal(helm: str, tmp_path: Path) -> Callable[..., str]:
    def text(config: str, **values: Any) -> str:
        file = tmp_path / "values.yaml"
        file.write_text(yaml.safe_dump({"config": config, **values}))
        words = [helm, "template", "csi-multi", str(CHART), "--values", str(file)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode != 0, "it was accepted"
        return done.stderr

    return text


@pytest.mark.parametrize(
    ("config", "remedy"),
    [
        ("", "--set-file config=FILE"),
        ("driver: [", "csi-multi check FILE"),
        (HEAD + LOOP, "add a section 'cluster'"),
        (HEAD + MIXED, "attach_required: true"),
        (HEAD + "backends: {san: {kind: acme}, ceph: {kind: rbd}}\n", "volumes of acme are attached"),
        (HEAD + EBS + "cluster: {tls: {ca: /etc/ssl/ca.crt}}\n", "/etc/csi-multi/tls"),
        (HEAD + EBS + "cluster: {tls: {ca: /etc/csi-multi/tls/ca.crt}}\n", "node_identity"),
    ],
)
def test_a_configuration_that_cannot_work_is_refused(refusal: Callable[..., str], config: str, remedy: str) -> None:
    assert remedy in refusal(config, csiDriver={"attachKinds": ["acme"]})


def test_a_controller_that_would_make_the_volumes_of_nodes_in_its_own_pod_is_refused(
    refusal: Callable[..., str],
) -> None:
    text = refusal(HEAD + "backends: {san: {kind: acme}}\n", node={"localKinds": ["acme"]})

    assert "volumes of acme lie on nodes" in text
    assert "add a section 'cluster'" in text


@pytest.mark.parametrize(
    "values",
    [
        {"controler": {}},
        {"controller": {"replica": 3}},
        {"controller": {"replicas": 0}},
        {"sidecars": {"provisioner": {"image": "registry.example.com/csi-provisioner"}}},
        {"node": {"kubeletDirectory": "var/lib/kubelet"}},
        {"storageClasses": [{"name": "x", "parameters": {"iops": 4000}}]},
        {"storageClasses": [{"name": "x", "volumeBindingMode": "Later"}]},
        {"csiDriver": {"nodeAllocatableUpdatePeriodSeconds": 9}},
    ],
    ids=lambda values: json.dumps(values)[:50],
)
def test_values_that_the_schema_does_not_have_are_refused(refusal: Callable[..., str], values: dict[str, Any]) -> None:
    assert "values don't meet the specifications" in refusal(HEAD + EBS, **values)


def test_metrics_that_the_driver_does_not_serve_are_refused(refusal: Callable[..., str]) -> None:
    assert "driver.metrics" in refusal(HEAD + EBS, metrics={"enabled": True})


def test_metrics_on_another_port_than_the_driver_serves_are_refused(refusal: Callable[..., str]) -> None:
    config = HEAD.replace("}", ', metrics: "0.0.0.0:9100"}') + EBS

    assert "set metrics.port: 9100" in refusal(config, metrics={"enabled": True})


@pytest.mark.parametrize("labels", ["", "storage=remote", "storage", "disk=ssd,storage in (local)"])
def test_a_controller_that_would_ask_nodes_without_the_driver_is_refused(
    refusal: Callable[..., str], labels: str
) -> None:
    config = HEAD + EBS + f"cluster: {{kubernetes: {{port: 9810, labels: '{labels}'}}}}\n"

    assert 'add "storage=local"' in refusal(config, node={"nodeSelector": {"storage": "local"}})


def test_a_health_monitor_that_the_driver_does_not_answer_is_refused(refusal: Callable[..., str]) -> None:
    """It ends at once, again and again, with a driver that does not offer the alpha RPCs."""
    assert "driver.alpha" in refusal(HEAD + EBS, sidecars={"healthMonitor": {"enabled": True}})


def test_changed_blocks_that_the_driver_does_not_serve_are_refused(refusal: Callable[..., str]) -> None:
    assert "driver.alpha" in refusal(HEAD + EBS, sidecars={"snapshotMetadata": {"enabled": True}})


def test_changed_blocks_that_no_client_could_trust_are_refused(refusal: Callable[..., str]) -> None:
    config = HEAD.replace("}", ", alpha: true}") + EBS

    assert "--set-file" in refusal(config, sidecars={"snapshotMetadata": {"enabled": True}})


def test_alerts_without_rules_are_refused(refusal: Callable[..., str]) -> None:
    config = HEAD.replace("}", ', metrics: "0.0.0.0:19809"}') + EBS

    assert "--set-file" in refusal(config, metrics={"enabled": True, "prometheusRule": {"enabled": True}})


def test_a_class_of_a_backend_that_does_not_exist_is_refused(refusal: Callable[..., str]) -> None:
    text = refusal(HEAD + EBS, storageClasses=[{"name": "fast", "parameters": {"backend": "clowd"}}])

    assert 'no backend "clowd" in config; there are: cloud' in text


def properties(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    for name, found in schema.get("properties", {}).items():
        yield f"{path}.{name}", found
        yield from properties(found, f"{path}.{name}")
        yield from properties(found.get("items", {}), f"{path}.{name}[]")


def test_every_value_is_described() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())

    assert [path for path, found in properties(schema) if not found.get("description")] == []


def test_every_default_has_a_place_in_the_schema_and_every_setting_a_default() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())

    assert set(defaults) == set(schema["properties"]) - {"global"}
    for section in (
        "sidecars",
        "controller",
        "node",
        "startupTaint",
        "drain",
        "csiDriver",
        "tls",
        "resourceQuota",
        "metrics",
    ):
        assert set(defaults[section]) == set(schema["properties"][section]["properties"]), section


def test_pods_are_replaced_for_exactly_what_a_running_driver_does_not_take_over() -> None:
    template = (CHART / "templates/_helpers.tpl").read_text()
    left_out = re.search(r"omit \$config\.driver ((?:\"\w+\" )+)", template)

    assert left_out is not None
    assert set(re.findall(r"\w+", left_out[1])) == RELOADABLE


def test_controller_and_node_do_not_serve_metrics_on_one_port_of_a_host(refusal: Callable[..., str]) -> None:
    config = "driver: {name: multi.csi.example.com, metrics: '0.0.0.0:19809'}\n" + EBS
    text = refusal(config, controller={"hostNetwork": True}, metrics={"enabled": True})

    assert "controller.hostNetwork: with metrics.enabled controller and node would need the same port" in text
