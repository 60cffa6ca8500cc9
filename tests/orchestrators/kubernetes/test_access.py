"""ReadWriteOncePod: one pod at a time, by the scheduler's decision and past it."""

from __future__ import annotations

from .kubectl import Kubectl
from .objects import claim, pod


def test_a_second_pod_waits_until_the_first_one_is_gone(kubectl: Kubectl) -> None:
    kubectl.create(claim("data", mode="ReadWriteOncePod"), pod("first", "data"))
    kubectl.wait_running("first")
    kubectl.create(pod("second", "data"))
    (text,) = kubectl.until("the scheduler refuses", lambda: kubectl.events("second", "FailedScheduling"))
    assert "ReadWriteOncePod" in text
    assert kubectl.get("pod", "second")["status"]["phase"] == "Pending"

    kubectl.delete("pod", "first")

    kubectl.wait_running("second")


def test_a_pod_that_is_past_the_scheduler_gets_no_volume_that_another_one_has(kubectl: Kubectl) -> None:
    kubectl.create(claim("data", mode="ReadWriteOncePod"), pod("first", "data"))
    kubectl.wait_running("first")
    node = kubectl.get("pod", "first")["spec"]["nodeName"]
    kubectl.create(pod("second", "data", node=node))

    texts = kubectl.until("the kubelet refuses", lambda: kubectl.events("second", "FailedMount"))

    assert any("ReadWriteOncePod" in text for text in texts), texts
    assert kubectl.get("pod", "second")["status"]["phase"] == "Pending"
