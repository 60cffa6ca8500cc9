"""How many lvm processes each RPC takes."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import grpc

from csi_multi.rpc.client import Client

from .lvm_driver import RecordingHost
from .lvm_rounds import CAPABILITY, SIZE, create_fields

RETRIED = (grpc.StatusCode.ABORTED, grpc.StatusCode.UNAVAILABLE)  # a copy that is not complete
PAUSE = 0.5  # seconds
MAX_WAIT = 120.0


class Lifecycle:
    """The RPCs of a volume's lifecycle. `commands` has the names of the lvm commands that each of them ran."""

    def __init__(self, client: Client, host: RecordingHost, type_: str, directory: Path) -> None:
        self.commands: dict[str, list[str]] = {}
        self._client = client
        self._host = host
        self._type = type_
        self._staging, self._target = directory / f"staging-{type_}", directory / f"target-{type_}"
        self._staging.mkdir()

    def run(self) -> dict[str, list[str]]:
        self._count("GetCapacity", parameters={"backend": "disks", "type": self._type})
        first = self._volume("CreateVolume, warm", "first")
        self._volume("CreateVolume, again", "first")
        self._count("ValidateVolumeCapabilities", volume_id=first, volume_capabilities=[CAPABILITY])
        self._count("ListVolumes")
        self._count("ControllerExpandVolume", volume_id=first, capacity_range={"required_bytes": SIZE * 2})
        self._node(first)
        snapshot = self._count("CreateSnapshot", source_volume_id=first, name="snapshot").snapshot.snapshot_id
        self._count("CreateSnapshot", ", again", source_volume_id=first, name="snapshot")
        self._count("ListSnapshots")
        sources = {
            "restore": {"snapshot": {"snapshot_id": snapshot}},
            "clone": {"volume": {"volume_id": first}},
        }
        copies = [self._volume(f"CreateVolume, {how}", how, source) for how, source in sources.items()]
        self._count("DeleteSnapshot", snapshot_id=snapshot)
        for volume in (first, *copies):
            self._count("DeleteVolume", volume_id=volume)
        cold = self._volume("CreateVolume, cold", "cold")
        self._client.DeleteVolume(volume_id=cold)
        return self.commands

    def _node(self, volume: str) -> None:
        staged = {"volume_id": volume, "staging_target_path": str(self._staging)}
        shown = {"volume_id": volume, "target_path": str(self._target)}
        for which in (", the first", ""):
            self._count("NodeStageVolume", which, **staged, volume_capability=CAPABILITY)
            self._count("NodePublishVolume", **staged, target_path=str(self._target), volume_capability=CAPABILITY)
            self._count("NodeGetVolumeStats", volume_id=volume, volume_path=str(self._target))
            self._count("NodeUnpublishVolume", **shown)
            self._count("NodeUnstageVolume", **staged)

    def _volume(self, what: str, name: str, source: dict[str, Any] | None = None) -> str:
        fields = create_fields(f"life-{self._type}-{name}", self._type, volume_content_source=source)
        if source:
            fields["capacity_range"] = {"required_bytes": SIZE * 2}
        rpc, comma, rest = what.partition(",")
        return str(self._count(rpc, comma + rest, **fields).volume.volume_id)

    def _count(self, rpc: str, which: str = "", **fields: Any) -> Any:
        self._host.clear()
        answer = self._until_complete(rpc, fields)
        self.commands[rpc + which] = [*self._host.commands]
        return answer

    def _until_complete(self, rpc: str, fields: dict[str, Any]) -> Any:
        deadline = time.monotonic() + MAX_WAIT
        while True:
            try:
                return getattr(self._client, rpc)(**fields)
            except grpc.RpcError as error:
                if error.code() not in RETRIED or time.monotonic() > deadline:
                    raise
            time.sleep(PAUSE)


def words(commands: list[str]) -> str:
    """Return "lvs, 2 lvchange"."""
    return ", ".join(name if count == 1 else f"{count} {name}" for name, count in Counter(commands).items())
