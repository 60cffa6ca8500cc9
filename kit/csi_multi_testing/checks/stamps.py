"""A backend answers truthfully and stores stamps unchanged; the core decides which answers are a success."""

from __future__ import annotations

from dataclasses import replace

from csi_multi.contract import (
    AlreadyExists,
    GroupSnapshotRequest,
    NotFound,
    Snapshot,
    SnapshotRequest,
    Stamp,
    Volume,
    VolumeRequest,
)
from csi_multi.contract import backend as b

from ..assertions import same
from ..check import check
from ..context import CheckContext, pages, source
from ..operations.base import retry, wait_until_ready
from ..protocol import Target
from .creation import expect_equal_records, expect_repeats

CONTEXT = {
    "fsType": "xfs",
    "csi-multi.fs/blockSize": "4096",
    "options": "-m 0 -E lazy_itable_init=0,discard; [a]: {b} #c",
    "quoted": 'it\'s "quoted", with a \\ and a % and an = sign',
    "ünïcode": "größe 💾",
    "empty": "",
    "cluster": " c.",
    "c.c": ".c",
    ".": "=",
}
CONTEXT_BYTES = 1024  # bytes of the largest context: the core writes much less
METADATA = {
    "pvc/name": "n" * 253,
    "pvc/namespace": 'größe 💾 "it\'s" ; $(id) `id` \\ %s {} = , @ # -rf ../..',
    "pv/name": "a\nb\tc\r\n",
    "": "",
    "name": "",
    "--unknown": " ",
}


def request(t: CheckContext, **changes: object) -> VolumeRequest:
    """Return the request that the core hands to create_volume, with some fields replaced."""
    return replace(t.in_process.request(t.spec()), **changes)  # type: ignore[arg-type]


def create(t: CheckContext, wanted: VolumeRequest) -> Volume:
    made: Volume = t.backend.create_volume(wanted)
    t.register(made)
    return made


def create_with_retries(t: CheckContext, wanted: VolumeRequest, what: str) -> Volume:
    return retry(lambda: create(t, wanted), f"create_volume with {what}")


@check(target=Target.BACKEND)
def creating_under_a_taken_name_raises_already_exists(t: CheckContext) -> None:
    spec = t.spec()
    _expect_already_exists(t, t.create(spec), "create_volume", t.in_process.request(spec))


def _expect_already_exists(t: CheckContext, made: Volume, method: str, request: VolumeRequest) -> None:
    """Require AlreadyExists. Only the repeated request itself may also get the volume that it created before."""
    act = getattr(t.backend, method)
    try:
        again = act(request)
    except AlreadyExists:
        again = None
    if again is not None:
        t.register(again)
        same(again, made, f"{method}, repeated: its answer instead of AlreadyExists")
    with t.refused(AlreadyExists, what=f"{method} with a taken name"):
        t.register(act(replace(request, stamp=replace(request.stamp, digest="another"))))


def _expect_copy_conflicts(t: CheckContext, of: Volume | Snapshot, method: str) -> None:
    spec = t.spec(size=0, source=source(of))
    _expect_already_exists(t, t.create(spec), method, t.in_process.request(spec))


@check(b.Snapshots, target=Target.BACKEND)
def restoring_under_a_taken_name_raises_already_exists(t: CheckContext) -> None:
    _expect_copy_conflicts(t, wait_until_ready(t, t.snapshot(t.volume())), "restore_volume")


@check(b.Clone, target=Target.BACKEND)
def cloning_under_a_taken_name_raises_already_exists(t: CheckContext) -> None:
    _expect_copy_conflicts(t, t.volume(), "clone_volume")


@check(b.Snapshots, target=Target.BACKEND)
def a_snapshot_under_a_taken_name_raises_already_exists(t: CheckContext) -> None:
    volume = t.volume()
    snapshot = t.snapshot(volume)

    again = SnapshotRequest(stamp=snapshot.stamp, source=volume.handle, secrets=t.storage.secrets)
    with t.refused(AlreadyExists, what="create_snapshot with a taken name"):
        t.register(t.backend.create_snapshot(again))


@check(target=Target.BACKEND)
def deleting_a_volume_twice_raises_not_found(t: CheckContext) -> None:
    made = t.volume()
    t.backend.delete_volume(made.handle, t.storage.secrets)

    with t.refused(NotFound, what="delete_volume, a second time"):
        t.backend.delete_volume(made.handle, t.storage.secrets)
    with t.refused(NotFound, what="source_stamp of a volume that was deleted"):
        t.backend.source_stamp(source(made))


@check(target=Target.BACKEND)
def an_unknown_name_is_not_found(t: CheckContext) -> None:
    name = t.name()
    made = t.volume(name)
    for other in (t.name(), name[:-1], f"{name}0", made.handle if made.handle != name else "", ""):
        with t.refused(NotFound, what=f"find_volume({other!r}), a name that was never used, beside {name!r}"):
            t.backend.find_volume(other)

    same(t.backend.find_volume(name), made, "find_volume with the name of create_volume")
    t.backend.delete_volume(made.handle, t.storage.secrets)
    with t.refused(NotFound, what="find_volume after delete_volume"):
        t.backend.find_volume(name)


