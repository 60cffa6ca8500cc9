"""A claim becomes a volume, the volume's files outlive its pods, and the end of the claim is the end of both."""

from __future__ import annotations

import pytest

from .conftest import NewClass, volumes_of
from .kubectl import DRIVER, Kubectl
from .objects import claim, pod
from .on_node import OnNode


def test_a_claim_waits_for_its_pod_and_keeps_its_files_for_the_next_one(kubectl: Kubectl) -> None:
    kubectl.create(claim("data"))
    kubectl.until("the claim waits", lambda: kubectl.events("data", "WaitForFirstConsumer"))
    assert not kubectl.bound("data")

    kubectl.create(pod("writer", "data"))
    kubectl.wait_running("writer")
    kubectl.run("writer", "echo kept > /data/file; sync")
    kubectl.delete("pod", "writer")
    kubectl.create(pod("reader", "data"))
    kubectl.wait_running("reader")

    assert kubectl.run("reader", "cat /data/file") == "kept"


def test_a_claim_that_is_deleted_takes_pv_file_and_mounts_with_it(kubectl: Kubectl, nodes: list[OnNode]) -> None:
    before = {node.name: node.traces() for node in nodes}
    kubectl.create(claim("data"), pod("user", "data"))
    kubectl.wait_running("user")
    (volume,) = volumes_of(kubectl)
    used = {node.name: node.traces() for node in nodes}
    assert any(what.startswith("file ") for node in nodes for what in used[node.name] - before[node.name])
    assert any(what.startswith("mount ") for node in nodes for what in used[node.name] - before[node.name])

    kubectl.delete("pod", "user")
    kubectl.delete("pvc", "data")
    kubectl.until("the PV gone", lambda: not kubectl.exists("pv", volume["metadata"]["name"]))

    assert {node.name: node.traces() for node in nodes} == before


def test_a_class_that_binds_at_once_gives_a_volume_without_a_pod(kubectl: Kubectl, new_class: NewClass) -> None:
    kubectl.create(claim("data", storage_class=new_class(binding="Immediate")))
    kubectl.until("bound", lambda: kubectl.bound("data"))
    terms = kubectl.volume("data")["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
    (place,) = (one["matchExpressions"][0] for one in terms)
    assert place["key"] == f"{DRIVER}/node"

    kubectl.create(pod("user", "data"))
    kubectl.wait_running("user")

    assert [kubectl.get("pod", "user")["spec"]["nodeName"]] == place["values"]


@pytest.mark.parametrize("fs_type", ["ext4", "xfs", "btrfs"])
def test_a_volume_has_the_filesystem_of_its_class(kubectl: Kubectl, new_class: NewClass, fs_type: str) -> None:
    name = new_class(binding="WaitForFirstConsumer", fs_type=fs_type)
    kubectl.create(claim("data", "320Mi", storage_class=name), pod("user", "data"))
    kubectl.wait_running("user")

    assert kubectl.run("user", "grep ' /data ' /proc/mounts").split()[2] == fs_type


def test_a_raw_block_volume_has_its_size_and_keeps_its_bytes(kubectl: Kubectl) -> None:
    kubectl.create(claim("raw", block=True), pod("writer", "raw", block=True))
    kubectl.wait_running("writer")
    assert kubectl.run("writer", "blockdev --getsize64 /dev/data") == str(64 << 20)
    kubectl.run("writer", "printf raw-bytes | dd of=/dev/data bs=512 seek=7 conv=notrunc,fsync 2>&1")
    kubectl.delete("pod", "writer")
    kubectl.create(pod("reader", "raw", block=True))
    kubectl.wait_running("reader")

    assert kubectl.run("reader", "dd if=/dev/data bs=512 skip=7 count=1 2>/dev/null | head -c 9") == "raw-bytes"


def test_a_generic_ephemeral_volume_ends_with_its_pod(kubectl: Kubectl) -> None:
    kubectl.create(pod("user", template=claim("unused")))
    kubectl.wait_running("user")
    kubectl.run("user", "echo short > /data/file; sync")
    assert kubectl.bound("user-data")

    kubectl.delete("pod", "user")

    kubectl.until("the claim gone", lambda: not kubectl.exists("pvc", "user-data"))
    kubectl.until("the PV gone", lambda: not volumes_of(kubectl))


def test_the_files_of_a_volume_belong_to_the_group_of_its_pod(kubectl: Kubectl) -> None:
    user = {"runAsUser": 1000, "runAsGroup": 3000}
    kubectl.create(claim("data"), pod("first", "data", security={**user, "fsGroup": 5678}))
    kubectl.wait_running("first")
    kubectl.run("first", "for n in $(seq 200); do mkdir -p /data/$n; echo $n > /data/$n/file; done; sync")
    assert kubectl.run("first", "stat -c %g /data/200/file") == "5678"

    kubectl.delete("pod", "first")
    kubectl.create(pod("second", "data", security={**user, "fsGroup": 6789}))
    kubectl.wait_running("second")

    assert (
        kubectl.run("second", "find /data -mindepth 1 -name lost+found -prune -o -print | xargs stat -c %g | sort -u")
        == "6789"
    )
    assert kubectl.run("second", "echo more >> /data/200/file; cat /data/200/file") == "200\nmore"
