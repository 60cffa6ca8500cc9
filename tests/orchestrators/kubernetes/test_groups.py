"""Snapshots of groups: the claims of one pod are cut at one moment, restored, and go together."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .kubectl import Kubectl, Object
from .objects import claim, from_snapshot, group_snapshot, pod

CLASS = "together"  # a StorageClass and a VolumeGroupSnapshotClass; its backend's filesystem shares blocks
KIND = "volumegroupsnapshot"
LABELS = {"app": "pair"}
# Numbers that grow, each written to one volume before the other: at any moment the first is equal, or one ahead.
WRITER = """
n=0
while :; do
    n=$((n + 1))
    for place in first second; do
        echo $n > /$place/new
        mv /$place/new /$place/number
    done
done
"""


@pytest.fixture
def pair(kubectl: Kubectl) -> Iterator[str]:
    """A pod that writes to two claims; the result is its node. Groups go before the test's namespace is emptied."""
    if not kubectl("get", "volumegroupsnapshotclass", CLASS, "--ignore-not-found", "-o", "name"):
        pytest.skip(f"needs a StorageClass and a VolumeGroupSnapshotClass of the name {CLASS}")
    claims = [claim(name, "320Mi", storage_class=CLASS, labels=LABELS) for name in ("first", "second")]
    kubectl.create(*claims, pod("pair", mounts={"first": "first", "second": "second"}, script=WRITER))
    kubectl.wait_running("pair")
    kubectl.until("both written", lambda: len(numbers(kubectl, "pair", "cat {} || :")) == 2)
    yield kubectl.get("pod", "pair")["spec"]["nodeName"]
    kubectl("delete", KIND, "--all", "--wait=false")


def numbers(kubectl: Kubectl, name: str, script: str = "cat {}") -> list[str]:
    return kubectl.run(name, script.format("/first/number /second/number")).split()


def cut(kubectl: Kubectl, name: str) -> dict[str, Object]:
    """Cut a group; return its members by their claims when all are ready."""
    kubectl.create(group_snapshot(name, LABELS, CLASS))
    kubectl.until(f"{name} ready", lambda: kubectl.get(KIND, name).get("status", {}).get("readyToUse"))
    members = [one for one in kubectl.all("volumesnapshot") if one["metadata"]["ownerReferences"][0]["name"] == name]
    kubectl.until(
        "all members ready",
        lambda: all(
            kubectl.get("volumesnapshot", one["metadata"]["name"]).get("status", {}).get("readyToUse")
            for one in members
        ),
    )
    return {one["spec"]["source"]["persistentVolumeClaimName"]: one for one in members}


def test_two_claims_of_a_pod_are_restored_as_they_were_at_one_moment(kubectl: Kubectl, pair: str) -> None:
    before = int(numbers(kubectl, "pair")[0])
    members = cut(kubectl, "moment")
    assert set(members) == {"first", "second"}

    for name, member in members.items():
        source = from_snapshot(member["metadata"]["name"])
        kubectl.create(claim(f"restored-{name}", "320Mi", source=source, storage_class=CLASS))
    mounts = {"first": "restored-first", "second": "restored-second"}
    kubectl.create(pod("restored", mounts=mounts, host=pair))
    kubectl.wait_running("restored")

    first, second = map(int, numbers(kubectl, "restored"))
    assert first - second in (0, 1), "both are of one moment"
    assert before <= first, "the moment is after the request"
    assert int(numbers(kubectl, "pair")[0]) > first, "the pod goes on"


def test_a_group_takes_its_members_with_it(kubectl: Kubectl, pair: str) -> None:
    cut(kubectl, "moment")

    kubectl.delete(KIND, "moment")

    kubectl.until("no member is left", lambda: not kubectl.all("volumesnapshot"))
