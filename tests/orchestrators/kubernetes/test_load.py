"""Many claims and pods at once, and half of them that go while others come: what each takes, and the driver.

They are 200 and 100, or LOAD and half of that.
"""

from __future__ import annotations

import os
import time
from datetime import datetime
from statistics import quantiles

from .conftest import Figure, volumes_of
from .driver_pods import containers
from .kubectl import Kubectl
from .objects import claim, pod
from .on_node import OnNode

COUNT = int(os.environ.get("LOAD", "200"))
CHURN = COUNT // 2
LIMIT = 900.0  # seconds, on a machine that does much else
SIZE = "16Mi"
SCRIPT = "echo $HOSTNAME > /data/name && sync /data/name && exec sleep 1000000000"


def test_many_claims_at_once_become_volumes_of_running_pods(
    kubectl: Kubectl, nodes: list[OnNode], figure: Figure
) -> None:
    first = [f"load-{n}" for n in range(COUNT)]
    others = [f"other-{n}" for n in range(CHURN)]
    began, used = time.monotonic(), usage(kubectl, nodes)
    create(kubectl, first)
    kubectl.wait_running(*first, limit=LIMIT)
    figure(f"{COUNT} claims with pods at once on {len(nodes)} nodes: {time.monotonic() - began:.0f} s")
    figure(f"claim to running pod: {percentiles(kubectl, first)}")
    now = usage(kubectl, nodes)
    figure(f"the driver in all pods: {(now[0] - used[0]) / COUNT:.2f} s of processor per claim, {now[1]} MiB at most")

    began = time.monotonic()
    gone = first[:CHURN]
    kubectl("delete", "pod", *gone, "--wait=false")
    kubectl("delete", "pvc", *gone, "--wait=false")
    create(kubectl, others)
    kubectl.wait_running(*others, limit=LIMIT)
    kubectl.until("the others gone", lambda: len(volumes_of(kubectl)) == COUNT, LIMIT)
    figure(f"{CHURN} claims with pods that go while as many come: {time.monotonic() - began:.0f} s")
    figure(f"claim to running pod meanwhile: {percentiles(kubectl, others)}")

    kept = first[CHURN:] + others
    assert {name: kubectl.run(name, "cat /data/name") for name in kept[::10]} == {name: name for name in kept[::10]}
    began = time.monotonic()
    kubectl("delete", "pod,pvc", "--all", "--wait=false")
    kubectl.until("all PVs gone", lambda: not volumes_of(kubectl), LIMIT)
    figure(f"{COUNT} pods and claims deleted at once: {time.monotonic() - began:.0f} s until the last PV was gone")


def create(kubectl: Kubectl, names: list[str]) -> None:
    kubectl.create(*(one for name in names for one in (claim(name, SIZE), pod(name, script=SCRIPT))))


def percentiles(kubectl: Kubectl, names: list[str]) -> str:
    """Return how long it took from the claims to their pods, in seconds as the API server has them."""
    claims = {one["metadata"]["name"]: moment(one["metadata"]["creationTimestamp"]) for one in kubectl.all("pvc")}
    took = [
        moment(condition["lastTransitionTime"]) - claims[one["metadata"]["name"]]
        for one in kubectl.all("pod")
        if one["metadata"]["name"] in names
        for condition in one["status"]["conditions"]
        if condition["type"] == "Ready"
    ]
    parts = quantiles(took, n=100, method="inclusive")
    return f"median {parts[49]:.0f} s, 90 % within {parts[89]:.0f} s, 99 % within {parts[98]:.0f} s"


def moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def usage(kubectl: Kubectl, nodes: list[OnNode]) -> tuple[float, int]:
    """Return the seconds of processor of all drivers and their commands, and the MiB that the largest one ever had."""
    seconds, most = 0.0, 0
    for container in containers(kubectl, "driver"):
        for node in nodes:
            if pid := node.process(container):
                fields = node.run("cat", f"/proc/{pid}/stat").rpartition(")")[2].split()
                seconds += sum(map(int, fields[11:15])) / 100
                status = node.run("cat", f"/proc/{pid}/status")
                most = max(most, int(status.partition("VmHWM:")[2].split()[0]) >> 10)
    return seconds, most
