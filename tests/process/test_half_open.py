"""Callers that never send the message of their RPCs take no thread from the others, and do not delay the stop."""

from __future__ import annotations

import resource
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import grpc
import pytest
from google.protobuf.message import DecodeError

from csi_multi._proto import csi_pb2 as pb
from csi_multi.commands.certificates import CertificateAuthority
from csi_multi.config.cluster import CONTROLLER_IDENTITY, NODE_IDENTITY, NODE_PLACEHOLDER
from csi_multi.host.command import LocalHost
from csi_multi.process.driver_process import DriverProcess
from csi_multi.rpc.client import Client
from csi_multi.rpc.receive import MessageReader
from tests.process.conftest import silent_caller

pytestmark = pytest.mark.slow

Code = grpc.StatusCode
HalfOpen = Callable[..., list[Any]]
CREATE, LIST, PROBE = "/csi.v1.Controller/CreateVolume", "/csi.v1.Controller/ListVolumes", "/csi.v1.Identity/Probe"
CONFIG = "driver: {{name: half.example, node: node-1, workers: 16}}\nbackends: {{a: {{kind: loop, directory: {}}}}}\n"
PROMPT = 4.0  # seconds, far below the time that a message may take


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[DriverProcess]:
    (tmp_path / "a").mkdir()
    made = DriverProcess(tmp_path, CONFIG.format(tmp_path / "a"))
    made.start().close()
    yield made
    if made.process.poll() is None:
        made.kill()


@pytest.fixture
def channels(driver: DriverProcess) -> Iterator[Callable[[], grpc.Channel]]:
    made: list[grpc.Channel] = []

    def connect() -> grpc.Channel:
        options = (("grpc.use_local_subchannel_pool", 1),)  # a connection of its own
        made.append(grpc.insecure_channel(f"unix:{driver.socket}", options=options))
        return made[-1]

    yield connect
    for one in made:
        one.close()


def answered(channel: grpc.Channel, method: str, timeout: float) -> bool:
    try:
        channel.unary_unary(method)(b"", timeout=timeout)
    except grpc.RpcError:
        return False
    return True


@pytest.mark.parametrize("method", [CREATE, PROBE, "/csi.v1.SnapshotMetadata/GetMetadataAllocated"])
def test_probe_is_answered_beside_any_number_of_half_open_rpcs(method: str, channels: Any, half_open: HalfOpen) -> None:
    for _ in range(4):
        half_open(channels(), method, 100)
    other = channels()

    for _ in range(20):
        assert answered(other, PROBE, PROMPT)


def test_other_callers_are_served_although_half_open_rpcs_took_all_threads(channels: Any, half_open: HalfOpen) -> None:
    for _ in range(4):
        half_open(channels(), CREATE, 100)

    assert answered(channels(), LIST, 20)


def test_a_half_open_rpc_is_ended(channels: Any, half_open: HalfOpen) -> None:
    (call,) = half_open(channels(), CREATE, 1)

    assert call.exception(30).code() is Code.CANCELLED


def test_the_driver_stops_although_rpcs_are_half_open(
    driver: DriverProcess, channels: Any, half_open: HalfOpen
) -> None:
    half_open(channels(), CREATE, 64)
    assert answered(channels(), PROBE, 10)
    began = time.monotonic()

    driver.process.send_signal(signal.SIGTERM)

    assert driver.process.wait(timeout=45) == 0
    assert time.monotonic() - began < 40


def test_the_driver_stops_although_a_caller_does_not_take_its_responses(driver: DriverProcess) -> None:
    with silent_caller(driver.socket, LIST, 50) as caller:
        assert caller.recv(9), "the driver has begun to answer"
        began = time.monotonic()

        driver.process.send_signal(signal.SIGTERM)

        assert driver.process.wait(timeout=90) == 0
        assert time.monotonic() - began < 40, "a supervisor kills it by then"


def test_while_no_rpc_waits_for_its_message_nothing_looks_for_one() -> None:
    before = set(threading.enumerate())
    reader = MessageReader(16)
    (watch,) = {*threading.enumerate()} - before
    with pytest.raises(DecodeError):
        reader.read(pb.ProbeRequest, iter((b"\xff",)), MagicMock())

    end = time.monotonic() + 30
    while not waits_for_a_signal(watch):
        assert time.monotonic() < end
        time.sleep(0.01)
    del reader
    watch.join(30)
    assert not watch.is_alive()


