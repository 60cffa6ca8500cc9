"""`make release` writes one version wherever it stands, and refuses what cannot be one."""

from __future__ import annotations

import re
import tomllib
from datetime import date
from pathlib import Path

import pytest

from scripts.release import versions
from scripts.release.__main__ import refuse_unready
from scripts.release.changelogs import date_all
from scripts.release.versions import ReleaseError, Version

from .conftest import git

NEW = Version(7, 4, 12)


def lines(tree: Path, *files: str) -> list[str]:
    return [line.strip() for file in files for line in (tree / file).read_text().splitlines()]


@pytest.fixture
def bumped(tree: Path) -> Path:
    versions.bump(tree, versions.current(tree), NEW)
    return tree


def test_all_distributions_get_the_version(bumped: Path) -> None:
    assert versions.current(bumped) == NEW
    assert {directory.name for directory in versions.distributions(bumped)} >= {"tree", "loop", "lvm", "ebs", "rbd"}


def test_our_distributions_require_each_others_new_version(bumped: Path) -> None:
    backend = tomllib.loads((bumped / "backends/loop/pyproject.toml").read_text())

    assert "csi-multi>=7.4.12,<8" in backend["project"]["dependencies"]


def test_a_requirement_without_a_ceiling_gets_one(tree: Path) -> None:
    file = tree / "backends/loop/pyproject.toml"
    file.write_text(re.sub(r"csi-multi>=[0-9.]+,<\d+", f"csi-multi>={versions.current(tree)}", file.read_text()))

    versions.bump(tree, versions.current(tree), NEW)

    assert '"csi-multi>=7.4.12,<8"' in file.read_text()


@pytest.mark.parametrize("file", ["examples/third-party-backend/pyproject.toml", "docs/writing-a-backend.md"])
def test_a_strangers_package_keeps_its_version_and_admits_the_new_core(bumped: Path, file: str) -> None:
    text = (bumped / file).read_text()

    assert 'version = "0.1.0"' in text
    assert "csi-multi>=0.1,<8" in text


def test_a_release_below_the_next_major_changes_nothing_in_a_strangers_package(tree: Path) -> None:
    old = versions.current(tree)

    changed = versions.bump(tree, old, Version(old.major, old.minor + 1, 0))

    assert not [file for file in changed if "examples" in file.parts or file.name == "writing-a-backend.md"]


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("config/helm/csi-multi/Chart.yaml", "version: 7.4.12"),
        ("config/helm/csi-multi/Chart.yaml", 'appVersion: "7.4.12"'),
        ("config/kubernetes/loop.yaml", "image: csi-multi-node:7.4.12"),
        ("config/kubernetes/all.yaml", 'app.kubernetes.io/version: "7.4.12"'),
        ("config/nomad/node.nomad.hcl", 'image        = "csi-multi-node:7.4.12"'),
        ("Containerfile", "#   podman build --target controller -t csi-multi-controller:7.4.12 ."),
    ],
)
def test_the_version_stands_wherever_it_is_read(bumped: Path, file: str, line: str) -> None:
    assert line in lines(bumped, file)


def test_chart_values_guide_and_labels_name_the_new_images(bumped: Path) -> None:
    for file, words in (
        ("config/helm/csi-multi/values.yaml", 'tag: "7.4.12"'),
        ("docs/deploy.md", 'tag: "7.4.12"'),
        ("docs/deploy.md", "csi-multi-node:7.4.12"),
        ("docs/backend-image.md", "csi-multi-node:7.4.12"),
        ("Containerfile", 'org.opencontainers.image.version="7.4.12"'),
    ):
        assert words in (bumped / file).read_text(), file


def test_a_place_that_nobody_thought_of_stops_the_release(tree: Path) -> None:
    old = versions.current(tree)
    (tree / "README.md").write_text(f"csi_multi {old} is the best yet\n")

    with pytest.raises(ReleaseError, match=r"still stands in README.md:1; add the place"):
        versions.bump(tree, old, NEW)


def test_a_backend_with_another_version_stops_the_release(tree: Path) -> None:
    file = tree / "backends/lvm/pyproject.toml"
    file.write_text(file.read_text().replace('version = "', 'version = "9', 1))

    with pytest.raises(ReleaseError, match=r"differ in their version: .* backends/lvm 9"):
        versions.current(tree)


@pytest.mark.parametrize(
    "text", ["", "1.2", "v1.2.3", "1.2.3rc1", "1.2.3-rc.1", "1.02.3", "1.2.3.4", "1.2.x", " 1.2.3"]
)
def test_what_is_no_version_for_python_and_helm_is_refused(text: str) -> None:
    with pytest.raises(ReleaseError, match="is not a version"):
        versions.parse(text)


def test_an_older_version_is_refused(bumped: Path) -> None:
    git(bumped, "commit", "--quiet", "--all", "--message", "new")

    with pytest.raises(ReleaseError, match=r"7\.4\.11 is older than 7\.4\.12"):
        refuse_unready(bumped, Version(7, 4, 11))


def test_a_version_is_released_once(tree: Path) -> None:
    date_all(tree, NEW, date(2031, 5, 6))
    git(tree, "commit", "--quiet", "--all", "--message", "released")

    with pytest.raises(ReleaseError, match=r"7\.4\.12 was released before"):
        refuse_unready(tree, NEW)


def test_a_tree_with_changes_is_refused(tree: Path) -> None:
    (tree / "new.txt").touch()

    with pytest.raises(ReleaseError, match=r"not committed; commit or stash them:\n\?\? new.txt"):
        refuse_unready(tree, NEW)
