"""What a process offers in its mode, and that its answers obey the rules it holds requests to."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import grpc
import pytest
from csi_multi_testing import requests
from csi_multi_testing.memory import MemoryBackend

from csi_multi._proto import csi_pb2 as pb
from csi_multi.contract import Backend, Volume, VolumeRequest
from csi_multi.rpc.capabilities import Mode
from csi_multi.rpc.rules import RULES

Code = grpc.StatusCode
METHODS = requests.methods()


class Wordy(MemoryBackend):
    """Answers with what no CSI answer may hold."""

    change: Any = None

    def create_volume(self, request: VolumeRequest) -> Volume:
        return replace(super().create_volume(request), **self.change)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"handle": "h" * 200}, ".handle"),
        ({"handle": "é" * 64}, ".handle"),
        ({"size": -1}, ".size"),
        ({"topology": ({"zone": "a b"},)}, "topology"),
        ({"topology": ({"": "a"},)}, "topology"),
    ],
)
def test_an_answer_that_breaks_the_rules_is_a_bug_in_the_log_and_makes_nobody_forget_the_volume(
    change: Any, words: str, serve: Any, make: Any, creation: Any, refused: Any, caplog: pytest.LogCaptureFixture
) -> None:
    served = serve(make("fast", Wordy))
    served.backend("fast").change = change

    refusal = refused(served.client.CreateVolume, creation())

    assert refusal.code is Code.UNAVAILABLE, "not final: the volume may have been made"
    (record,) = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert words in record.fields["problem"]
    assert words in refusal.text


@pytest.mark.parametrize("rpc", METHODS)
@pytest.mark.parametrize("mode", [Mode.CONTROLLER, Mode.NODE])
def test_an_rpc_of_the_other_mode_is_not_implemented(rpc: str, mode: Mode, modes: Any, good: Any, code_of: Any) -> None:
    service = METHODS[rpc].containing_service.name
    served_here = service == "Identity" or (service == "Node") == (mode is Mode.NODE)

    code = code_of(modes[mode], good(rpc), rpc)

    assert (code is Code.UNIMPLEMENTED) != served_here


@pytest.mark.parametrize("rpc", METHODS)
def test_an_rpc_without_its_capability_is_not_implemented(
    rpc: str, modes: Any, good: Any, refused: Any, code_of: Any
) -> None:
    bare = modes["bare"]
    offered = _offered(bare)
    gate = RULES[rpc].requires
    if gate is None or (gate[0] in ("controller", "node") and (not gate[1] or gate[1] in offered[gate[0]])):
        assert code_of(bare, good(rpc), rpc) is not Code.UNIMPLEMENTED
    else:
        refusal = refused(getattr(bare.client, rpc), good(rpc))
        assert refusal.code is Code.UNIMPLEMENTED
        assert rpc in refusal.text


@pytest.fixture(scope="module")
def modes(server: Any, make: Any, everything: Any) -> Any:
    methods = [
        "create_volume",
        "find_volume",
        "get_volume",
        "delete_volume",
        "open_device",
        "find_device",
        "close_device",
    ]
    bare = type("Bare", (Backend,), {name: MemoryBackend.__dict__[name] for name in methods} | {"contract": (1, 0)})
    instances = [everything.registry.get(name) for name in ("fast", "slow")]
    return {
        Mode.CONTROLLER: server(*instances, mode=Mode.CONTROLLER),
        Mode.NODE: server(*instances, mode=Mode.NODE),
        "bare": server(make("fast", bare)),
    }


def _offered(served: Any) -> dict[str, set[str]]:
    controller, node = pb.ControllerServiceCapability.RPC.Type, pb.NodeServiceCapability.RPC.Type
    return {
        "controller": {controller.Name(one.rpc.type) for one in served.client.ControllerGetCapabilities().capabilities},
        "node": {node.Name(one.rpc.type) for one in served.client.NodeGetCapabilities().capabilities},
    }
