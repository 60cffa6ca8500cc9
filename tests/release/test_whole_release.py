"""The whole of `make release` on a copy of the tree; `make matrix` runs it. Needs registries for pip, and helm."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from scripts.release import artifacts, clean_install, versions
from scripts.release.versions import ReleaseError, Version

from .conftest import git

pytestmark = pytest.mark.release


@dataclass(frozen=True)
class Released:
    """A copy of the tree after `make release`, and what the command printed."""

    tree: Path
    text: str


@pytest.fixture(scope="module")
def copy(original: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = shutil.copytree(original, tmp_path_factory.mktemp("whole") / "tree")
    (tree / ".tools/bin").mkdir(parents=True)
    shutil.copy2(os.environ["HELM"], tree / ".tools/bin")
    return tree


@pytest.fixture(scope="module")
def released(copy: Path) -> Released:
    command = [sys.executable, "-m", "scripts.release", "7.4.12"]
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return Released(copy, done.stdout)


def test_dist_has_an_archive_of_each_distribution_the_chart_the_plugin_and_the_arguments(released: Released) -> None:
    found = sorted(file.name for file in (released.tree / "dist").iterdir())

    count = len(versions.distributions(released.tree))
    assert [name for name in found if name.startswith("csi-multi")] == ["csi-multi-7.4.12.tgz"]
    assert len([name for name in found if name.endswith("-7.4.12-py3-none-any.whl")]) == count
    assert len([name for name in found if name.endswith("-7.4.12.tar.gz")]) == count
    assert len(found) == 2 * count + 3


def test_both_kinds_of_archives_were_installed_and_used(released: Released) -> None:
    for kind in clean_install.KINDS:
        assert f"{kind} install in a clean environment, and the driver works there" in released.text


def test_the_arguments_are_all_that_the_containerfile_takes(released: Released) -> None:
    lines = (released.tree / "dist/images.args").read_text().splitlines()
    given = dict(line.split("=", 1) for line in lines if not line.startswith("#"))

    taken = {
        line.split()[1].split("=")[0]
        for line in (released.tree / "Containerfile").read_text().splitlines()
        if line.startswith("ARG ")
    }
    assert set(given) == taken
    assert given["BACKENDS"] == "loop lvm ebs rbd"


def test_the_plugin_of_kubectl_can_be_run(released: Released) -> None:
    done = subprocess.run(
        [released.tree / "dist/kubectl-csi_multi", "--help"], capture_output=True, text=True, check=True
    )

    assert done.stdout.startswith("usage: kubectl csi-multi ")


def test_nothing_is_committed_tagged_or_pushed(released: Released) -> None:
    assert git(released.tree, "log", "--format=%s").split() == ["all"]
    assert git(released.tree, "tag") == ""
    assert "git tag -a v7.4.12" in released.text


def test_the_same_source_on_the_same_day_gives_the_same_archives(released: Released, tmp_path: Path) -> None:
    artifacts.package(released.tree / "backends/loop", tmp_path, datetime.now(UTC).date())

    for file in tmp_path.iterdir():
        assert file.read_bytes() == (released.tree / "dist" / file.name).read_bytes(), file.name


def test_a_wheel_that_is_missing_is_noticed(released: Released, tmp_path: Path) -> None:
    dist = shutil.copytree(released.tree / "dist", tmp_path / "dist")
    next(dist.glob("csi_multi_lvm*.whl")).unlink()

    with pytest.raises(ReleaseError, match="not one of each distribution"):
        list(clean_install.check(released.tree, dist, Version(7, 4, 12)))


def test_a_backend_that_cannot_be_loaded_once_installed_is_noticed(released: Released, tmp_path: Path) -> None:
    """As it would be with a module that the wheel leaves out."""
    dist, broken = tmp_path / "dist", tmp_path / "loop"
    shutil.copytree(released.tree / "dist", dist)
    shutil.copytree(released.tree / "backends/loop", broken)
    project = broken / "pyproject.toml"
    project.write_text(project.read_text().replace(".backend:LoopBackend", ".nowhere:LoopBackend"))
    artifacts.package(broken, dist, datetime.now(UTC).date())

    with pytest.raises(ReleaseError, match=r"(?s)in a clean environment `csi-multi check .*nowhere"):
        list(clean_install.check(released.tree, dist, Version(7, 4, 12)))
