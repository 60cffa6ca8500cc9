"""The same operations by the driver and by lvm itself, in turn."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from csi_multi.host.command import LocalHost
from csi_multi.rpc.client import Client

from .lvm_driver import RecordingHost

SIZE = 64 << 20
CAPABILITY = {"mount": {"fs_type": "ext4"}, "access_mode": {"mode": "SINGLE_NODE_WRITER"}}
STEP = 4 << 20  # bytes: an extent
LIMIT = 120.0  # seconds for a bare command
Figures = dict[str, list[float]]


def create_fields(name: str, type_: str, **more: Any) -> dict[str, Any]:
    """Return the fields of a CreateVolume request."""
    return {
        "name": name,
        "capacity_range": {"required_bytes": SIZE},
        "volume_capabilities": [CAPABILITY],
        "parameters": {"backend": "disks", "type": type_},
        **more,
    }


class Rounds:
    """Both sides of one type of volume. `took` has milliseconds and numbers of lvm processes.

    A creation is cold when the driver has to read the group first: at its start, and after a volume has grown.
    """

    def __init__(self, client: Client, host: RecordingHost, group: str, pool: str, type_: str) -> None:
        self.took: Figures = {}
        self._client = client
        self._recording_host = host
        self._host = LocalHost()
        self._group = group
        self._type = type_
        self._spare = ""  # a volume to grow
        self._grown = SIZE
        self._new = ("-V", f"{SIZE}b", "--thinpool", pool) if type_ == "thin" else ("-L", f"{SIZE}b", "-Zn", "-Wn")
        self._snapshot_options = ("-p", "r") if type_ == "thin" else ("-l", "100%ORIGIN")

    def run(self, rounds: int) -> Figures:
        """Return the times of so many rounds by operation; one round before them warms up."""
        self._spare = self._rpc(
            "", "CreateVolume", **create_fields(f"bench-{self._type}-spare", self._type)
        ).volume.volume_id
        for round_ in range(-1, rounds):
            if round_ == 0:
                self.took.clear()
            self._round(round_)
        self._rpc("", "DeleteVolume", volume_id=self._spare)
        return self.took

    def _cool(self) -> None:
        """Make the driver read the group again, which it does after a volume has grown."""
        self._grown += STEP
        self._rpc("", "ControllerExpandVolume", volume_id=self._spare, capacity_range={"required_bytes": self._grown})

    def _round(self, round_: int) -> None:
        name, state = f"bench-{self._type}-{round_}", ("warm", "cold")[round_ % 2]
        both = _bare_first if round_ // 2 % 2 else _driver_first  # so that a change of the machine's speed affects both
        made: dict[str, str] = {}

        def create() -> None:
            self._cool()
            for one in ("cold", "warm"):
                answer = self._rpc(f"create {one}", "CreateVolume", **create_fields(f"{name}-{one}", self._type))
                made[one] = answer.volume.volume_id

        def snapshot() -> None:
            answer = self._rpc(f"snapshot {state}", "CreateSnapshot", source_volume_id=made["warm"], name=name)
            made["snapshot"] = answer.snapshot.snapshot_id

        both(create, lambda: self._bare("bare create", "lvcreate", "-an", "-ky", *self._new, "-n", "bare", self._group))
        if state == "cold":
            self._cool()
        source = f"{self._group}/bare"
        words = ("-s", "-ky", *self._snapshot_options, "-n", "bare-snapshot", source)
        both(snapshot, lambda: self._bare(f"bare snapshot {state}", "lvcreate", *words))
        both(
            lambda: self._rpc("delete snapshot", "DeleteSnapshot", snapshot_id=made["snapshot"]),
            lambda: self._bare("bare delete snapshot", "lvremove", "-y", f"{source}-snapshot"),
        )
        both(
            lambda: self._rpc("delete", "DeleteVolume", volume_id=made["warm"]),
            lambda: self._bare("bare delete", "lvremove", "-y", source),
        )
        self._rpc("", "DeleteVolume", volume_id=made["cold"])

    def _rpc(self, what: str, rpc: str, **fields: Any) -> Any:
        self._recording_host.clear()
        began = time.perf_counter()
        answer = getattr(self._client, rpc)(**fields)
        took = time.perf_counter() - began
        if what:
            self._note(what, took)
            self._note(f"{what}, beside lvm", took - self._recording_host.seconds)
            self.took.setdefault(f"{what}, processes", []).append(len(self._recording_host.commands))
        return answer

    def _bare(self, what: str, *words: str) -> None:
        began = time.perf_counter()
        self._host.run(*words, timeout=LIMIT)
        self._note(what, time.perf_counter() - began)

    def _note(self, what: str, seconds: float) -> None:
        self.took.setdefault(what, []).append(seconds * 1000)


def _driver_first(driver: Callable[[], Any], bare: Callable[[], Any]) -> None:
    driver()
    bare()


def _bare_first(driver: Callable[[], Any], bare: Callable[[], Any]) -> None:
    bare()
    driver()
