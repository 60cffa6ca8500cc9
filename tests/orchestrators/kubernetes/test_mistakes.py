"""What a user reads in `kubectl describe pvc` after a mistake: the thing, the rule, the remedy."""

from __future__ import annotations

from .conftest import NewClass
from .kubectl import Kubectl
from .objects import claim, pod

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
