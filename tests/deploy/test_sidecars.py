"""The containers of the CSI project: versions that fit this driver, and arguments that suit its volumes."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from .conftest import Release

EBS = "driver: {name: multi.csi.example.com}\nbackends: {cloud: {kind: ebs, region: eu-west-1}}\n"


def version(release: Release, sidecar: str) -> tuple[int, ...]:
    tag = release.containers("Deployment")[sidecar]["image"].rpartition(":v")[2]
    return tuple(int(part) for part in tag.split("."))


def arguments(release: Release, sidecar: str) -> dict[str, str]:
    found = (re.match(r"--([^=]+)=?(.*)", word) for word in release.containers("Deployment")[sidecar]["args"])
    return {match[1]: match[2] for match in found if match}


def test_the_provisioner_is_one_that_takes_nodes_with_different_topology_keys(release: Release) -> None:
    """Before 6.4.0 it took the keys of one node at random for all, with volumeBindingMode Immediate."""
    assert version(release, "provisioner") >= (6, 4, 0)


def test_the_health_monitor_calls_the_rpcs_that_this_driver_has(whole: Release) -> None:
    """Up to 0.18 it looked for VolumeCondition, which CSI 1.13 does not have any more."""
    assert version(whole, "health-monitor") >= (0, 19, 0)


def test_the_registrar_gives_a_driver_that_starts_more_than_its_own_second(release: Release) -> None:
    (given,) = [word for word in release.containers("DaemonSet")["registrar"]["args"] if word.startswith("--timeout=")]

    assert int(given.removeprefix("--timeout=").removesuffix("s")) >= 5


def test_a_node_that_does_not_answer_does_not_hold_up_the_room_of_all_others(release: Release) -> None:
    """The provisioner's own defaults are one thread, and one update per second."""
    given = arguments(release, "provisioner")

    assert int(given["capacity-threads"]) == 10
    assert float(given["kube-api-capacity-qps"]) == 20
    assert int(given["kube-api-capacity-burst"]) == 40


@pytest.mark.parametrize(
    ("sidecar", "flag"),
    [
        ("provisioner", "worker-threads"),
        ("attacher", "worker-threads"),
        ("resizer", "workers"),
        ("snapshotter", "worker-threads"),
    ],
)
def test_a_sidecar_sends_many_rpcs_at_a_time_and_may_ask_the_api_server_often_enough(
    rendered: Callable[..., Release], sidecar: str, flag: str
) -> None:
    """Their own defaults are 10 RPCs, but 100 of the provisioner, and 5 requests per second."""
    given = arguments(rendered(EBS), sidecar)
    changed = arguments(rendered(EBS, sidecars={"workers": 7, "kubeApiQps": 8, "kubeApiBurst": 9}), sidecar)

    names = (flag, "kube-api-qps", "kube-api-burst")
    assert [given[name] for name in names] == ["100", "20", "100"]
    assert [changed[name] for name in names] == ["7", "8", "9"]


def test_how_fast_room_is_told_is_for_the_values_to_say(rendered: Callable[..., Release]) -> None:
    asked = {"capacityThreads": 50, "capacityQps": 100, "capacityBurst": 200}

    given = arguments(rendered(EBS, sidecars={"provisioner": asked}), "provisioner")

    assert (given["capacity-threads"], given["kube-api-capacity-qps"], given["kube-api-capacity-burst"]) == (
        "50",
        "100",
        "200",
    )
