"""Backends that attach wrongly or tell wrong facts about nodes, and the checks that see it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from csi_multi_testing.check import CHECKS, Outcome, State
from csi_multi_testing.checks import attach, node_facts, published
from csi_multi_testing.memory import Attachment, MemoryBackend

from csi_multi.contract import (
    SINGLE_NODE_MODES,
    AccessMode,
    AlreadyExists,
    AttachRequest,
    FailedPrecondition,
    InUse,
    Node,
    NotFound,
    Page,
    PageRequest,
    Strings,
    Volume,
)
from csi_multi.contract import backend as b

COUNT = itertools.count()


class Fickle(MemoryBackend):
    """Gives the device a new name with every answer."""

    def attach(self, request: AttachRequest) -> Strings:
        return {**super().attach(request), "session": str(next(COUNT))}


class Verbose(MemoryBackend):
    def attach(self, request: AttachRequest) -> Strings:
        return {**super().attach(request), "portals": "10.0.0.1:3260," * 400}


class Numeric(MemoryBackend):
    def attach(self, request: AttachRequest) -> Strings:
        return {**super().attach(request), "lun": 7}  # type: ignore[dict-item]


class Stealing(MemoryBackend):
    """Gives the volume to whoever asked last."""

    def attach(self, request: AttachRequest) -> Strings:
        found = self.storage.attached.get(request.handle)
        if found and found.node != request.node.id:
            del self.storage.attached[request.handle]
        return super().attach(request)


class Terse(MemoryBackend):
    """Does not say who has it."""

    def attach(self, request: AttachRequest) -> Strings:
        try:
            return super().attach(request)
        except InUse:
            raise FailedPrecondition("the volume is in use") from None


class Hospitable(MemoryBackend):
    """Attaches to any node."""

    def attach(self, request: AttachRequest) -> Strings:
        here = Node(name=self.setting.node, id=request.node.id)
        return super().attach(replace(request, node=here))


class Posthumous(MemoryBackend):
    """Attaches what is not there."""

    def attach(self, request: AttachRequest) -> Strings:
        try:
            return super().attach(request)
        except NotFound:
            if request.node.name != self.setting.node:
                raise
            return {}


class Writable(MemoryBackend):
    """Does not look at how it is attached already."""

    def attach(self, request: AttachRequest) -> Strings:
        try:
            return super().attach(request)
        except AlreadyExists:
            return {}


class Agreeing(MemoryBackend):
    """Says that a detachment of nothing went well."""

    def detach(self, handle: str, node: Node | None, secrets: Strings) -> None:
        self.storage.attached.pop(handle, None)


class Particular(MemoryBackend):
    """Wants to know the node."""

    def detach(self, handle: str, node: Node | None, secrets: Strings) -> None:
        if node is not None:
            super().detach(handle, node, secrets)


class Careless(MemoryBackend):
    """Deletes what is in use."""

    def delete_volume(self, handle: str, secrets: Strings) -> None:
        self.storage.attached.pop(handle, None)
        super().delete_volume(handle, secrets)


class Forcing(MemoryBackend):
    """Takes a volume away from its node before it finds that it cannot be deleted."""

    def delete_volume(self, handle: str, secrets: Strings) -> None:
        if self.storage.attached.pop(handle, None):
            raise InUse("the volume was attached until now")
        super().delete_volume(handle, secrets)


class Named(MemoryBackend):
    """Tells names of nodes that are not their ids."""

    def _shown(self, volume: Volume) -> Volume:
        found = super()._shown(volume)
        return replace(found, published_nodes=tuple(f"host {node}" for node in found.published_nodes))


class Unlisted(MemoryBackend):
    """Knows it of one volume, but not in the listing."""

    def list_volumes(self, page: PageRequest) -> Page[Volume]:
        found = super().list_volumes(page)
        return replace(found, items=tuple(replace(one, published_nodes=()) for one in found.items))


class Forgetting(MemoryBackend):
    """Remembers attachments as long as it lives."""

    def __init__(self, *words: Any) -> None:
        super().__init__(*words)
        self.seen: dict[str, Attachment] = {}

    def attach(self, request: AttachRequest) -> Strings:
        context = super().attach(request)
        self.seen[request.handle] = self.storage.attached[request.handle]
        return context

    def _shown(self, volume: Volume) -> Volume:
        found = super()._shown(volume)
        return found if volume.handle in self.seen else replace(found, published_nodes=())


class Shared(MemoryBackend):
    """Attaches to many nodes where the mode says so."""

    access_modes = SINGLE_NODE_MODES | {AccessMode.MULTI_NODE_READER_ONLY, AccessMode.MULTI_NODE_MULTI_WRITER}

    def attach(self, request: AttachRequest) -> Strings:
        if request.capability.mode.single_node:
            return super().attach(request)
        nodes = self.nodes(request.handle)
        joined = " ".join(dict.fromkeys((*nodes, request.node.id)))
        self.storage.attached[request.handle] = Attachment(joined, request.read_only)
        return {"device": request.handle}

    def nodes(self, handle: str) -> tuple[str, ...]:
        found = self.storage.attached.get(handle)
        return tuple(found.node.split()) if found else ()

    def detach(self, handle: str, node: Node | None, secrets: Strings) -> None:
        nodes = self.nodes(handle)
        if not nodes or (node and node.id not in nodes):
            raise NotFound(f"volume {handle!r} is not attached there")
        rest = [one for one in nodes if node and one != node.id]
        if rest:
            self.storage.attached[handle] = replace(self.storage.attached[handle], node=" ".join(rest))
        else:
            del self.storage.attached[handle]

    def _shown(self, volume: Volume) -> Volume:
        return replace(volume, published_nodes=self.nodes(volume.handle))


class Single(Shared):
    """Promises many nodes, and attaches to one."""

    attach = MemoryBackend.attach


class Sweeping(Shared):
    """Detaches all nodes when one is meant."""

    def detach(self, handle: str, node: Node | None, secrets: Strings) -> None:
        super().detach(handle, None, secrets)


class Knowing(b.NodeFacts, MemoryBackend):
    """A node knows the number under which the storage system has it."""

    def node_fact(self) -> str:
        return "i-0abc"

    def max_volumes(self) -> int:
        return 25


class Quoting(Knowing):
    def node_fact(self) -> str:
        return "iqn.2020-01.example;lun=1"


class Lengthy(Knowing):
    def node_fact(self) -> str:
        return "a" * 250


class Drawing(Knowing):
    """Draws its fact at every start."""

    def __init__(self, *words: Any) -> None:
        super().__init__(*words)
        self.number = next(COUNT)

    def node_fact(self) -> str:
        return f"i-{self.number}"


class Unlimited(Knowing):
    def max_volumes(self) -> int:
        return -1


BROKEN = [
    (attach.a_repeated_attachment_returns_the_same_publish_context, Fickle, "attach, repeated"),
    (attach.a_repeated_attachment_returns_the_same_publish_context, Verbose, "the maximum is 4096"),
    (attach.a_repeated_attachment_returns_the_same_publish_context, Numeric, "keys and values must be strings"),
    (
        attach.a_single_node_volume_is_not_attached_to_a_second_node,
        Stealing,
        "succeeded, the contract requires FailedPrecondition",
    ),
    (attach.a_single_node_volume_is_not_attached_to_a_second_node, Terse, "does not name node 'node-1'"),
    (attach.attaching_to_an_unknown_node_is_not_found, Hospitable, "a node that does not exist: succeeded"),
    (
        attach.a_deleted_volume_can_neither_be_attached_nor_detached,
        Posthumous,
        "attach of a volume that was deleted",
    ),
    (attach.a_deleted_volume_can_neither_be_attached_nor_detached, Agreeing, "detach of a volume that was deleted"),
    (attach.attaching_again_with_another_access_is_refused, Writable, "succeeded, the contract requires AlreadyExists"),
    (attach.a_detached_volume_can_be_attached_to_another_node, Particular, "is attached to node 'node-2'"),
    (attach.detaching_what_is_not_attached_is_not_found, Agreeing, "of a volume that is not attached: succeeded"),
    (attach.detaching_from_another_node_leaves_the_attachment, Agreeing, "after a detach from 'node-2'"),
    (attach.an_attached_volume_is_not_deleted, Careless, "succeeded, the contract requires FailedPrecondition"),
    (attach.an_attached_volume_is_not_deleted, Forcing, "after a refused delete_volume: attach to"),
    (
        published.the_nodes_of_an_attached_volume_are_reported,
        Named,
        "found ('host node-1',), the contract requires ('node-1',)",
    ),
    (published.the_nodes_of_an_attached_volume_are_reported, Unlisted, "published_nodes from list_volumes"),
    (published.the_nodes_of_an_attached_volume_are_reported, Forgetting, "after a restart"),
    (published.a_multi_node_volume_can_be_attached_to_several_nodes, Single, "is attached to node 'node-1'"),
    (published.a_multi_node_volume_can_be_attached_to_several_nodes, Sweeping, "one detached: found ()"),
    (node_facts.the_fact_of_a_node_fits_into_its_id, Quoting, "it must be one or more letters, digits"),
    (node_facts.the_fact_of_a_node_fits_into_its_id, Lengthy, "256 are allowed"),
    (node_facts.the_fact_of_a_node_does_not_change, Drawing, "of another process on the same node"),
    (node_facts.max_volumes_is_a_number_or_zero_for_no_limit, Unlimited, "max_volumes gave -1"),
]


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)


def groups(*names: str) -> list[Any]:
    return [pytest.param(one, id=one.name) for one in CHECKS.values() if one.group in names]


@pytest.mark.parametrize("one", groups("attach", "published"))
def test_a_backend_that_shares_volumes_passes(judged: Callable[..., Outcome], one: Any) -> None:
    outcome = judged(one.body, Shared)

    assert outcome.state is State.PASSED, outcome.text


@pytest.mark.parametrize("one", groups("node_facts"))
def test_a_backend_that_knows_its_node_passes(judged: Callable[..., Outcome], one: Any) -> None:
    outcome = judged(one.body, Knowing)

    assert outcome.state is State.PASSED, outcome.text
