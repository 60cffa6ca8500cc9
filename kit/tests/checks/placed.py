"""Correct backends with zones and with volumes of one node, which tests break."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from csi_multi_testing import memory
from csi_multi_testing.check import CHECKS
from csi_multi_testing.fault_injection import Call
from csi_multi_testing.memory import MemoryBackend
from csi_multi_testing.storage import Storage, setting

from csi_multi.contract import (
    NO_SECRETS,
    AlreadyExists,
    CapacityReport,
    CapacityRequest,
    Device,
    Host,
    OpenRequest,
    ResourceExhausted,
    Segments,
    Strings,
    Volume,
    VolumeRequest,
    WrongNode,
    leaf,
    missing,
)
from csi_multi.contract import backend as b

ZONES = ("a", "b")


OUT = "out-of-reach"


NODE_ROOM = 1 << 40  # bytes of the largest volume on one node


class Zonal(b.Topology, MemoryBackend):
    """Volumes live in one of two zones."""

    def node_segments(self) -> Segments:
        return {"zone": ZONES[0]}

    def _put(self, request: VolumeRequest, default: int) -> Volume:
        zone = self.choose(request)
        made = super()._put(request, default)
        self.storage.volumes[made.handle] = replace(made, topology=({"zone": zone},))
        return self.get_volume(made.handle)

    def choose(self, request: VolumeRequest) -> str:
        """Return the best zone. Raises ResourceExhausted."""
        wanted = request.topology
        required = [place.get("zone") for place in wanted.requisite] if wanted else []
        preferred = [place.get("zone") for place in wanted.preferred] if wanted else []
        for zone in (*preferred, *required, *(() if required else ZONES)):
            if zone in ZONES and zone in (required or ZONES):
                return str(zone)
        raise ResourceExhausted(f"no volume can be made in {required}")

    def capacity(self, request: CapacityRequest) -> CapacityReport:
        if request.segments is not None and request.segments.get("zone") not in ZONES:
            return CapacityReport(available=0)
        return super().capacity(request)


def zonal(kind: type[MemoryBackend] = Zonal, **given: Any) -> Callable[[], Storage]:
    def storage() -> Storage:
        places = {"reachable": tuple({"zone": zone} for zone in ZONES), "unreachable": ({"zone": OUT},)}
        return memory.storage(kind, **(places | given))

    storage.__name__ = kind.__name__
    return storage


Rows = dict[str, Volume]


class Local(b.NodeLocal, b.Capacity):
    """Volumes on this node, in memory: <node>/<leaf>."""

    contract = (1, 1)

    def __init__(self, config: Any, setting: b.Setting, rows: Rows) -> None:
        super().__init__(config, setting)
        self.rows = rows

    def node_of(self, handle: str) -> str:
        node, slash, rest = handle.partition("/")
        if not (node and slash and rest and node.replace("-", "").isalnum()):
            raise missing("volume", handle)
        return node

    def create_volume(self, request: VolumeRequest) -> Volume:
        handle = f"{self.setting.node}/{leaf(request.name)}"
        if handle in self.rows:
            raise AlreadyExists(f"volume {request.name!r} exists")
        size = request.size.choose()
        if size > NODE_ROOM:
            raise ResourceExhausted(f"{size} bytes do not fit")
        self.rows[handle] = Volume(handle=handle, size=size, stamp=request.stamp)
        return self.rows[handle]

    def find_volume(self, name: str) -> Volume:
        return self.get_volume(f"{self.setting.node}/{leaf(name)}")

    def get_volume(self, handle: str) -> Volume:
        if self.node_of(handle) != self.setting.node:
            raise WrongNode(f"volume {handle!r} lives on another node than {self.setting.node!r}")
        return self.look(handle)

    def look(self, handle: str) -> Volume:
        if handle not in self.rows:
            raise missing("volume", handle)
        return self.rows[handle]

    def delete_volume(self, handle: str, secrets: Strings) -> None:
        del self.rows[self.get_volume(handle).handle]

    def open_device(self, request: OpenRequest) -> Device:
        raise NotImplementedError

    def find_device(self, handle: str, secrets: Strings = NO_SECRETS) -> Device | None:
        return None

    def close_device(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        """Nothing is ever open."""

    def capacity(self, request: CapacityRequest) -> CapacityReport:
        return CapacityReport(available=NODE_ROOM, maximum=NODE_ROOM)


def local(kind: type[Local] = Local, **given: Any) -> Callable[[], Storage]:
    def storage() -> Storage:
        rows: Rows = {}

        def connect(host: Host) -> b.Backend:
            return kind(None, setting(host), rows)

        calls = (Call(owner=kind, name="look"),)
        return Storage(connect=connect, resources=lambda: list(rows), calls=calls, **given)

    storage.__name__ = kind.__name__
    return storage


def about(feature: type[b.Backend]) -> list[Any]:
    return [pytest.param(one, id=one.name) for one in CHECKS.values() if feature in one.features]
