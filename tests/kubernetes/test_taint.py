"""Nodes lose the startup taint when their kubelet knows the driver, and nothing else about them changes."""

from __future__ import annotations

import pytest

from csi_multi.kubernetes.api import RequestRefused, WatchExpired
from csi_multi.kubernetes.taint import StartupTaint

from .conftest import END, Cluster

DRIVER = "multi.csi.example.com"
TAINT = f"{DRIVER}/starting"


@pytest.fixture
def startup(cluster: Cluster) -> StartupTaint:
    return StartupTaint(cluster.api, DRIVER)


def test_a_node_whose_kubelet_knows_the_driver_loses_the_taint_and_keeps_the_others(
    cluster: Cluster, startup: StartupTaint
) -> None:
    cluster.node("node-1", "dedicated", TAINT, "another/starting")
    cluster.registered("node-1", "another", DRIVER)

    startup.check_all()

    assert cluster.taints("node-1") == ["dedicated", "another/starting"]


def test_a_node_whose_kubelet_does_not_know_the_driver_keeps_the_taint(cluster: Cluster, startup: StartupTaint) -> None:
    cluster.node("node-1", TAINT)
    cluster.registered("node-1", "another")
    cluster.node("node-2", TAINT)

    startup.check_all()

    assert cluster.taints("node-1") == cluster.taints("node-2") == [TAINT]


def test_a_node_without_the_taint_is_not_touched(cluster: Cluster, startup: StartupTaint) -> None:
    cluster.node("node-1", "dedicated")
    cluster.registered("node-1", DRIVER)

    startup.check_all()

    assert cluster.patches == 0


def test_all_pages_of_a_large_cluster_are_looked_at(cluster: Cluster, startup: StartupTaint) -> None:
    for number in range(5):
        cluster.node(f"node-{number}", TAINT)
        cluster.registered(f"node-{number}", DRIVER)

    startup.check_all()

    assert [cluster.taints(f"node-{number}") for number in range(5)] == [[]] * 5


def test_a_node_that_registers_later_loses_the_taint_then(cluster: Cluster, startup: StartupTaint) -> None:
    cluster.node("node-1", TAINT)
    version = startup.check_all()
    cluster.events.put({"type": "ADDED", "object": cluster.registered("node-1")})
    cluster.events.put({"type": "MODIFIED", "object": cluster.registered("node-1", DRIVER)})
    cluster.events.put(END)

    startup.watch(version)

    assert cluster.taints("node-1") == []


def test_a_bookmark_and_a_node_that_goes_are_no_reason_to_do_anything(cluster: Cluster, startup: StartupTaint) -> None:
    cluster.node("node-1", TAINT)
    cluster.events.put({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "9"}}})
    cluster.events.put({"type": "DELETED", "object": cluster.registered("node-1", DRIVER)})
    cluster.events.put(END)

    startup.watch("7")

    assert cluster.taints("node-1") == [TAINT]


def test_a_node_that_somebody_changed_meanwhile_is_read_again(cluster: Cluster, startup: StartupTaint) -> None:
    cluster.node("node-1", "dedicated", TAINT)
    cluster.conflicts = 1

    startup.check_node("node-1")

    assert cluster.taints("node-1") == ["dedicated"]


def test_a_node_that_is_gone_is_no_trouble(cluster: Cluster, startup: StartupTaint) -> None:
    startup.check_node("node-9")

    assert cluster.patches == 0


def test_a_watch_that_is_too_old_ends_so_that_all_is_listed_again(cluster: Cluster, startup: StartupTaint) -> None:
    cluster.events.put({"type": "ERROR", "object": {"kind": "Status", "code": 410}})
    cluster.events.put(END)

    with pytest.raises(WatchExpired):
        startup.watch("1")


def test_any_other_error_of_a_watch_is_told(cluster: Cluster, startup: StartupTaint) -> None:
    cluster.events.put({"type": "ERROR", "object": {"kind": "Status", "code": 500, "message": "etcd"}})
    cluster.events.put(END)

    with pytest.raises(RequestRefused, match="etcd"):
        startup.watch("1")
