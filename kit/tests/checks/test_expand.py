"""Backends that expand volumes wrongly, and the checks that find it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, NoReturn

import pytest
from csi_multi_testing import memory
from csi_multi_testing.check import CheckState, run
from csi_multi_testing.checks import CHECKS, expand
from csi_multi_testing.context import in_process
from csi_multi_testing.growth import attached_to_grow
from csi_multi_testing.memory import GRANULE, MemoryBackend

from csi_multi.contract import (
    Busy,
    ExpandRequest,
    Expansion,
    FailedPrecondition,
    InUse,
    InvalidArgument,
    Node,
    OutOfRange,
    Page,
    PageRequest,
    ResourceExhausted,
    SizeRange,
    Strings,
    Unavailable,
    Volume,
)
from csi_multi.contract import backend as b


class Growing(MemoryBackend):
    """How it grows: the defects below are there."""

    def resized(self, request: ExpandRequest, size: int, **more: Any) -> Expansion:
        volume = replace(self.storage.volumes[request.handle], size=size, **more)
        self.storage.volumes[request.handle] = volume
        return Expansion(size=size)


class Remembering(MemoryBackend):
    """Keeps the new size in the process."""

    def expand_volume(self, request: ExpandRequest) -> Expansion:
        before = self.get_volume(request.handle)
        done = super().expand_volume(request)
        vars(self).setdefault("sizes", {})[request.handle] = done.size
        self.storage.volumes[request.handle] = before
        return done

    def get_volume(self, handle: str) -> Volume:
        found = super().get_volume(handle)
        return replace(found, size=vars(self).get("sizes", {}).get(handle, found.size))

    def list_volumes(self, page: PageRequest) -> Page[Volume]:
        found = super().list_volumes(page)
        return replace(found, items=tuple(self.get_volume(one.handle) for one in found.items))


class Stampless(Growing):
    """Writes the record anew, and forgets what it was made from."""

    def expand_volume(self, request: ExpandRequest) -> Expansion:
        stamp = replace(self.get_volume(request.handle).stamp, digest="")
        return self.resized(request, request.size.required, stamp=stamp)


class Silent(MemoryBackend):
    """Grows, and says what was asked for."""

    def expand_volume(self, request: ExpandRequest) -> Expansion:
        super().expand_volume(request)
        return Expansion(size=request.size.required)


class Adding(Growing):
    """Adds what is asked for, each time."""

    def expand_volume(self, request: ExpandRequest) -> Expansion:
        return self.resized(request, self.get_volume(request.handle).size + request.size.required // 2)


class NodeOnce(MemoryBackend):
    """Tells the node of the growth with the first answer only, which may be lost."""

    def expand_volume(self, request: ExpandRequest) -> Expansion:
        before = self.get_volume(request.handle).size
        done = super().expand_volume(request)
        return replace(done, node_required=done.size > before)


class Strict(MemoryBackend):
    """Refuses to grow to the size that is there."""

    def expand_volume(self, request: ExpandRequest) -> Expansion:
        if request.size.required <= self.get_volume(request.handle).size:
            raise InvalidArgument("the new size must be greater than the old one")
        return super().expand_volume(request)


class Shrinking(Growing):
    """Makes it as large as it is told, also when that is smaller."""

    def expand_volume(self, request: ExpandRequest) -> Expansion:
        return self.resized(request, request.size.choose(granularity=GRANULE))


class Down(Growing):
    """Rounds down."""

    def expand_volume(self, request: ExpandRequest) -> Expansion:
        return self.resized(request, request.size.required // GRANULE * GRANULE)


class Unlimited(Growing):
    """Does not look at the limit."""

    def expand_volume(self, request: ExpandRequest) -> Expansion:
        size = SizeRange(required=request.size.required).choose(granularity=GRANULE)
        return self.resized(request, max(size, self.get_volume(request.handle).size))


class Early(Unlimited):
    """Changes the record before it asks for the space."""

    def expand_volume(self, request: ExpandRequest) -> Expansion:
        done = super().expand_volume(request)
        if self.storage.total_size() > int(self.config.capacity):
            raise ResourceExhausted("the pool is full")
        return done


class Ghosts(MemoryBackend):
    """Goes on seeing what was deleted, and grows it."""

    def get_volume(self, handle: str) -> Volume:
        seen = vars(self).setdefault("seen", {})
        if handle in self.storage.volumes:
            seen[handle] = super().get_volume(handle)
        return seen[handle] if handle in seen else super().get_volume(handle)

    def expand_volume(self, request: ExpandRequest) -> Expansion:
        return Expansion(size=request.size.required)

    def delete_volume(self, handle: str, secrets: Strings) -> None:
        self.get_volume(handle)
        super().delete_volume(handle, secrets)


class Emptying(MemoryBackend):
    """Makes a new volume, and forgets to copy."""

    def expand_volume(self, request: ExpandRequest) -> Expansion:
        done = super().expand_volume(request)
        self.storage.data.pop(request.handle, None)
        return done


class Dragging(MemoryBackend):
    """Snapshots grow with their volume."""

    def expand_volume(self, request: ExpandRequest) -> Expansion:
        done = super().expand_volume(request)
        for key, one in self.storage.snapshots.items():
            if one.source == request.handle:
                self.storage.snapshots[key] = replace(one, size=done.size)
        return done


class OnlyAttached(MemoryBackend):
    """Grows volumes only while they are attached. Correct."""

    offline = False

    def refuse(self) -> NoReturn:
        raise FailedPrecondition("the volume grows only while it is attached; start a pod that uses it")

    def expand_volume(self, request: ExpandRequest) -> Expansion:
        volume = self.get_volume(request.handle)
        if not volume.published_nodes and not request.size.holds(volume.size):
            self.refuse()
        return super().expand_volume(request)


class OnlyAttachedInUse(OnlyAttached):
    def refuse(self) -> NoReturn:
        raise InUse("the volume is attached nowhere")


class OnlyAttachedPending(OnlyAttached):
    def refuse(self) -> NoReturn:
        raise Unavailable("the volume is attached nowhere")


class OnlyAttachedSilent(OnlyAttached):
    """Says that it has grown, and does not."""

    def expand_volume(self, request: ExpandRequest) -> Expansion:
        if self.get_volume(request.handle).published_nodes:
            return super().expand_volume(request)
        return Expansion(size=request.size.required)


class Wordless(MemoryBackend):
    """Refuses without a text."""

    def expand_volume(self, request: ExpandRequest) -> Expansion:
        try:
            return super().expand_volume(request)
        except ResourceExhausted:
            raise ResourceExhausted from None


BROKEN = [
    (
        expand.an_expansion_that_is_too_large_is_refused_and_changes_nothing,
        Wordless,
        "(Storage.too_large): ResourceExhausted has no text",
    ),
    (expand.a_volume_that_grows_only_while_it_is_attached_says_so, OnlyAttachedInUse, "raised InUse"),
    (expand.a_volume_that_grows_only_while_it_is_attached_says_so, OnlyAttachedPending, "raised Unavailable"),
    (expand.a_volume_that_grows_only_while_it_is_attached_says_so, OnlyAttachedSilent, "succeeded"),
    (expand.an_expanded_volume_keeps_its_new_size, Remembering, "expand_volume and a restart, then the size"),
    (expand.an_expanded_volume_keeps_its_new_size, Stampless, "then the size and the stamp of get_volume"),
    (expand.an_expansion_may_be_repeated, NodeOnce, "expand_volume, repeated: node_required is False"),
    (expand.an_expansion_may_be_repeated, Adding, "expand_volume, repeated: its size"),
    (expand.an_expansion_may_be_repeated, Strict, "raised InvalidArgument (the new size must be greater"),
    (expand.a_volume_never_shrinks, Shrinking, "expand_volume to half its size: Expansion.size"),
    (expand.an_expansion_by_one_byte_is_rounded_up, Down, "Expansion.size is 16777216"),
    (expand.an_expansion_by_one_byte_is_rounded_up, Silent, "then the size of get_volume"),
    (expand.an_expansion_stays_within_its_limit_or_is_refused, Unlimited, "Expansion.size: found 16781312"),
    (
        expand.an_expansion_that_is_too_large_is_refused_and_changes_nothing,
        Unlimited,
        "the contract requires OutOfRange or Res",
    ),
    (expand.an_expansion_that_is_too_large_is_refused_and_changes_nothing, Early, "refused, then get_volume"),
    (expand.a_deleted_volume_cannot_be_expanded, Ghosts, "succeeded, the contract requires NotFound"),
    (expand.an_expanded_volume_keeps_its_data_and_holds_more, Emptying, "the first block differs"),
    (expand.expanding_a_volume_leaves_its_snapshots_unchanged, Dragging, "get_snapshot of an earlier snapshot"),
]


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)


class Attaching:
    """A client whose volume cannot be detached."""

    grows_only_attached = True
    attached: ClassVar[set[tuple[str, str]]] = set()

    def node(self) -> Node:
        return Node(name="node-1", id="node-1")

    def attach(self, handle: str, node: Node) -> None:
        """Do nothing."""

    def detach(self, handle: str, node: Node | None) -> None:
        raise Unavailable(f"{handle!r} cannot be detached")


def test_the_error_of_an_expansion_is_told_rather_than_the_one_of_the_detachment() -> None:
    with pytest.raises(OutOfRange, match="too large"), attached_to_grow(Attaching(), "v"):
        raise OutOfRange("too large")
    with pytest.raises(Unavailable, match="cannot be detached"), attached_to_grow(Attaching(), "v"):
        pass


class AttachingBusy(Attaching):
    """A client whose volume another call holds, when it is detached for the first time."""

    detachments = 0

    def detach(self, handle: str, node: Node | None) -> None:
        self.detachments += 1
        if self.detachments == 1:
            raise Busy(f"{handle!r} is being modified")


def test_a_volume_that_another_call_holds_is_detached_later() -> None:
    client = AttachingBusy()
    with attached_to_grow(client, "v"):
        pass

    assert client.detachments == 2


GROWING = [name for name, one in CHECKS.items() if b.Expand in one.features or one.group in ("faults", "crashes")]


@pytest.mark.parametrize("name", GROWING)
def test_growth_only_while_attached_is_no_fault(name: str) -> None:
    outcome = run(CHECKS[name], in_process(memory.storage(OnlyAttached)))

    assert outcome.state is not CheckState.FAILED, outcome.text
