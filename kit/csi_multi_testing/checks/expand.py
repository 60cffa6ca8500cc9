"""Expansion: never smaller, without loss of data, usable to the new end (csi-spec ControllerExpandVolume)."""

from __future__ import annotations

from csi_multi.contract import (
    ExpandRequest,
    Expansion,
    FailedPrecondition,
    InUse,
    NotFound,
    OutOfRange,
    ResourceExhausted,
    SizeRange,
    Volume,
)
from csi_multi.contract import backend as b

from ..assertions import CheckSkipped, expect, same
from ..check import check
from ..context import BLOCK_SIZE, CheckContext, pages, pattern
from ..operations.base import attempt, describe_error
from ..operations.create import SEED, as_ready, source_volume
from ..protocol import Target
from .sources import expect_success, snapshot_as_source


def expect_expanded(t: CheckContext, volume: Volume, size: SizeRange) -> Expansion:
    """Expand a volume, and require that its size is as requested and as reported."""
    what = f"expand_volume from {volume.size} bytes to {size}"
    done = expect_success(what, t.client.expand, volume.handle, size)
    what = f"{what}: Expansion.size is {done.size}"
    expect(done.size >= max(volume.size, size.required), what)
    expect(not size.limit or done.size <= size.limit, what)
    same(t.client.get(volume.handle).size, done.size, f"{what}, then the size of get_volume")
    return done


@check(b.Expand)
def an_expanded_volume_keeps_its_new_size(t: CheckContext) -> None:
    """It also remains the volume of its name. Some storage systems expand a volume only once in hours."""
    spec = t.spec()
    volume = t.create(spec)
    size = expect_expanded(t, volume, SizeRange(required=volume.size + t.size)).size

    for what in ("expand_volume", "expand_volume and a restart"):
        found = t.client.get(volume.handle)
        same((found.size, found.stamp), (size, volume.stamp), f"{what}, then the size and the stamp of get_volume")
        again = expect_success(f"{what}, then the create_volume request repeated", t.create, spec)
        same(again.handle, volume.handle, f"{what}, then the create_volume request repeated")
        if b.ListVolumes in t.features:
            listed = [one.size for one in pages(t.client.list_volumes) if one.handle == volume.handle]
            same(listed, [size], f"{what}, then the size in list_volumes")
        t.client.restart()


@check(b.Expand)
def an_expansion_may_be_repeated(t: CheckContext) -> None:
    """The first answer may have been lost."""
    volume = t.volume()
    wanted = SizeRange(required=volume.size + t.size)
    first = expect_expanded(t, volume, wanted)
    size = first.size

    for when in ("repeated", "repeated after a restart"):
        again = expect_expanded(t, volume, wanted)
        same(again.size, size, f"expand_volume, {when}: its size")
        what = f"expand_volume, {when}: node_required is False, and was True"
        expect(again.node_required or not first.node_required, f"{what}: the node would never learn the new size")
        t.client.restart()
    same(expect_expanded(t, volume, SizeRange(required=size)).size, size, "expand_volume to the size it has: its size")


