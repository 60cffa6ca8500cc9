"""What a volume was created with stays with it: handle, source, context and topology survive every later change.

A change that writes the resource's record again may forget a field of it, and only a volume that has them all shows
that: these are copies with a context of several keys, where the backend has copies.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from csi_multi.contract import SizeRange, Volume
from csi_multi.contract import backend as b
from csi_multi.core import idempotent

from ..assertions import same
from ..check import check
from ..context import CheckContext, pages, source
from ..marked_secrets import given_secrets
from ..operations.base import retry
from ..protocol import Target, VolumeSpec
from .attach import attach
from .blanks import volume_with_notes
from .creation import expect_equal_records
from .devices import open_device
from .sources import snapshot_as_source

CONTEXT = {"fsType": "xfs", "csi-multi.fs/blockSize": "4096", "quoted": 'it\'s "quoted"', "empty": ""}


def full_volume(t: CheckContext, *, copied: bool = True) -> Volume:
    """Return a volume of which every field is set that the backend and the client can set."""
    spec = t.spec()
    if copied and b.Snapshots in t.features:
        spec = t.spec(size=0, source=source(snapshot_as_source(t, t.volume())))
    elif copied and b.Clone in t.features:
        spec = t.spec(size=0, source=source(t.volume()))
    made = retry(partial(create, t, spec), "create_volume with a source and a context")
    t.register(made)
    return made


def create(t: CheckContext, spec: VolumeSpec) -> Volume:
    """Create a volume; CSI sets the context itself, so only a backend gets one of the kit's."""
    if t.client.target is not Target.BACKEND:
        return t.client.create(spec)
    wanted = t.in_process.request(spec)
    wanted = replace(wanted, stamp=replace(wanted.stamp, context=CONTEXT))
    return idempotent.create_volume(t.backend, wanted, t.backend.setting.node)


def reports(t: CheckContext, wanted: Volume) -> Iterator[tuple[str, Volume]]:
    """Yield the volume as every method reports it, with the method."""
    yield "get_volume", t.client.get(wanted.handle)
    if t.client.target is Target.BACKEND:
        yield "find_volume", t.backend.find_volume(wanted.stamp.name)
    if b.ListVolumes in t.features:
        for listed in [one for one in pages(t.client.list_volumes) if one.handle == wanted.handle]:
            yield "list_volumes", listed


def expect_kept(t: CheckContext, wanted: Volume, what: str) -> None:
    """Require that every method reports this volume, also from a new process."""
    for when in (what, f"{what} and a restart"):
        for method, found in reports(t, wanted):
            expect_equal_records(found, wanted, f"{when}, then {method}")
        same(
            t.client.places(t.client.get(wanted.handle)), t.client.places(wanted), f"{when}, then where it is reachable"
        )
        t.client.restart()


@check()
def a_new_volume_keeps_its_whole_record(t: CheckContext) -> None:
    expect_kept(t, full_volume(t), "create_volume with a source and a context")


@check(b.Expand)
def an_expansion_changes_nothing_but_the_size(t: CheckContext) -> None:
    made = full_volume(t)

    wanted = SizeRange(required=made.size + t.size)
    size = retry(partial(t.client.expand, made.handle, wanted), "expand_volume").size

    expect_kept(t, replace(made, size=size), "expand_volume")


@check(b.Modify, needs=("other_mutable",))
def a_modification_keeps_the_whole_record(t: CheckContext) -> None:
    made = full_volume(t)

    modify = partial(t.client.modify, made.handle, dict(t.storage.other_mutable or {}))
    retry(modify, "modify_volume")

    expect_kept(t, made, "modify_volume")


@check(b.Attach, needs=("nodes",))
def an_attachment_changes_nothing_but_the_nodes(t: CheckContext) -> None:
    made, node = full_volume(t), t.storage.nodes[0]

    attach(t, made, node)
    attached = t.client.get(made.handle).published_nodes
    expect_kept(t, replace(made, published_nodes=attached), "attach")
    t.client.detach(made.handle, node)

    expect_kept(t, made, "attach and detach")


@check(b.Snapshots)
def a_snapshot_and_its_deletion_keep_the_whole_record(t: CheckContext) -> None:
    made = full_volume(t)

    snapshot = snapshot_as_source(t, made)
    expect_kept(t, made, "create_snapshot")
    t.client.delete_snapshot(snapshot.handle)

    expect_kept(t, made, "delete_snapshot")


@check(needs=("devices",), data=True, target=Target.BACKEND)
def the_notes_of_a_format_keep_the_whole_record(t: CheckContext) -> None:
    """The device is open meanwhile, as it is when the driver takes the notes."""
    volume_with_notes(t)
    made = full_volume(t, copied=False)
    open_device(t, made)
    attached = t.client.get(made.handle).published_nodes

    for method in ("formatting", "formatted"):
        given_secrets(t, getattr(t.backend, method))(made.handle)
        expect_kept(t, replace(made, published_nodes=attached), method)
    t.backend.close_device(made.handle)
