"""What the chart renders is what the oldest and the newest supported Kubernetes take, to the letter."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from .conftest import CHART, ROOT, VALUES, Release

VERSIONS = ("1.34", "1.37")
OPERATORS = (
    "snapshot.storage.k8s.io/",
    "groupsnapshot.storage.k8s.io/",
    "cbt.storage.k8s.io/",
    "cert-manager.io/",
    "monitoring.coreos.com/",
)


def strange(text: str) -> list[str]:
    """What the schemas of both versions have against the objects in the text."""
    kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="requirements.lock has the schemas")
    found = []
    for item in filter(None, yaml.safe_load_all(text)):
        for version in VERSIONS if not item["apiVersion"].startswith(OPERATORS) else ():
            try:
                kubernetes_validate.validate(item, version, strict=True)
            except kubernetes_validate.ValidationError as error:
                where = ".".join(map(str, error.path))
                found.append(f"{version}: {item['kind']} {item['metadata']['name']}: {where}: {error.message}")
    return found


@pytest.mark.deploy
def test_every_object_fits_the_schema_of_its_kind(release: Release) -> None:
    assert strange(yaml.safe_dump_all(release.objects)) == []


def test_the_schemas_refuse_a_key_that_does_not_exist(whole: Release) -> None:
    text = yaml.safe_dump(whole.one("CSIDriver")).replace("storageCapacity", "storageCapacities")

    assert strange(text)


def test_the_schemas_refuse_a_value_of_the_wrong_type(whole: Release) -> None:
    text = yaml.safe_dump(whole.one("DaemonSet")).replace("privileged: true", "privileged: 'yes'")

    assert strange(text)


def test_the_chart_names_the_oldest_version_that_is_tested() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())

    assert chart["kubeVersion"] == f">={VERSIONS[0]}.0-0"


def test_objects_of_operators_fit_the_operators_types(release: Release, parser: str, tmp_path: Path) -> None:
    ours = [item for item in release.objects if item["apiVersion"].startswith(OPERATORS)]
    file = tmp_path / "objects.yaml"
    file.write_text("\n---\n".join(map(yaml.safe_dump, ours)))

    done = subprocess.run([parser, "objects", str(file)], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{item['apiVersion']} {item['kind']}" for item in ours]


@pytest.mark.parametrize("values", VALUES, ids=lambda file: file.stem)
def test_helm_has_nothing_against_chart_and_values(values: Path, helm: str) -> None:
    words = [helm, "lint", "--strict", str(CHART), "--values", str(values)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout


def test_the_plain_manifests_are_what_the_chart_renders(helm: str, tmp_path: Path) -> None:
    subprocess.run([ROOT / "scripts/manifests", tmp_path], check=True)

    stored = {file.name: file.read_text() for file in (ROOT / "config/kubernetes").glob("*.yaml")}
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == stored, "run make manifests"


@pytest.mark.deploy
@pytest.mark.parametrize("file", sorted((ROOT / "config/kubernetes").glob("*.yaml")), ids=lambda file: file.stem)
def test_the_plain_manifests_fit_the_schemas(file: Path) -> None:
    assert strange(file.read_text()) == []


@pytest.mark.deploy
@pytest.mark.parametrize("file", sorted((ROOT / "config").glob("storageclass-*.yaml")), ids=lambda file: file.stem)
def test_the_example_classes_fit_the_schemas(file: Path) -> None:
    assert strange(file.read_text()) == []


@pytest.mark.deploy
def test_the_objects_that_the_guide_shows_fit_the_schemas() -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs/deploy.md").read_text(), re.DOTALL)
    objects = [block for block in blocks if "apiVersion:" in block]

    assert objects, "the guide shows none"
    assert [text for block in objects for text in strange(block)] == []
