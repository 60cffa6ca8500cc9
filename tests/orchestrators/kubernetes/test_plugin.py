"""`kubectl csi-multi` runs csi-multi in the driver's pods, with their configuration and rights."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from .kubectl import Kubectl
from .on_node import STORAGE, OnNode
from .versions import PROJECT

DIRECTORY = PROJECT / "config/kubectl"
Plugin = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def plugin(kubectl: Kubectl) -> Plugin:
    """plugin(WORD, ...) is `kubectl csi-multi WORD ...`, with its file in PATH, as its user has it."""
    *before, program = kubectl.words
    path = f"PATH={DIRECTORY}:{Path(program).absolute().parent}:{os.environ['PATH']}"

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [*before, "env", path, program, "csi-multi", *words]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    return run


def test_a_class_of_the_cluster_is_explained_with_the_drivers_own_configuration(plugin: Plugin) -> None:
    done = plugin("explain", "--class=scratch", "--size", "1Gi")

    assert done.returncode == 0, done.stderr
    assert "StorageClass scratch" in done.stdout


def test_on_a_node_its_storage_is_read(plugin: Plugin, nodes: list[OnNode]) -> None:
    done = plugin("--on", nodes[-1].name, "explain", "--class=scratch", "--size=1Gi")

    assert done.returncode == 0, done.stderr
    assert "OFFLINE" not in done.stdout


def test_the_configuration_is_shown_and_another_one_checked(plugin: Plugin, tmp_path: Path) -> None:
    file = tmp_path / "next.yaml"
    file.write_text("driver: {name: a.example.com}\nbackends: {disks: {kind: loop, directroy: /srv}}\n")

    shown, wrong = plugin("check"), plugin("check", str(file))

    assert "backend scratch" in shown.stdout, shown.stderr
    assert "directroy" in wrong.stderr
    assert wrong.returncode == 2


def test_a_namespace_without_the_driver_is_named(plugin: Plugin, kubectl: Kubectl) -> None:
    done = plugin("-n", kubectl.namespace, "backends")

    assert done.returncode == 1
    assert f"no controller pod of csi-multi in namespace '{kubectl.namespace}'" in done.stderr


def test_an_import_runs_on_the_node_that_is_named_and_its_refusal_is_shown(plugin: Plugin, nodes: list[OnNode]) -> None:
    node, file = nodes[-1], f"{STORAGE}/scratch/old.img"
    node.run("truncate", "--size=64M", file)
    try:
        done = plugin("--on", node.name, "import", "--instance=scratch", "--name=old", "--fs-type=ext4", file)
    finally:
        node.run("rm", file)

    assert done.returncode == 1
    assert f"{file} is in the directory of this instance" in done.stderr
    assert done.stdout == ""