@check(target=Target.BACKEND)
def a_stamp_comes_back_unchanged(t: CheckContext) -> None:
    wanted = request(t)
    stamp = replace(wanted.stamp, name=f"{wanted.name}/größe 'x'", digest="0123456789abcdef" * 2, context=CONTEXT)
    made = create_with_retries(t, replace(wanted, stamp=stamp), "a context of several keys")

    expect_equal_records(made.stamp, stamp, "the stamp of create_volume")
    for moment in ("", " after a restart"):
        if moment:
            t.client.restart()
        expect_equal_records(t.backend.get_volume(made.handle).stamp, stamp, f"the stamp of get_volume{moment}")
        expect_equal_records(t.backend.find_volume(stamp.name).stamp, stamp, f"the stamp of find_volume{moment}")
        expect_equal_records(t.backend.source_stamp(source(made)), stamp, f"source_stamp of a volume{moment}")
        if b.ListVolumes in t.features:
            listed = [one.stamp for one in pages(t.client.list_volumes) if one.handle == made.handle]
            expect_equal_records(dict(enumerate(listed)), {0: stamp}, f"the stamp of list_volumes{moment}")


@check(target=Target.BACKEND)
def the_largest_stamp_comes_back_unchanged(t: CheckContext) -> None:
    """Tags and attributes have limits, which a long name and a full context may exceed."""
    wanted = request(t)
    stamp = replace(
        wanted.stamp, name=f"{wanted.name}-".ljust(128, "n"), context={"k" * 24: "v" * (CONTEXT_BYTES - 24)}
    )
    made = create_with_retries(t, replace(wanted, stamp=stamp), f"a name of 128 bytes and a context of {CONTEXT_BYTES}")

    expect_equal_records(t.backend.get_volume(made.handle).stamp, stamp, "the stamp of get_volume")
    expect_equal_records(t.backend.find_volume(stamp.name).stamp, stamp, "the stamp of find_volume")


@check(target=Target.BACKEND)
def unusual_metadata_does_not_change_the_volume(t: CheckContext) -> None:
    """Metadata is for tags that people read: a value that no tag can hold is changed or left out."""
    wanted = request(t, metadata=METADATA)
    made = create_with_retries(t, wanted, "unusual metadata")

    expect_equal_records(made.stamp, wanted.stamp, "the stamp of create_volume to unusual metadata")
    expect_repeats(t, made, t.spec(wanted.name), "repeated without the unusual metadata of the first time")


def full_stamp(t: CheckContext, text: str) -> Stamp:
    """Return a stamp whose name and digest say something, as those of the core do."""
    return replace(request(t).stamp, name=f"{t.name(text)}/größe 'x'", digest="0123456789abcdef" * 2, context={})


@check(b.Snapshots, target=Target.BACKEND)
def the_stamp_of_a_snapshot_comes_back_unchanged(t: CheckContext) -> None:
    """With the digest the core recognises another request under the name."""
    stamp = full_stamp(t, "snapshot")
    wanted = SnapshotRequest(stamp=stamp, source=t.volume().handle, secrets=t.storage.secrets)
    made = retry(lambda: t.backend.create_snapshot(wanted), "create_snapshot")
    t.register(made)
    expect_equal_records(made.stamp, stamp, "the stamp of create_snapshot")
    for moment in ("", " after a restart"):
        expect_equal_records(t.backend.get_snapshot(made.handle).stamp, stamp, f"the stamp of get_snapshot{moment}")
        expect_equal_records(t.backend.find_snapshot(stamp.name).stamp, stamp, f"the stamp of find_snapshot{moment}")
        expect_equal_records(t.backend.source_stamp(source(made)), stamp, f"source_stamp of a snapshot{moment}")
        if b.ListSnapshots in t.features:
            listed = [one.stamp for one in pages(t.client.list_snapshots) if one.handle == made.handle]
            expect_equal_records(dict(enumerate(listed)), {0: stamp}, f"the stamp of list_snapshots{moment}")
        t.client.restart()


@check(b.GroupSnapshots, target=Target.BACKEND)
def the_stamp_of_a_group_comes_back_unchanged(t: CheckContext) -> None:
    stamp = full_stamp(t, "group")
    wanted = GroupSnapshotRequest(stamp=stamp, sources=(t.volume().handle,), secrets=t.storage.secrets)
    made = retry(lambda: t.backend.create_group_snapshot(wanted), "create_group_snapshot")
    t.register(made)
    expect_equal_records(made.stamp, stamp, "the stamp of create_group_snapshot")
    for moment in ("", " after a restart"):
        found = t.backend.get_group_snapshot(made.handle).stamp
        expect_equal_records(found, stamp, f"the stamp of get_group_snapshot{moment}")
        found = t.backend.find_group_snapshot(stamp.name).stamp
        expect_equal_records(found, stamp, f"the stamp of find_group_snapshot{moment}")
        t.client.restart()


def _expect_own_stamp(t: CheckContext, of: Volume | Snapshot, method: str) -> None:
    """Require the stamp of the request, and no part of the source's: a storage may copy labels with the data."""
    wanted = t.in_process.request(t.spec(size=0, source=source(of)))
    stamp = replace(full_stamp(t, "copy"), source=wanted.source, context=CONTEXT)
    made = retry(lambda: getattr(t.backend, method)(replace(wanted, stamp=stamp)), method)
    t.register(made)
    expect_equal_records(made.stamp, stamp, f"the stamp of {method}")
    for moment in ("", " after a restart"):
        expect_equal_records(t.backend.get_volume(made.handle).stamp, stamp, f"the stamp of get_volume{moment}")
        expect_equal_records(t.backend.find_volume(stamp.name).stamp, stamp, f"the stamp of find_volume{moment}")
        t.client.restart()


@check(b.Clone, target=Target.BACKEND)
def the_stamp_of_a_clone_is_its_own(t: CheckContext) -> None:
    _expect_own_stamp(t, t.volume(), "clone_volume")


@check(b.Snapshots, target=Target.BACKEND)
def the_stamp_of_a_restored_volume_is_its_own(t: CheckContext) -> None:
    _expect_own_stamp(t, wait_until_ready(t, t.snapshot(t.volume())), "restore_volume")
