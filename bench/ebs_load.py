"""Volumes created and attached through a driver, all at once, as the sidecars of a large cluster may do.

Called with: the driver's endpoint, how it is called (Dialect, in JSON), volumes, a name, instances. A call that
fails is sent again. Prints a JSON object: the seconds that creating and attaching took, and how many calls failed.

One thread sends everything and then waits: a thread per call would take much of the processor from EC2 and the driver.
The calls go over several connections, each with no more calls than a sidecar has running.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import grpc
import msgspec

from csi_multi._proto import csi_pb2 as pb
from csi_multi.rpc.client import Client

AGAIN = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.ABORTED, grpc.StatusCode.INTERNAL)  # by external-attacher: all
PAUSE = 0.1  # seconds; the sidecars wait longer
PER_CONNECTION = 100  # calls at once: --worker-threads of external-provisioner and external-attacher
CALL_TIMEOUT = 600  # seconds for a call
READY = 10  # seconds until the driver listens
MODE = pb.VolumeCapability.AccessMode
WRITER = pb.VolumeCapability(
    mount=pb.VolumeCapability.MountVolume(fs_type="ext4"), access_mode=MODE(mode=MODE.SINGLE_NODE_WRITER)
)
ZONE = "eu-west-1a"


class Dialect(msgspec.Struct, frozen=True):
    """How requests to one driver differ from those to another."""

    zone_key: str
    node_id: str  # with {instance} in it
    parameters: Mapping[str, str] = {}

    def creation(self, name: str) -> Any:
        zone = pb.Topology(segments={self.zone_key: ZONE})
        return pb.CreateVolumeRequest(
            name=name,
            parameters=self.parameters,
            capacity_range=pb.CapacityRange(required_bytes=1 << 30),
            volume_capabilities=[WRITER],
            accessibility_requirements=pb.TopologyRequirement(requisite=[zone], preferred=[zone]),
        )

    def attachment(self, volume: str, instance: str) -> Any:
        node = self.node_id.format(instance=instance)
        return pb.ControllerPublishVolumeRequest(volume_id=volume, node_id=node, volume_capability=WRITER)


def ours(backend: str) -> Dialect:
    node_id = f"node-{{instance}};{backend}={{instance}}"
    return Dialect(zone_key="bench.csi-multi.example/zone", node_id=node_id, parameters={"backend": backend})


class Load:
    def __init__(self, endpoint: str) -> None:
        first = Client(endpoint)
        first.wait(READY)
        first.close()
        self._endpoint = endpoint
        self._channels: list[grpc.Channel] = []
        self.refused = 0

    def all(self, rpc: str, requests: Sequence[Any], response: Any) -> tuple[list[Any], float]:
        """Return the answers in order, and how many seconds all took together."""
        calls = [
            channel.unary_unary(
                f"/csi.v1.Controller/{rpc}",
                request_serializer=type(requests[0]).SerializeToString,
                response_deserializer=response.FromString,
            )
            for channel in self._connections(-(-len(requests) // PER_CONNECTION))
        ]
        answers: dict[int, Any] = {}
        began = time.perf_counter()
        while left := [number for number in range(len(requests)) if number not in answers]:
            if answers:
                time.sleep(PAUSE)
            sent = [
                (number, calls[number // PER_CONNECTION].future(requests[number], timeout=CALL_TIMEOUT))
                for number in left
            ]
            for number, future in sent:
                if future.code() in AGAIN:
                    self.refused += 1
                else:
                    answers[number] = future.result()
        return [answers[number] for number in range(len(requests))], time.perf_counter() - began

    def _connections(self, number: int) -> list[grpc.Channel]:
        """Return this many channels that are connected, each by a connection of its own."""
        while len(self._channels) < number:
            channel = grpc.insecure_channel(self._endpoint, options=[("grpc.use_local_subchannel_pool", 1)])
            grpc.channel_ready_future(channel).result(READY)
            self._channels.append(channel)
        return self._channels[:number]


def main(endpoint: str, dialect: str, volumes: str, name: str, *instances: str) -> None:
    load, driver = Load(endpoint), msgspec.json.decode(dialect, type=Dialect)
    creations = [driver.creation(f"{name}-{number}") for number in range(int(volumes))]
    made, created = load.all("CreateVolume", creations, pb.CreateVolumeResponse)
    ids = [one.volume.volume_id for one in made]
    attachments = [driver.attachment(id, instances[at % len(instances)]) for at, id in enumerate(ids)]
    _, attached = load.all("ControllerPublishVolume", attachments, pb.ControllerPublishVolumeResponse)
    print(json.dumps({"create": created, "attach": attached, "refused": load.refused}))


if __name__ == "__main__":
    main(*sys.argv[1:])
