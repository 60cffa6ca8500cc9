"""The API server is away for a minute, longer than any lease: what was asked for before happens afterwards, once."""

from __future__ import annotations

import time

from .conftest import volumes_of
from .faults import without
from .kubectl import Kubectl, KubectlFailed
from .objects import claim, pod
from .on_node import OnNode

AWAY = 60.0  # seconds
CLAIMS = [f"data-{n}" for n in range(8)]


def test_claims_that_were_made_before_become_volumes_afterwards_and_pods_go_on_meanwhile(
    kubectl: Kubectl, nodes: list[OnNode]
) -> None:
    kubectl.create(claim("user"), pod("user"))
    kubectl.wait_running("user")
    kubectl.run("user", "echo early > /data/file; sync")
    volume = kubectl.volume("user")["metadata"]["name"]
    node, path = next((node, one) for node in nodes for one in node.mounts() if f"{volume}/mount" in one)
    images = {node.name: node.images() for node in nodes}
    kubectl.create(*(one for name in CLAIMS for one in (claim(name), pod(name))))
    with without(nodes[0], "kube-apiserver"):
        back = time.monotonic() + AWAY
        while time.monotonic() < back:
            node.run("sh", "-c", 'date +%s > "$1/file"; sync "$1/file"; sleep 1', "sh", path)
        written = node.run("cat", f"{path}/file").strip()

    kubectl.until("the API server is back", lambda: answers(kubectl))
    kubectl.wait_running("user", *CLAIMS)

    assert kubectl.run("user", "cat /data/file") == written
    assert len(volumes_of(kubectl)) == len(CLAIMS) + 1
    assert sum(len(node.images() - images[node.name]) for node in nodes) == len(CLAIMS)


def answers(kubectl: Kubectl) -> bool:
    try:
        kubectl("get", "--raw", "/readyz")
    except KubectlFailed:
        return False
    return True
