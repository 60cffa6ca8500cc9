"""Backends that report the wrong nodes of an attached volume, and the checks that find it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from csi_multi_testing.check import CheckState, Outcome
from csi_multi_testing.checks import published
from csi_multi_testing.memory import Attachment, MemoryBackend

from csi_multi.contract import (
    SINGLE_NODE_MODES,
    AccessMode,
    AttachRequest,
    Node,
    NotFound,
    Page,
    PageRequest,
    Strings,
    Volume,
)

from .shared_volumes import groups


class Named(MemoryBackend):
    """Tells names of nodes that are not their ids."""

    def _shown(self, volume: Volume) -> Volume:
        found = super()._shown(volume)
        return replace(found, published_nodes=tuple(f"host {node}" for node in found.published_nodes))


class NamesForIds(MemoryBackend):
    """Takes the name of a node for its id: they are equal as long as no instance has facts."""

    def attach(self, request: AttachRequest) -> Strings:
        return super().attach(replace(request, node=replace(request.node, id=request.node.name)))


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


def name_of(node_id: str) -> str:
    return node_id.partition(";")[0]


class Shared(MemoryBackend):
    """Attaches to many nodes where the mode says so."""

    access_modes = SINGLE_NODE_MODES | {AccessMode.MULTI_NODE_READER_ONLY, AccessMode.MULTI_NODE_MULTI_WRITER}

    def attach(self, request: AttachRequest) -> Strings:
        if request.capability.mode.single_node:
            return super().attach(request)
        others = [one for one in self.nodes(request.handle) if name_of(one) != request.node.name]
        joined = " ".join((*others, request.node.id))
        self.storage.attached[request.handle] = Attachment(joined, request.read_only)
        return {"device": request.handle}

    def nodes(self, handle: str) -> tuple[str, ...]:
        found = self.storage.attached.get(handle)
        return tuple(found.node.split()) if found else ()

    def detach(self, handle: str, node: Node | None, secrets: Strings) -> None:
        nodes = self.nodes(handle)
        rest = [one for one in nodes if node and name_of(one) != node.name]
        if len(rest) == len(nodes):
            raise NotFound(f"volume {handle!r} is not attached there")
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


BROKEN = [
    (
        published.the_nodes_of_an_attached_volume_are_reported,
        Named,
        "found ('host node-1',), the contract requires ('node-1',)",
    ),
    (
        published.published_nodes_have_the_facts_that_other_instances_need,
        NamesForIds,
        "found ('node-1',), the contract requires ('node-1;kit-other=fact-1',)",
    ),
    (published.the_nodes_of_an_attached_volume_are_reported, Unlisted, "published_nodes from list_volumes"),
    (published.the_nodes_of_an_attached_volume_are_reported, Forgetting, "after a restart"),
    (published.a_multi_node_volume_can_be_attached_to_several_nodes, Single, "is attached to node 'node-1'"),
    (published.a_multi_node_volume_can_be_attached_to_several_nodes, Sweeping, "one detached: found ()"),
]


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)


@pytest.mark.parametrize("one", groups("attach", "published"))
def test_a_backend_that_shares_volumes_passes(judged: Callable[..., Outcome], one: Any) -> None:
    outcome = judged(one.body, Shared)

    assert outcome.state is CheckState.PASSED, outcome.text
