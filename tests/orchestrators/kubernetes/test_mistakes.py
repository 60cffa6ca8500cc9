"""What a user reads in `kubectl describe pvc` after a mistake: the thing, the rule, the remedy."""

from __future__ import annotations

from .conftest import NewClass, volumes_of
from .kubectl import Kubectl
from .objects import CLASS, claim, from_claim, pod

UNKNOWN = (
    "Volume provisioning failed with infeasible error. Retries will be delayed. rpc error: code = "
    "InvalidArgument desc = parameters: unknown key 'tpye'; valid keys: backend, blockSize, bytesPerInode, "
    "ext4BigAlloc, ext4ClusterSize, ext4EncryptionSupport, inodeSize, numberOfInodes, sectorSize"
)


def test_a_wrong_parameter_is_named_in_the_event_with_the_remedy(kubectl: Kubectl, new_class: NewClass) -> None:
    name = new_class(binding="Immediate", tpye="thin")
    kubectl.create(claim("data", storage_class=name))

    texts = kubectl.until("an event", lambda: kubectl.events("data", "ProvisioningFailed"))

    assert set(texts) == {UNKNOWN}
    assert not kubectl.bound("data")


def test_a_claim_larger_than_any_node_says_so_before_a_volume_is_made(kubectl: Kubectl) -> None:
    kubectl.create(claim("data", "4Ei"), pod("user", "data"))

    (text,) = kubectl.until("an event", lambda: kubectl.events("user", "FailedScheduling"))

    assert "not have enough free storage" in text
    assert not kubectl.bound("data")


def test_volumes_of_a_class_that_is_removed_are_used_copied_and_deleted(kubectl: Kubectl, new_class: NewClass) -> None:
    name = new_class(binding="WaitForFirstConsumer")
    kubectl.create(claim("data", storage_class=name), pod("first", "data"))
    kubectl.wait_running("first")
    kubectl.run("first", "echo kept > /data/file; sync")

    kubectl.delete("storageclass", name)
    kubectl.delete("pod", "first")
    kubectl.create(pod("second", "data"))
    kubectl.wait_running("second")
    node = kubectl.node_of("second")
    kubectl.create(claim("clone", source=from_claim("data"), storage_class=CLASS), pod("third", "clone", host=node))
    kubectl.wait_running("third")

    assert kubectl.run("second", "cat /data/file") == "kept"
    assert kubectl.run("third", "cat /data/file") == "kept"
    kubectl.delete("pod", "second")
    kubectl.delete("pvc", "data")
    kubectl.until("its PV gone", lambda: len(volumes_of(kubectl)) == 1)
