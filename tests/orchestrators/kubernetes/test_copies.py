"""Snapshots, volumes restored from them, clones: each has the bytes of its moment.

A pod with a copy is placed on the node of the source, as users have to do: a scheduler that spreads pods over several
nodes chooses another one again and again.
"""

from __future__ import annotations

from .kubectl import Kubectl
from .objects import claim, from_claim, from_snapshot, pod, snapshot


def wait_ready(kubectl: Kubectl, name: str) -> None:
    kubectl.until("the snapshot ready", lambda: kubectl.get("volumesnapshot", name).get("status", {}).get("readyToUse"))


def test_a_restored_volume_has_the_bytes_of_the_snapshot_and_not_the_later_ones(kubectl: Kubectl) -> None:
    kubectl.create(claim("data"), pod("user", "data"))
    kubectl.wait_running("user")
    kubectl.run("user", "echo early > /data/file; sync")
    node = kubectl.node_of("user")
    kubectl.create(snapshot("moment", "data"))
    wait_ready(kubectl, "moment")
    kubectl.run("user", "echo late > /data/file; sync")

    kubectl.create(claim("restored", source=from_snapshot("moment")), pod("restored", host=node))
    kubectl.wait_running("restored")

    assert kubectl.run("restored", "cat /data/file") == "early"
    assert kubectl.run("user", "cat /data/file") == "late"


def test_a_snapshot_outlives_its_volume(kubectl: Kubectl) -> None:
    kubectl.create(claim("data"), pod("user", "data"))
    kubectl.wait_running("user")
    kubectl.run("user", "echo kept > /data/file; sync")
    node = kubectl.node_of("user")
    kubectl.create(snapshot("moment", "data"))
    wait_ready(kubectl, "moment")
    kubectl.delete("pod", "user")
    kubectl.delete("pvc", "data")

    kubectl.create(claim("restored", source=from_snapshot("moment")), pod("restored", host=node))
    kubectl.wait_running("restored")

    assert kubectl.run("restored", "cat /data/file") == "kept"


def test_a_clone_has_the_bytes_of_its_source_and_goes_its_own_way(kubectl: Kubectl) -> None:
    kubectl.create(claim("data"), pod("user", "data"))
    kubectl.wait_running("user")
    kubectl.run("user", "echo both > /data/file; sync")

    kubectl.create(claim("clone", source=from_claim("data")), pod("clone", host=kubectl.node_of("user")))
    kubectl.wait_running("clone")
    assert kubectl.run("clone", "cat /data/file") == "both"
    kubectl.run("clone", "echo clone > /data/file; sync")

    assert kubectl.run("user", "cat /data/file") == "both"


def test_a_clone_that_is_larger_has_a_filesystem_of_its_size(kubectl: Kubectl) -> None:
    kubectl.create(claim("data"), pod("user", "data"))
    kubectl.wait_running("user")
    kubectl.run("user", "echo both > /data/file; sync")
    kubectl.create(claim("clone", "128Mi", source=from_claim("data")), pod("clone", host=kubectl.node_of("user")))
    kubectl.wait_running("clone")

    assert kubectl.run("clone", "cat /data/file") == "both"
    assert int(kubectl.run("clone", "df -k /data | tail -n 1").split()[1]) > 90 << 10
