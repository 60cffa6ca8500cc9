"""The cost of forwarding RPCs from the controller to nodes: three nodes on loopback, with mutual TLS.

The instances are of the loop backend, on the disk of the workspace. A real network adds its round trip.
"""

from __future__ import annotations

import socket
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from csi_multi._proto import csi_pb2 as pb
from csi_multi.commands.certificates import CertificateAuthority
from csi_multi.config.cluster import CONTROLLER_IDENTITY, NODE_IDENTITY, NODE_PLACEHOLDER
from csi_multi.host.command import LocalHost
from csi_multi.rpc.client import Client

from .processes import Server, client, driver, running
from .table import Row, Target, compared

NAMES = ("node-1", "node-2", "node-3")
CALLS = 200  # in a row, for one p50 and one p99
THREADS = 16
SIZE = 1 << 20
BLOCK = pb.VolumeCapability(block={}, access_mode={"mode": "SINGLE_NODE_WRITER"})
OVERHEAD = Target(limit=3)
CONFIG = """\
driver: {{name: bench.csi-multi.example, node: {name}, default_backend: scratch, log_style: json}}
backends:
  scratch: {{kind: loop, directory: {directory}, min_size: 4096, overprovision: 10}}
cluster:
  listen: 127.0.0.1:{port}
  nodes: {{{nodes}}}
  tls: {{ca: {tls}/ca.pem, certificate: {tls}/certificate.pem, key: {tls}/key.pem}}
"""
Sides = tuple[list[float], list[float]]  # forwarded, direct


def cluster(directory: Path, *, quick: bool) -> list[Row]:
    """A forwarded RPC compared with a direct one, creations spread over the nodes, and the controller's memory."""
    with ExitStack() as stack:
        alone = stack.enter_context(driver(directory))
        controller = stack.enter_context(_cluster(directory))
        direct, sent = stack.enter_context(client(alone)), stack.enter_context(client(controller))
        rows = _overhead(sent, direct, rounds=3 if quick else 20)
        return [*rows, *_creations(sent, controller, 60 if quick else 1000)]


def _overhead(sent: Client, direct: Client, *, rounds: int) -> list[Row]:
    """Measure the cheapest RPC about a volume, which has a topology: without one its creation takes more RPCs."""
    place = pb.Topology(segments={"bench.csi-multi.example/node": "node-1"})
    near = _create(direct, "near", parameters={"backend": "scratch"})
    far = _create(sent, "far", accessibility_requirements={"requisite": [place]})
    calls: tuple[Callable[[], Any], ...] = (
        lambda: sent.ValidateVolumeCapabilities(volume_id=far, volume_capabilities=[BLOCK]),
        lambda: direct.ValidateVolumeCapabilities(volume_id=near, volume_capabilities=[BLOCK]),
    )
    medians: Sides = ([], [])
    tails: Sides = ([], [])
    for round_ in range(-1, rounds):
        for side in (0, 1) if round_ % 2 else (1, 0):
            took = sorted(_latencies(calls[side]))
            if round_ >= 0:  # the first call is not measured
                medians[side].append(statistics.median(took))
                tails[side].append(took[len(took) * 99 // 100])
    sent.DeleteVolume(volume_id=far)
    direct.DeleteVolume(volume_id=near)
    note = "ValidateVolumeCapabilities over loopback"
    return [
        compared("forwarded to a node, p50", "us", *medians, target=OVERHEAD, note=note),
        compared("forwarded to a node, p99", "us", *tails, note=note),
    ]


def _creations(sent: Client, controller: Server, many: int) -> list[Row]:
    """Volumes without a topology: the controller asks every node for the name and its capacity before a creation."""
    before = controller.memory()["Rss"]
    began = time.perf_counter()
    with ThreadPoolExecutor(THREADS) as pool:
        volumes = list(pool.map(lambda number: _create(sent, f"bench-{number}"), range(many)))
    rate = many / (time.perf_counter() - began)
    spread = Counter(volume.split("/")[1] for volume in volumes)
    held, connections = controller.memory()["Rss"], controller.connections()
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(lambda volume: sent.DeleteVolume(volume_id=volume), volumes))
    return [
        Row(
            name=f"{many} creations over 3 nodes",
            unit="volumes/s",
            ours=rate,
            note=", ".join(f"{name}: {spread[name]}" for name in NAMES),
        ),
        Row(name="controller's memory after them", unit="MiB", ours=held, note=f"before: {before:.1f}"),
        Row(name="controller's connections to 3 nodes", unit="", ours=connections),
    ]


def _create(caller: Client, name: str, **fields: Any) -> str:
    size = {"required_bytes": SIZE}
    answer = caller.CreateVolume(name=name, volume_capabilities=[BLOCK], capacity_range=size, **fields)
    return str(answer.volume.volume_id)


def _latencies(call: Callable[[], Any]) -> Iterator[float]:
    for _ in range(CALLS):
        began = time.perf_counter()
        call()
        yield (time.perf_counter() - began) * 1e6


@contextmanager
def _cluster(directory: Path) -> Iterator[Server]:
    """Start three nodes and their controller; return the controller."""
    authority = CertificateAuthority(directory / "tls", LocalHost(), days=1)
    ports = dict(zip(NAMES, _free_ports(len(NAMES)), strict=True))
    nodes = ", ".join(f"{name}: 127.0.0.1:{port}" for name, port in ports.items())

    def words(name: str, mode: str, place: str, identity: str) -> tuple[str, ...]:
        file = directory / f"{name}.yaml"
        tls, port = authority.sign(place, identity), ports.get(name, 1)
        text = CONFIG.format(name=name, directory=directory / f"on-{name}", port=port, nodes=nodes, tls=tls)
        file.write_text(text)
        return (sys.executable, "-m", "csi_multi", "serve", "--mode", mode, "--config", str(file))

    with ExitStack() as stack:
        for name in NAMES:
            command = words(name, "node", f"nodes/{name}", NODE_IDENTITY.replace(NODE_PLACEHOLDER, name))
            stack.enter_context(running(directory, name, command))
        command = words("controller", "controller", "controller", CONTROLLER_IDENTITY)
        yield stack.enter_context(running(directory, "controller", command))


def _free_ports(many: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(many)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
