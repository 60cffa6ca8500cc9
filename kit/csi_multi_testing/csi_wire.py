"""The client over CSI: every operation is a gRPC call to a driver, as an orchestrator and a kubelet make it.

The driver is anything that can be started, killed and stopped; driver.py has the process that
`csi-multi conformance` uses.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import grpc

from csi_multi._proto import csi_pb2 as pb
from csi_multi.contract import (
    Capability,
    CapacityReport,
    Expansion,
    Extent,
    GroupSnapshot,
    HealthEntry,
    Node,
    Page,
    Segments,
    SizeRange,
    Snapshot,
    StorageError,
    Strings,
    Volume,
    VolumeHealth,
    ids,
)
from csi_multi.rpc.client import Client

from . import messages
from .growth import attached_to_grow
from .kubelet import published
from .messages import Messages
from .protocol import BLOCK, Target, VolumeSpec
from .secret_watch import watch_of
from .storage import Storage


class RestartableDriver(Protocol):
    """A driver that serves one instance."""

    def start(self) -> Client:
        """Start the driver, or start it again, and return a client once it answers."""
        ...

    def kill(self) -> None:
        """Kill the driver; it cannot clean up."""
        ...

    def close(self) -> None:
        """Stop the driver as a supervisor does. Raises CheckFailed if it does not end cleanly."""
        ...


class CsiClient:
    """Calls one instance over CSI. What CSI does not show is empty: names, digests and clusters of stamps.

    Data is read and written as on a node: attach, stage and publish as a raw block device, then undo all of it.
    """

    target = Target.WIRE

    def __init__(
        self, storage: Storage, instance: str, driver: RestartableDriver, *, grows_only_attached: bool = False
    ) -> None:
        self.grows_only_attached = grows_only_attached
        self.storage = storage
        self._driver = driver
        self._client = driver.start()
        self._messages = Messages(self._client.GetPluginInfo().name, instance)
        self._members: dict[str, list[str]] = {}  # snapshot ids by group: CSI requires them in later calls
        self.attached: set[tuple[str, str]] = set()  # (handle, node id)

    def kind_of(self, error: type[StorageError]) -> type[StorageError]:
        return messages.kind_of(error)

    def restart(self) -> None:
        self._client.close()
        self._driver.kill()
        self._client = self._driver.start()

    def close(self) -> None:
        self._client.close()
        self._driver.close()

    def call(self, rpc: str, **fields: Any) -> Any:
        """Make any RPC with the storage's secrets. Raises the contract's error that its code stands for."""
        if rpc in messages.TAKES_SECRETS:
            fields = {"secrets": self.storage.secrets, **fields}
        try:
            answer = getattr(self._client, rpc)(**fields)
            return list(answer) if hasattr(answer, "__next__") else answer  # a stream fails while it is read
        except grpc.RpcError as error:
            failure = messages.failure(rpc, error)
            watch_of(self.storage).search_error(failure, rpc)
            raise failure from None

    def id_of(self, handle: str) -> str:
        return self._messages.id_of(handle)

    def _parameters(self, given: Strings) -> dict[str, str]:
        return {**given, "backend": self._messages.instance}

    # Volumes

    def create(self, spec: VolumeSpec) -> Volume:
        fields: dict[str, Any] = {"secrets": spec.secrets} if spec.secrets else {}
        if spec.size.required or spec.size.limit:  # an empty range is left out
            fields["capacity_range"] = messages.size_range(spec.size)
        if spec.source:
            fields["volume_content_source"] = self._messages.source(spec.source)
        if spec.topology:
            fields["accessibility_requirements"] = self._messages.requirement(spec.topology)
        answer = self.call(
            "CreateVolume",
            name=spec.name,
            volume_capabilities=[messages.capability(one) for one in spec.capabilities],
            parameters=self._parameters(spec.parameters),
            mutable_parameters=spec.mutable,
            **fields,
        )
        return self._messages.volume(answer.volume)

    def delete(self, handle: str) -> None:
        self.call("DeleteVolume", volume_id=self.id_of(handle))

    def get(self, handle: str) -> Volume:
        answer = self.call("ControllerGetVolume", volume_id=self.id_of(handle))
        return self._messages.volume(answer.volume, answer.status.published_node_ids)

    def list_volumes(self, cursor: str = "", limit: int = 0) -> Page[Volume]:
        answer = self.call("ListVolumes", starting_token=cursor, max_entries=limit)
        found = [self._messages.volume(one.volume, one.status.published_node_ids) for one in answer.entries]
        return Page(items=tuple(found), cursor=answer.next_token)

    def expand(self, handle: str, size: SizeRange) -> Expansion:
        wanted, use = messages.size_range(size), messages.capability(BLOCK)
        fields = {"volume_id": self.id_of(handle), "capacity_range": wanted, "volume_capability": use}
        with attached_to_grow(self, handle):
            answer = self.call("ControllerExpandVolume", **fields)
        return Expansion(size=answer.capacity_bytes, node_required=answer.node_expansion_required)

    def modify(self, handle: str, mutable: Strings) -> None:
        self.call("ControllerModifyVolume", volume_id=self.id_of(handle), mutable_parameters=mutable)

    def capacity(self, segments: Segments | None = None, capabilities: tuple[Capability, ...] = ()) -> CapacityReport:
        answer = self.call(
            "GetCapacity",
            volume_capabilities=[messages.capability(one) for one in capabilities],
            parameters=self._parameters(self.storage.parameters),
            accessible_topology=None if segments is None else self._messages.topology(segments),
        )
        largest = answer.maximum_volume_size.value if answer.HasField("maximum_volume_size") else None
        smallest = answer.minimum_volume_size.value if answer.HasField("minimum_volume_size") else None
        return CapacityReport(available=answer.available_capacity, maximum=largest, minimum=smallest)

    # Snapshots

    def snapshot(self, name: str, source: str) -> Snapshot:
        answer = self.call("CreateSnapshot", name=name, source_volume_id=self.id_of(source))
        return self._messages.snapshot(answer.snapshot)

    def get_snapshot(self, handle: str) -> Snapshot:
        return self._messages.snapshot(self.call("GetSnapshot", snapshot_id=self.id_of(handle)).snapshot)

    def delete_snapshot(self, handle: str) -> None:
        self.call("DeleteSnapshot", snapshot_id=self.id_of(handle))

    def list_snapshots(self, cursor: str = "", limit: int = 0, source: str | None = None) -> Page[Snapshot]:
        only = {} if source is None else {"source_volume_id": self.id_of(source)}
        answer = self.call("ListSnapshots", starting_token=cursor, max_entries=limit, **only)
        found = [self._messages.snapshot(one.snapshot) for one in answer.entries]
        return Page(items=tuple(found), cursor=answer.next_token)

    def group(self, name: str, sources: Sequence[str]) -> GroupSnapshot:
        wanted = [self.id_of(one) for one in sources]
        answer = self.call("CreateVolumeGroupSnapshot", name=name, source_volume_ids=wanted)
        return self._group(answer.group_snapshot)

    def get_group(self, handle: str) -> GroupSnapshot:
        return self._group(self.call("GetVolumeGroupSnapshot", **self._of_group(handle)).group_snapshot)

    def delete_group(self, handle: str) -> None:
        self.call("DeleteVolumeGroupSnapshot", **self._of_group(handle))

    def _of_group(self, handle: str) -> dict[str, Any]:
        return {"group_snapshot_id": self.id_of(handle), "snapshot_ids": self._members.get(handle, [])}

    def _group(self, message: Any) -> GroupSnapshot:
        group = self._messages.group(message)
        self._members[group.handle] = [one.snapshot_id for one in message.snapshots]
        return group

    def allocated(self, handle: str, offset: int = 0) -> list[Extent]:
        return messages.extents(
            self.call("GetMetadataAllocated", snapshot_id=self.id_of(handle), starting_offset=offset)
        )

    def changed(self, base: str, target: str, offset: int = 0) -> list[Extent]:
        pair = {"base_snapshot_id": self.id_of(base), "target_snapshot_id": self.id_of(target)}
        return messages.extents(self.call("GetMetadataDelta", **pair, starting_offset=offset))

    # Nodes

    @property
    def block(self) -> Capability:
        """The capability with which a volume is published to read or write its data."""
        wanted = self.storage.capability
        return wanted if wanted and wanted.block else BLOCK

    def node(self) -> Node:
        """Return the node that the driver runs on."""
        return ids.split_node(self.call("NodeGetInfo").node_id, self._messages.instance)

    def attaches(self) -> bool:
        wanted = pb.ControllerServiceCapability.RPC.PUBLISH_UNPUBLISH_VOLUME
        return wanted in [one.rpc.type for one in self.call("ControllerGetCapabilities").capabilities]

    def attach(self, handle: str, node: Node, capability: Capability = BLOCK, *, read_only: bool = False) -> Strings:
        answer = self.call(
            "ControllerPublishVolume",
            volume_id=self.id_of(handle),
            node_id=node.id,
            volume_capability=messages.capability(capability),
            readonly=read_only,
        )
        self.attached.add((handle, node.id))
        return dict(answer.publish_context)

    def detach(self, handle: str, node: Node | None) -> None:
        self.call("ControllerUnpublishVolume", volume_id=self.id_of(handle), node_id=node.id if node else "")
        self.attached -= {pair for pair in self.attached if pair[0] == handle and (not node or pair[1] == node.id)}

    # Health, places

    def health(self, handle: str) -> tuple[HealthEntry, ...]:
        answer = self.call("ControllerGetVolumeHealth", volume_id=self.id_of(handle))
        return messages.health(answer.volume_health)

    def list_health(self, cursor: str = "", limit: int = 0) -> Page[VolumeHealth]:
        answer = self.call("ControllerListVolumeHealth", starting_token=cursor, max_entries=limit)
        found = [
            VolumeHealth(handle=self._messages.handle("volume", one.volume_id), entries=messages.health(one))
            for one in answer.entries
        ]
        return Page(items=tuple(found), cursor=answer.next_token)

    def places(self, volume: Volume) -> tuple[Segments, ...]:
        return volume.topology

    def segments(self) -> Segments:
        answer = self.call("NodeGetInfo")
        return self._messages.segments(answer.accessible_topology)

    def device_path(self, handle: str, *, read_only: bool = False) -> AbstractContextManager[Path]:
        return published(self, handle, read_only=read_only)