@check(b.Expand)
def a_volume_never_shrinks(t: CheckContext) -> None:
    """A volume that is large enough stays as it is, unless its size exceeds the limit."""
    volume = t.volume()

    for what, wanted in (
        ("to half its size", SizeRange(required=volume.size // 2)),
        ("to one byte less than it has", SizeRange(required=volume.size - 1)),
        ("with its own size as limit", SizeRange(limit=volume.size)),
    ):
        done = expect_success(f"expand_volume {what}", t.client.expand, volume.handle, wanted)
        same(done.size, volume.size, f"expand_volume {what}: Expansion.size")
        same(t.client.get(volume.handle), volume, f"expand_volume {what}, then get_volume")
    what = "expand_volume with a limit below its size"
    with t.refused(OutOfRange, what=what):
        t.client.expand(volume.handle, SizeRange(limit=volume.size - 1))
    same(t.client.get(volume.handle), volume, f"{what}: refused, then get_volume")


@check(b.Expand, b.Attach, target=Target.BACKEND)
def a_volume_that_grows_only_while_it_is_attached_says_so(t: CheckContext) -> None:
    """With FailedPrecondition: after InUse external-resizer would stop as soon as a pod uses the volume."""
    if not t.in_process.grows_only_attached:
        raise CheckSkipped("volumes grow also while they are attached nowhere (Expand.offline is True)")
    volume = t.volume()
    wanted = ExpandRequest(
        handle=volume.handle, size=SizeRange(required=volume.size + t.size), secrets=t.storage.secrets
    )
    _, error = attempt(lambda: t.backend.expand_volume(wanted))
    what = "expand_volume of a volume that is attached nowhere"
    outcome = f"raised {describe_error(error)}" if error else "succeeded"
    refused = isinstance(error, FailedPrecondition) and not isinstance(error, InUse)
    expect(refused, f"{what}: {outcome}, the contract requires FailedPrecondition, and not InUse")
    same(t.client.get(volume.handle), volume, f"{what}: refused, then get_volume")

    t.attach(volume, t.in_process.node())
    expect_expanded(t, volume, wanted.size)


@check(b.Expand)
def an_expansion_by_one_byte_is_rounded_up(t: CheckContext) -> None:
    volume = t.volume()

    expect_expanded(t, volume, SizeRange(required=volume.size + 1))


@check(b.Expand)
def an_expansion_stays_within_its_limit_or_is_refused(t: CheckContext) -> None:
    """Exactly one byte more: only a backend that creates every size can serve this."""
    volume = t.volume()
    before = t.new_resources()
    wanted = SizeRange(required=volume.size + 1, limit=volume.size + 1)
    try:
        done = t.client.expand(volume.handle, wanted)
    except t.client.kind_of(OutOfRange):
        what = "expand_volume to a range without a possible size: refused"
        same(t.client.get(volume.handle), volume, f"{what}, then get_volume")
        same(t.new_resources(), before, f"{what}, but the storage changed")
        return
    same(done.size, wanted.limit, f"expand_volume to {wanted}: Expansion.size")
    same(t.client.get(volume.handle).size, wanted.limit, f"expand_volume to {wanted}, then the size of get_volume")


@check(b.Expand)
def an_expansion_that_is_too_large_is_refused_and_changes_nothing(t: CheckContext) -> None:
    volume = source_volume(t)
    before = t.new_resources()

    what = f"expand_volume to {t.storage.too_large} bytes (Storage.too_large)"
    with t.refused(OutOfRange, ResourceExhausted, what=what):
        t.client.expand(volume.handle, SizeRange(required=t.storage.too_large))
    same(t.client.get(volume.handle), volume, f"{what}: refused, then get_volume")
    same(t.new_resources(), before, f"{what}: refused, but the storage changed")
    if not t.no_data_reason():
        t.expect_filled(volume, SEED, volume.size, f"{what}: refused, then the volume")
    expect_expanded(t, volume, SizeRange(required=volume.size + 1))


@check(b.Expand)
def a_deleted_volume_cannot_be_expanded(t: CheckContext) -> None:
    volume = t.volume()
    t.client.delete(volume.handle)

    with t.refused(NotFound, what="expand_volume of a volume that was deleted"):
        t.client.expand(volume.handle, SizeRange(required=2 * t.size))


@check(b.Expand, data=True)
def an_expanded_volume_keeps_its_data_and_holds_more(t: CheckContext) -> None:
    volume = source_volume(t)
    size = expect_expanded(t, volume, SizeRange(required=volume.size + t.size)).size

    what = f"a volume expanded from {volume.size} to {size} bytes"
    t.expect_filled(volume, SEED, volume.size, what)
    for offset in (volume.size, size - BLOCK_SIZE):
        t.write(volume, pattern(f"kit {offset}"), offset)
    for offset in (volume.size, size - BLOCK_SIZE):
        found = t.read(volume, BLOCK_SIZE, offset)
        expect(found == pattern(f"kit {offset}"), f"{what}: data written at {offset} cannot be read back")
    t.expect_filled(volume, SEED, volume.size, f"{what}, then written beyond the old end")


@check(b.Expand, b.Snapshots, data=True)
def expanding_a_volume_leaves_its_snapshots_unchanged(t: CheckContext) -> None:
    volume = source_volume(t)
    made = snapshot_as_source(t, volume)
    size = expect_expanded(t, volume, SizeRange(required=volume.size + t.size)).size
    t.write(volume, pattern("kit grown"), size - BLOCK_SIZE)

    found = t.client.get_snapshot(made.handle)
    same(as_ready(found), as_ready(made), "expand_volume, then get_snapshot of an earlier snapshot")
    copy = t.copy(made)
    t.expect_filled(copy, SEED, volume.size, "expand_volume, then a volume restored from an earlier snapshot")
