"""What a new user takes from the guide: the objects of config/try, and what snapshots need beside the driver."""

from __future__ import annotations

import re

import yaml

from .conftest import ROOT

TRY = ROOT / "config/try"
GUIDE = ROOT / "docs/deploy.md"


def test_the_guide_shows_the_first_claim_as_the_file_has_it() -> None:
    assert f"```yaml\n{(TRY / 'first.yaml').read_text()}```\n" in GUIDE.read_text()


def test_each_claim_has_the_class_of_the_first_values_and_each_pod_a_claim() -> None:
    values = yaml.safe_load((ROOT / "config/helm/values/loop.yaml").read_text())
    objects = [one for file in TRY.glob("*.yaml") for one in yaml.safe_load_all(file.read_text())]
    claims = {one["metadata"]["name"]: one["spec"] for one in objects if one["kind"] == "PersistentVolumeClaim"}
    pods = [one["spec"] for one in objects if one["kind"] == "Pod"]

    assert {spec["storageClassName"] for spec in claims.values()} == {one["name"] for one in values["storageClasses"]}
    assert {pod["volumes"][0]["persistentVolumeClaim"]["claimName"] for pod in pods} == set(claims)


def test_the_guide_installs_the_snapshot_controller_of_the_release_of_the_charts_snapshotter() -> None:
    values = yaml.safe_load((ROOT / "config/helm/csi-multi/values.yaml").read_text())
    (version,) = re.findall(r"external-snapshotter version=(\S+)", GUIDE.read_text())

    assert values["sidecars"]["snapshotter"]["image"].endswith(f":{version}")