def waits_for_a_signal(thread: threading.Thread) -> bool:
    frame = sys._current_frames()[thread.ident or 0]
    return any(one.f_code.co_name == "wait" for one, _ in traceback.walk_stack(frame))


def test_an_rpc_without_a_message_is_told_so(channels: Any) -> None:
    with pytest.raises(grpc.RpcError) as found:
        channels().stream_unary(CREATE)(iter(()), timeout=20)

    assert found.value.code() is Code.UNIMPLEMENTED


def test_a_message_that_is_none_of_csi_is_told_so(channels: Any) -> None:
    with pytest.raises(grpc.RpcError) as found:
        channels().unary_unary(CREATE)(b"\xff\xff\xff", timeout=20)

    assert (found.value.code(), found.value.details()) == (
        Code.INTERNAL,
        "the request is not a csi.v1.CreateVolumeRequest",
    )


# The port of a node, whose callers come over a network.


class Node:
    """A node's driver with its cluster port."""

    def __init__(self, directory: Path) -> None:
        authority = CertificateAuthority(directory / "tls", LocalHost(), days=2)
        self.directory = authority.directory
        authority.sign("controller", CONTROLLER_IDENTITY)
        for name in ("node-1", "node-2"):
            authority.sign(name, NODE_IDENTITY.replace(NODE_PLACEHOLDER, name))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        (directory / "a").mkdir()
        files = ", ".join(f"{key}: {self.directory}/node-1/{key}.pem" for key in ("ca", "certificate", "key"))
        cluster = f"cluster: {{listen: '{self.address}', tls: {{{files}}}}}\n"
        self.driver = DriverProcess(directory, CONFIG.format(directory / "a") + cluster, mode="node")
        self._channels: list[grpc.Channel] = []

    def connect(self, certificate: str) -> grpc.Channel:
        pair = [(self.directory / certificate / f"{part}.pem").read_bytes() for part in ("key", "certificate")]
        credentials = grpc.ssl_channel_credentials((self.directory / "ca.pem").read_bytes(), *pair)
        name = NODE_IDENTITY.replace(NODE_PLACEHOLDER, "node-1")
        options = (("grpc.ssl_target_name_override", name), ("grpc.use_local_subchannel_pool", 1))
        self._channels.append(grpc.secure_channel(self.address, credentials, options=options))
        return self._channels[-1]

    def close(self) -> None:
        for one in self._channels:
            one.close()
        if self.driver.process.poll() is None:
            self.driver.kill()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    made.driver.start().close()
    yield made
    made.close()


def test_another_nodes_certificate_holds_no_thread_of_a_nodes_port(node: Node, half_open: HalfOpen) -> None:
    stranger, controller = node.connect("node-2"), node.connect("controller")

    calls = half_open(stranger, LIST, 200)

    assert answered(controller, LIST, 20)
    assert {call.exception(20).code() for call in calls} == {Code.PERMISSION_DENIED}


def test_the_controllers_certificate_holds_the_threads_for_a_moment_only(node: Node, half_open: HalfOpen) -> None:
    taken, controller = node.connect("controller"), node.connect("controller")

    half_open(taken, LIST, 200)

    assert answered(controller, LIST, 30)
    assert pb.ListVolumesResponse.FromString(controller.unary_unary(LIST)(b"", timeout=30)) is not None


def test_connections_that_say_nothing_do_not_take_all_descriptors_of_a_node(node: Node) -> None:
    process, limit, port = node.driver.process.pid, 450, int(node.address.rpartition(":")[2])
    resource.prlimit(process, resource.RLIMIT_NOFILE, (limit, limit))
    local = Client(f"unix:{node.driver.socket}")
    local.NodeGetInfo(timeout=20)
    opened = [socket.create_connection(("127.0.0.1", port), timeout=20) for _ in range(600)]

    for _ in range(5):
        assert local.Probe(timeout=PROMPT).ready.value
        assert len([*Path(f"/proc/{process}/fd").iterdir()]) < limit - 100
    local.NodeGetInfo(timeout=PROMPT)
    for one in opened:
        one.close()
    local.close()
