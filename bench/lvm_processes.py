"""How many lvm processes each RPC takes."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import grpc

from csi_multi.rpc.client import Client

from .lvm_driver import Door
from .lvm_rounds import CAPABILITY, SIZE, wish

AGAIN = (grpc.StatusCode.ABORTED, grpc.StatusCode.UNAVAILABLE)  # a copy that goes on
PAUSE = 0.5  # seconds
PATIENCE = 120.0


class Life:
    """A volume's life by RPCs. `made` has the names of the lvm commands of each."""

    def __init__(self, client: Client, door: Door, type_: str, directory: Path) -> None:
        self.made: dict[str, list[str]] = {}
        self._client = client
        self._door = door
        self._type = type_
        self._staging, self._target = directory / f"staging-{type_}", directory / f"target-{type_}"
        self._staging.mkdir()

    def live(self) -> dict[str, list[str]]:
        self._count("GetCapacity", parameters={"backend": "disks", "type": self._type})
        first = self._volume("CreateVolume, warm", "first")
        self._volume("CreateVolume, again", "first")
        self._count("ValidateVolumeCapabilities", volume_id=first, volume_capabilities=[CAPABILITY])
        self._count("ListVolumes")
        self._count("ControllerExpandVolume", volume_id=first, capacity_range={"required_bytes": SIZE * 2})
        self._node(first)
        snapshot = self._count("CreateSnapshot", source_volume_id=first, name="cut").snapshot.snapshot_id
        self._count("CreateSnapshot", ", again", source_volume_id=first, name="cut")
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
        return self.made

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
        fields = wish(f"life-{self._type}-{name}", self._type, volume_content_source=source)
        if source:
            fields["capacity_range"] = {"required_bytes": SIZE * 2}
        rpc, comma, rest = what.partition(",")
        return str(self._count(rpc, comma + rest, **fields).volume.volume_id)

    def _count(self, rpc: str, which: str = "", **fields: Any) -> Any:
        self._door.forget()
        answer = self._patiently(rpc, fields)
        self.made[rpc + which] = [*self._door.commands]
        return answer

    def _patiently(self, rpc: str, fields: dict[str, Any]) -> Any:
        ends = time.monotonic() + PATIENCE
        while True:
            try:
                return getattr(self._client, rpc)(**fields)
            except grpc.RpcError as error:
                if error.code() not in AGAIN or time.monotonic() > ends:
                    raise
            time.sleep(PAUSE)


def words(commands: list[str]) -> str:
    """Return "lvs, 2 lvchange"."""
    return ", ".join(name if count == 1 else f"{count} {name}" for name, count in Counter(commands).items())
