"""A namespace for each test, from which everything is gone at its end: objects, PVs, files, mounts."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .cluster import Cluster
from .driver_pods import NAMESPACE
from .kubectl import DRIVER, Kubectl, Object
from .objects import storage_class
from .on_node import OnNode

HERE = Path(__file__).parent
NewClass = Callable[..., str]
Helm = Callable[..., subprocess.CompletedProcess[str]]
Figure = Callable[[str], None]
_figures: list[str] = []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker("kubernetes")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in _figures:
        terminalreporter.write_line(f"measured: {line}")


@pytest.fixture(scope="session")
def figure() -> Figure:
    """figure(TEXT) says what was measured, at the end of the run."""
    return _figures.append


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster | None]:
    """The cluster on this machine, which another process has started; none where the tests use another's."""
    known = json.loads(os.environ.get("KUBERNETES_CLUSTER", "null"))
    cluster = Cluster(Path(known["directory"]), nodes=known["nodes"]) if known else None
    yield cluster
    for node in cluster.nodes if cluster else ():
        node.stop()  # if a test has started it again


@pytest.fixture(scope="session")
def all_nodes(cluster: Cluster | None) -> list[OnNode]:
    """The nodes of a cluster on this machine; none on another's."""
    return [OnNode(node.name, node.home) for node in (cluster.nodes if cluster else ())]


@pytest.fixture
def nodes(all_nodes: list[OnNode]) -> list[OnNode]:
    if not all_nodes:
        pytest.skip("needs a cluster that `make kubernetes` starts on this machine")
    return all_nodes


@pytest.fixture
def two_nodes(nodes: list[OnNode]) -> tuple[OnNode, OnNode]:
    """The first node, which has the control plane, and another one."""
    if len(nodes) < 2:
        pytest.skip("needs two nodes: make kubernetes NODES=2")
    return nodes[0], nodes[1]


@pytest.fixture
def spare(two_nodes: tuple[OnNode, OnNode]) -> OnNode:
    """A node that may be switched off."""
    return two_nodes[1]


@pytest.fixture
def here(cluster: Cluster | None) -> Cluster:
    if cluster is None:
        pytest.skip("needs a cluster that `make kubernetes` starts on this machine")
    return cluster


@pytest.fixture
def kubectl(all_nodes: list[OnNode]) -> Iterator[Kubectl]:
    if "KUBERNETES_KUBECTL" not in os.environ:
        pytest.skip("needs a cluster: make kubernetes")
    before = {node.name: node.traces() for node in all_nodes}
    name = f"csi-multi-test-{secrets.token_hex(3)}"
    kubectl = Kubectl(json.loads(os.environ["KUBERNETES_KUBECTL"]), name)
    kubectl("create", "namespace", name)
    kubectl("label", "namespace", name, "pod-security.kubernetes.io/enforce=privileged")
    yield kubectl
    # Not by the end of the namespace, which looks only every few seconds whether it is empty.
    kubectl("delete", "statefulset,pod,pvc,volumesnapshot", "--all", "--wait=false")
    kubectl.until("its PVs and snapshots gone", lambda: not volumes_of(kubectl) and not snapshots_of(kubectl))
    kubectl.until("its pods gone", lambda: not kubectl.all("pod"))
    kubectl("delete", "namespace", name, "--wait=false")
    left = [f"{node.name}: {trace}" for node in all_nodes for trace in node.traces() - before[node.name]]
    assert not left, "volumes have left something"


@pytest.fixture
def helm() -> Helm:
    """helm(WORD, ...) runs helm for the driver's release."""
    words = json.loads(os.environ.get("KUBERNETES_HELM", "[]"))

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [*words, *arguments, "--namespace", NAMESPACE]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    if not words or run("status", "csi-multi").returncode:
        pytest.skip("needs the release csi-multi in the namespace csi-multi")
    return run


@pytest.fixture
def new_class(kubectl: Kubectl) -> Iterator[NewClass]:
    """new_class(binding=..., fs_type=..., PARAMETER=...) creates a StorageClass for the test, and returns its name."""
    names: list[str] = []

    def create(**given: str) -> str:
        name = f"{kubectl.namespace}-{len(names)}"
        kubectl.create(storage_class(name, **given))
        names.append(name)
        return name

    yield create
    if names:
        kubectl("delete", "storageclass", "--ignore-not-found", *names)


def volumes_of(kubectl: Kubectl) -> list[Object]:
    """Return the PVs of the driver whose claims are in the test's namespace."""
    return [
        one
        for one in kubectl.all("pv")
        if one["spec"].get("csi", {}).get("driver") == DRIVER
        and one["spec"]["claimRef"]["namespace"] == kubectl.namespace
    ]


def snapshots_of(kubectl: Kubectl) -> list[Object]:
    """Return the snapshots of the storage whose objects are in the test's namespace."""
    found = kubectl.all("volumesnapshotcontent")
    return [one for one in found if one["spec"]["volumeSnapshotRef"]["namespace"] == kubectl.namespace]


def taints(kubectl: Kubectl, node: OnNode) -> str:
    return " ".join(taint["key"] for taint in kubectl.get("node", node.name)["spec"].get("taints", []))
