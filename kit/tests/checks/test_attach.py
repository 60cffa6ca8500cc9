"""Backends that attach wrongly, and the checks that find it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from csi_multi_testing.check import CheckState
from csi_multi_testing.checks import attach
from csi_multi_testing.memory import MemoryBackend

from csi_multi.contract import (
    AlreadyExists,
    AttachRequest,
    FailedPrecondition,
    InUse,
    Node,
    NotFound,
    Strings,
)

from . import attached_files
from .shared_volumes import COUNT


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


class ById(MemoryBackend):
    """Takes a node whose id has changed for another node."""

    def attach(self, request: AttachRequest) -> Strings:
        found = self.storage.attached.get(request.handle)
        if found and found.node != request.node.id:
            raise FailedPrecondition(f"volume {request.handle!r} is attached to node {found.node!r}")
        return super().attach(request)


class FirstId(MemoryBackend):
    """Keeps the id of the first attachment."""

    def attach(self, request: AttachRequest) -> Strings:
        found = self.storage.attached.get(request.handle)
        context = super().attach(request)
        if found:
            self.storage.attached[request.handle] = found
        return context


class DetachesById(MemoryBackend):
    """Does not find the attachment of a node whose id has changed, so the volume stays attached."""

    def detach(self, handle: str, node: Node | None, secrets: Strings) -> None:
        found = self.storage.attached.get(handle)
        if node and found and found.node != node.id:
            raise NotFound(f"volume {handle!r} is not attached to {node.id!r}")
        super().detach(handle, node, secrets)


BROKEN = [
    (
        attach.a_volume_that_was_attached_read_only_is_not_opened_writable,
        lambda: attached_files.storage(attached_files.OpensWritable),
        "which can be written",
    ),
    (attach.a_node_whose_id_has_changed_is_the_same_node, ById, "is attached to node 'node-1;kit-other=fact-1'"),
    (attach.a_node_whose_id_has_changed_is_the_same_node, FirstId, "published_nodes, after that: found"),
    (attach.a_node_whose_id_has_changed_is_the_same_node, DetachesById, "succeeded, the contract requires NotFound"),
    (
        attach.a_volume_that_is_attached_to_another_node_is_not_opened_here,
        lambda: attached_files.storage(attached_files.OpensAnywhere),
        "of a volume that is attached to 'node-2': opened Device",
    ),
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
]


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)


def test_a_device_of_a_read_only_attachment_that_is_read_only_passes(judged: Any) -> None:
    outcome = judged(
        attach.a_volume_that_was_attached_read_only_is_not_opened_writable,
        lambda: attached_files.storage(attached_files.AttachesReadOnly),
    )

    assert outcome.state is CheckState.PASSED, outcome.text
