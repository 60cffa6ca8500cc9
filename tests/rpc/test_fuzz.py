"""Hostile requests to every RPC that touches no device: the driver answers each, and none is a bug."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from csi_multi_testing import requests
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from csi_multi._proto import csi_pb2 as pb

ON_NODE = {"NodeGetInfo", "NodeGetCapabilities"}
RPCS = sorted(name for name in requests.methods() if not name.startswith("Node") or name in ON_NODE)
BUGS = {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.DEADLINE_EXCEEDED}
EACH = 80  # examples per RPC: about 2,000 in all


@pytest.fixture(scope="module")
def driver(server: Any, make: Any) -> Any:
    """A driver on which the volumes, snapshots and groups that requests name do exist."""
    served = server(make("fast"), make("slow"), workers=8)
    mount = pb.VolumeCapability(mount={}, access_mode={"mode": "SINGLE_NODE_WRITER"})
    for name in ("v", "w"):
        for backend in ("fast", "slow"):
            parameters = {"backend": backend}
            served.client.CreateVolume(name=name, parameters=parameters, volume_capabilities=[mount])
    for backend in ("fast", "slow"):
        served.client.CreateSnapshot(name="s", source_volume_id=f"{backend}/v")
    served.client.CreateVolumeGroupSnapshot(name="g", source_volume_ids=["fast/v", "fast/w"])
    return served


def outcome(call: Any, message: Any) -> tuple[grpc.StatusCode, str]:
    try:
        answer = call(message, timeout=10)
        if hasattr(answer, "__next__"):
            list(answer)
    except grpc.RpcError as error:
        return error.code(), error.details() or ""
    return grpc.StatusCode.OK, ""


@pytest.mark.parametrize("rpc", RPCS)
def test_no_request_is_answered_with_a_bug(rpc: str, driver: Any) -> None:
    call = getattr(driver.client, rpc)

    @settings(max_examples=EACH, database=None, suppress_health_check=list(HealthCheck))
    @given(requests.request(rpc))
    def attack(message: Any) -> None:
        code, text = outcome(call, message)
        assert code not in BUGS, text
        assert "internal error" not in text
        assert code is grpc.StatusCode.OK or text

    attack()


def test_the_generator_reaches_past_validation(driver: Any) -> None:
    """Otherwise the attack above would test the first check only."""
    answered = set()

    @settings(max_examples=300, database=None, suppress_health_check=list(HealthCheck))
    @given(st.one_of(*map(_with_name, ("DeleteSnapshot", "GetSnapshot", "ListVolumes", "GetCapacity"))))
    def attack(pair: tuple[str, Any]) -> None:
        rpc, message = pair
        answered.add((rpc, outcome(getattr(driver.client, rpc), message)[0].name))

    attack()

    assert ("GetSnapshot", "NOT_FOUND") in answered
    assert ("ListVolumes", "OK") in answered
    assert ("ListVolumes", "ABORTED") in answered


def _with_name(rpc: str) -> Any:
    return st.tuples(st.just(rpc), requests.request(rpc))
