"""Operations on existing resources: deletion, expansion, modification, attachment."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

from csi_multi.contract import Expansion, GroupSnapshot, Node, PublishedNodes, SizeRange, Snapshot, Strings, Volume

from ..assertions import expect, same
from ..context import BLOCK_SIZE, CheckContext
from ..counting import expect_nothing_left
from ..protocol import BLOCK
from .base import Operation, attempt, expect_not_found
from .create import SnapshotSources, source_volume
from .effects import expect_same_effect, model_of

DATA = "kit before"


class DeleteOperation(Operation):
    """Deletes a resource by its handle."""

    get: ClassVar[str]  # the client's method that reads the resource

    def prepare(self) -> None:
        self.resource = self.make()
        self.present = self.t.resources()

    @abstractmethod
    def make(self) -> Any:
        """Create what is to be deleted."""

    def read(self) -> Any:
        return getattr(self.t.client, self.get)(self.resource.handle)

    def verify(self, answer: Any, what: str) -> None:
        expect_not_found(self.read, f"{what}: read after the deletion")
        expect_nothing_left(self.t, self.before, what)
        self.t.forget(self.resource)

    def is_unchanged(self) -> bool:
        return attempt(self.read)[1] is None and self.t.resources() == self.present

    def remove(self) -> None:
        self.act()


class DeleteVolume(DeleteOperation):
    method = "delete_volume"
    get = "get"

    def make(self) -> Volume:
        return source_volume(self.t)

    def act(self) -> None:
        self.t.client.delete(self.resource.handle)


class DeleteSnapshot(DeleteOperation):
    method = "delete_snapshot"
    get = "get_snapshot"

    def __init__(self, t: CheckContext) -> None:
        super().__init__(t)
        self.sources = SnapshotSources(t, source_volume)

    def renew(self) -> None:
        self.sources.renew()

    def make(self) -> Snapshot:
        return self.t.snapshot(self.sources.volumes[0])

    def act(self) -> None:
        self.t.client.delete_snapshot(self.resource.handle)


class DeleteGroupSnapshot(DeleteOperation):
    method = "delete_group_snapshot"
    get = "get_group"

    def __init__(self, t: CheckContext) -> None:
        super().__init__(t)
        self.sources = SnapshotSources(t, CheckContext.volume, CheckContext.volume)

    def renew(self) -> None:
        self.sources.renew()

    def make(self) -> GroupSnapshot:
        return self.t.group(self.sources.volumes)

    def act(self) -> None:
        self.t.client.delete_group(self.resource.handle)


class VolumeOperation(Operation):
    """Changes a volume that each run creates."""

    def prepare(self) -> None:
        self.volume = self.t.volume()
        if not self.t.no_data_reason():
            self.t.fill(self.volume, DATA)

    def verify_survival(self, what: str) -> None:
        self.verify_usable(what)

    def verify_usable(self, what: str) -> None:
        """Require that the volume exists, with its data."""
        found, error = attempt(lambda: self.t.client.get(self.volume.handle))
        expect(error is None and found, f"{what}: get_volume raised {error!r}")
        if not self.t.no_data_reason():
            self.t.expect_filled(self.volume, DATA, self.volume.size, what)

    def remove(self) -> None:
        self.t.client.delete(self.volume.handle)
        self.t.forget(self.volume)


class ExpandVolume(VolumeOperation):
    method = "expand_volume"
    _node_required: bool | None = None  # of a run without a fault

    @property
    def wanted(self) -> int:
        return 2 * self.t.size

    def prepare(self) -> None:
        super().prepare()
        if self.t.in_process.grows_only_attached:
            self.t.attach(self.volume, self.t.in_process.node())

    def remove(self) -> None:
        if self.t.in_process.grows_only_attached:
            self.t.client.detach(self.volume.handle, None)
        super().remove()

    def act(self) -> Expansion:
        return self.t.client.expand(self.volume.handle, SizeRange(required=self.wanted))

    def verify(self, answer: Any, what: str) -> None:
        expect(answer.size >= self.wanted, f"{what}: answered {answer.size} bytes, {self.wanted} were requested")
        same(self.t.client.get(self.volume.handle).size, answer.size, f"{what}: the size of get_volume")
        if self._node_required is None:
            self._node_required = answer.node_required
        text = f"{what}: node_required is False, and True without a fault: the node would never learn the new size"
        expect(answer.node_required or not self._node_required, text)
        self.verify_usable(what)

    def is_unchanged(self) -> bool:
        return self.t.client.get(self.volume.handle).size == self.volume.size


class ExpandToTheEnd(ExpandVolume):
    """Requires that the end of the volume can be read, and not only that its record has the new size."""

    def verify(self, answer: Any, what: str) -> None:
        super().verify(answer, what)
        if not self.t.no_data_reason():
            found = len(self.t.read(self.volume, BLOCK_SIZE, answer.size - BLOCK_SIZE))
            expect(found == BLOCK_SIZE, f"{what}: the last block of the expanded volume has {found} bytes")


class ModifyVolume(VolumeOperation):
    method = "modify_volume"

    def __init__(self, t: CheckContext) -> None:
        super().__init__(t)
        self.wanted = dict(t.storage.other_mutable or {})
        self.model = model_of(t, self.wanted)

    def act(self) -> None:
        self.t.client.modify(self.volume.handle, self.wanted)

    def verify(self, answer: Any, what: str) -> None:
        same(self.t.client.get(self.volume.handle), self.volume, f"{what}: get_volume")
        expect_same_effect(self.t, self.volume, self.model, what)
        self.verify_usable(what)

    def is_unchanged(self) -> bool:
        return False  # the contract has no method that reads mutable parameters


class AttachmentOperation(VolumeOperation):
    """Attaches or detaches a volume; there are two nodes."""

    @property
    def nodes(self) -> tuple[Node, Node]:
        expect(len(self.t.storage.nodes) > 1, "Storage.nodes has fewer than two nodes; give two")
        return self.t.storage.nodes[0], self.t.storage.nodes[1]

    def attach(self, node: Node) -> Strings:
        context: Strings = self.t.attach(self.volume, node, capability=self.t.storage.capability or BLOCK)
        return context

    def verify_usable(self, what: str) -> None:
        found, error = attempt(lambda: self.t.client.get(self.volume.handle))
        expect(error is None and found, f"{what}: get_volume raised {error!r}")

    def published(self) -> tuple[str, ...] | None:
        """Return where the volume is attached; None if the backend does not report it."""
        return self.t.client.get(self.volume.handle).published_nodes if PublishedNodes in self.t.features else None

    def remove(self) -> None:
        self.t.client.detach(self.volume.handle, None)
        super().remove()


class AttachVolume(AttachmentOperation):
    method = "attach"
    _keys: list[str] | None = None

    def act(self) -> Strings:
        return self.attach(self.nodes[0])

    def verify(self, answer: Any, what: str) -> None:
        if self._keys is None:
            self._keys = sorted(answer)
        same(sorted(answer), self._keys, f"{what}: the keys of the publish context")
        if (nodes := self.published()) is not None:
            same(nodes, (self.nodes[0].id,), f"{what}: published_nodes")
        elsewhere = attempt(lambda: self.attach(self.nodes[1]))[1]
        if elsewhere is None:
            self.t.client.detach(self.volume.handle, self.nodes[1])
        if (self.t.storage.capability or BLOCK).mode.single_node:
            expect(
                elsewhere is not None, f"{what}: a volume with a single-node access mode was attached to a second node"
            )

    def is_unchanged(self) -> bool:
        if self.published() or attempt(lambda: self.attach(self.nodes[1]))[1]:
            return False
        self.t.client.detach(self.volume.handle, self.nodes[1])
        return True


class DetachVolume(AttachmentOperation):
    method = "detach"

    def prepare(self) -> None:
        super().prepare()
        self.attach(self.nodes[0])

    def act(self) -> None:
        self.t.client.detach(self.volume.handle, self.nodes[0])

    def verify(self, answer: Any, what: str) -> None:
        same(self.published() or (), (), f"{what}: published_nodes")
        error = attempt(lambda: self.attach(self.nodes[1]))[1]
        expect(error is None, f"{what}: another node cannot attach the volume: {error!r}")
        self.t.client.detach(self.volume.handle, self.nodes[1])

    def is_unchanged(self) -> bool:
        return self.nodes[0].id in (self.published() or ())
