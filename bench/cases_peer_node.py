"""The loop backend beside csi-driver-host-path: whole lives of volumes, one after another and 50 at once.

A volume of host-path is a directory that is bound to the pod's path: nothing is attached, formatted or mounted.
No test with a mount namespace of its own may run at that time: its copies of our mounts keep their devices in use.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from csi_multi.rpc.client import Client

from .cases_node import CAPABILITY
from .peers import Program
from .processes import MIB, SCRATCH, Server, client, driver, running
from .table import Row, Target, alone, compared

SIZE = 64 * MIB
AT_ONCE = 50
NODE = "bench-node"
AGAIN = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.ABORTED)
PAUSE = 0.1  # seconds before a refused call is sent again; the sidecars wait longer
TARGET = Target(limit=1.0)
STEPS = ("create", "stage", "publish", "unpublish", "unstage", "delete")


@dataclass(slots=True)
class Side:
    """One driver. `took` has the milliseconds of each step of each life, in any order."""

    server: Server
    caller: Client
    directory: Path
    creation: Mapping[str, Any]  # fields of CreateVolume that this driver needs
    took: dict[str, list[float]] = field(default_factory=dict)
    refused: int = 0
    _lock: Any = field(default_factory=threading.Lock)

    def live(self, name: str) -> None:
        """Create a volume, show it at a path, take it away, delete it."""
        staging, target = self.directory / f"{name}-staging", self.directory / f"{name}-target"
        staging.mkdir()
        size = {"required_bytes": SIZE}
        made = self._call(
            "create", self.caller.CreateVolume, name=name, capacity_range=size, volume_capabilities=[CAPABILITY],
            **self.creation,
        )  # fmt: skip
        volume = {"volume_id": made.volume.volume_id}
        staged = {**volume, "staging_target_path": str(staging)}
        shown = {**volume, "target_path": str(target)}
        self._call("stage", self.caller.NodeStageVolume, **staged, volume_capability=CAPABILITY)
        self._call("publish", self.caller.NodePublishVolume, **{**staged, **shown}, volume_capability=CAPABILITY)
        self._call("unpublish", self.caller.NodeUnpublishVolume, **shown)
        self._call("unstage", self.caller.NodeUnstageVolume, **staged)
        self._call("delete", self.caller.DeleteVolume, **volume)
        staging.rmdir()

    def live_at_once(self, names: Sequence[str]) -> float:
        """Return the seconds that all lives together take."""
        began = time.perf_counter()
        with ThreadPoolExecutor(len(names)) as pool:
            list(pool.map(self.live, names))
        return time.perf_counter() - began

    def _call(self, step: str, call: Any, **fields: Any) -> Any:
        began = time.perf_counter()
        while True:
            try:
                answer = call(**fields)
                break
            except grpc.RpcError as error:
                if error.code() not in AGAIN:
                    raise
                with self._lock:
                    self.refused += 1
                time.sleep(PAUSE)
        with self._lock:
            self.took.setdefault(step, []).append((time.perf_counter() - began) * 1000)
        return answer


def beside_host_path(directory: Path, *, program: Program, quick: bool) -> list[Row]:
    """Times of each step, and wall and processor time of many lives at once."""
    words = (
        *(str(program.path), "--drivername=hostpath.csi.k8s.io", f"--nodeid={NODE}", "--v=2"),
        *(f"--endpoint=unix://{directory}/theirs.sock", f"--statedir={directory}/their-state"),
    )
    with both(directory, words, {}) as sides:
        return one_by_one(sides, 3 if quick else 40) + _at_once(sides, 1 if quick else 7)


def one_by_one(sides: Sequence[Side], rounds: int, targets: Mapping[str, Target] | None = None) -> list[Row]:
    """Return the times of a whole life, of the node's part of it, and of each step."""
    in_turns(sides, rounds)
    return rows_of([side.took for side in sides], targets)


def in_turns(sides: Sequence[Side], rounds: int) -> None:
    """Let both drivers live through so many lives, in turns; `took` of each has their times."""
    for round_ in range(-2, rounds):
        if round_ == 0:
            for side in sides:
                side.took.clear()  # the rounds before are not measured
        for side in sides if round_ % 2 == 0 else sides[::-1]:
            side.live(f"one-{round_}")


def rows_of(took: Sequence[Mapping[str, list[float]]], targets: Mapping[str, Target] | None = None) -> list[Row]:
    """Return the rows of the times of both drivers."""
    parts = {"a whole life": STEPS, "stage..unstage": STEPS[1:-1], **{step: (step,) for step in STEPS}}
    return [
        compared(name, "ms", *(_sums(one, steps) for one in took), target=(targets or {}).get(name))
        for name, steps in parts.items()
    ]


def _sums(took: Mapping[str, list[float]], steps: Sequence[str]) -> list[float]:
    return [sum(parts) for parts in zip(*(took[step] for step in steps), strict=True)]


def _at_once(sides: Sequence[Side], rounds: int) -> list[Row]:
    wall: list[list[float]] = [[] for _ in sides]
    used: list[list[float]] = [[] for _ in sides]
    before = os.getloadavg()[0]
    for side in sides:
        side.refused = 0
    for round_ in range(rounds):
        for at in (0, 1) if round_ % 2 == 0 else (1, 0):
            began = sides[at].server.cpu(commands=True)
            wall[at].append(sides[at].live_at_once([f"many-{round_}-{number}" for number in range(AT_ONCE)]))
            used[at].append(sides[at].server.cpu(commands=True) - began)
    note = f"load {before:.1f} before, {os.getloadavg()[0]:.1f} after"
    return [
        compared(f"{AT_ONCE} lives at once", "s", *wall, target=TARGET, note=note),
        compared(f"processor, {AT_ONCE} lives at once", "s", *used),
        alone("calls refused at once", "calls", [sides[0].refused], target=Target(limit=0, absolute=True)),
    ]


@contextmanager
def both(directory: Path, words: tuple[str, ...], creation: Mapping[str, Any]) -> Iterator[tuple[Side, Side]]:
    """Run our driver, and theirs by these words; it has to listen at theirs.sock of the directory."""
    places = directory / "our-paths", directory / "their-paths"
    for place in places:
        place.mkdir()
    with (
        driver(directory) as our_server,
        client(our_server) as our_client,
        running(directory, "theirs", words) as their_server,
        client(their_server) as their_client,
    ):
        yield (
            Side(our_server, our_client, places[0], {"parameters": {"backend": SCRATCH}}),
            Side(their_server, their_client, places[1], creation),
        )
