"""Chart and driver are updated, and taken back, while claims are made, used and deleted: none is lost."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from .conftest import Helm, volumes_of
from .driver_pods import driver_pods
from .install import CHART
from .kubectl import Kubectl
from .objects import claim, pod
from .on_node import OnNode
from .versions import VALUES

NEXT = "next"  # the tag of the images after the update
STEADY = [f"steady-{n}" for n in range(4)]
EACH = 4  # claims of a round
WRITER = "trap 'exit 0' TERM; n=0; while :; do n=$((n + 1)); echo $n > /data/number; sync /data/number; sleep 0.2; done"


@pytest.fixture
def next_chart(nodes: list[OnNode], tmp_path: Path) -> list[str]:
    """The words of helm for a chart of another release, whose images the nodes have."""
    for image in (VALUES["image"][name] for name in ("controller", "node")):
        name = f"docker.io/library/{image['repository']}"
        for node in nodes:
            node.containers("images", "tag", "--force", f"{name}:{image['tag']}", f"{name}:{NEXT}")
    chart = Path(shutil.copytree(CHART, tmp_path / "csi-multi"))
    file = chart / "Chart.yaml"
    file.write_text(file.read_text().replace("0.1.0", "0.1.1"))
    return [str(chart), f"--set=image.controller.tag={NEXT},image.node.tag={NEXT}", "--reuse-values"]


def test_claims_go_on_while_chart_and_driver_are_updated_and_taken_back(
    kubectl: Kubectl, helm: Helm, next_chart: list[str], nodes: list[OnNode]
) -> None:
    before = images(nodes)
    kubectl.create(*(one for name in STEADY for one in (claim(name), pod(name, script=WRITER))))
    kubectl.wait_running(*STEADY)
    wait = ("--wait", "--timeout=300s")

    with running(helm, "upgrade", "csi-multi", *next_chart, *wait) as update:
        made = load(kubectl, "up", update)
    assert tags(kubectl) == {NEXT}
    with running(helm, "rollback", "csi-multi", *wait) as update:
        made += load(kubectl, "down", update)
    assert tags(kubectl) == {VALUES["image"]["node"]["tag"]}

    assert made >= 4 * EACH, "claims were made meanwhile"
    for name in STEADY:
        number = int(kubectl.run(name, "cat /data/number"))
        kubectl.until(f"{name} writes", lambda name=name, number=number: read(kubectl, name) > number)
        assert kubectl.get("pod", name)["status"]["containerStatuses"][0]["restartCount"] == 0
    kubectl.until("the volumes of all rounds gone", lambda: len(volumes_of(kubectl)) == len(STEADY))
    kubectl.until("their files, too", lambda: len(images(nodes) - before) == len(STEADY))


def load(kubectl: Kubectl, prefix: str, update: Future[None]) -> int:
    """Make claims with pods, write, read and delete, round by round until the update is done; return how many."""
    made = 0
    while not update.done() or made < 2 * EACH:
        names = [f"{prefix}-{n}" for n in range(made, made + EACH)]
        kubectl.create(*(one for name in names for one in (claim(name), pod(name))))
        kubectl.wait_running(*names)
        for name in names:
            kubectl.run(name, f"echo {name} > /data/file; sync")
        assert [kubectl.run(name, "cat /data/file") for name in names] == names
        kubectl("delete", "pod", *names, "--wait=false")
        kubectl("delete", "pvc", *names, "--wait=false")
        made += EACH
    return made


@contextmanager
def running(helm: Helm, *words: str) -> Iterator[Future[None]]:
    """Run helm beside the block. Fails when helm does, and waits for its end."""

    def run() -> None:
        done = helm(*words)
        assert done.returncode == 0, done.stdout + done.stderr

    with ThreadPoolExecutor(1) as pool:
        update = pool.submit(run)
        yield update
        update.result()


def tags(kubectl: Kubectl) -> set[str]:
    """Return the tags of the images of all pods of the driver that are not about to end."""
    pods = [one for one in driver_pods(kubectl).all("pod") if "deletionTimestamp" not in one["metadata"]]
    found = [one["image"] for pod in pods for one in pod["spec"]["containers"] if one["name"] == "driver"]
    return {image.rpartition(":")[2] for image in found}


def images(nodes: list[OnNode]) -> set[str]:
    return {f"{node.name}: {image}" for node in nodes for image in node.images()}


def read(kubectl: Kubectl, name: str) -> int:
    return int(kubectl.run(name, "cat /data/number"))
