"""Somebody else's volumes are not touched; volumes of other nodes and groups are not reported as absent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest
from csi_multi_lvm.backend import LvmBackend
from csi_multi_lvm.labels import owner_tag

from csi_multi.contract import (
    AlreadyExists,
    ExpandRequest,
    FailedPrecondition,
    NotFound,
    OpenRequest,
    PageRequest,
    Setting,
    SizeRange,
    SnapshotRequest,
    StorageError,
    Volume,
    WrongNode,
)
from csi_multi.core import idempotent

from .group import EXTENT, Group
from .volume_steps import DyingHost, copy, create, delete, expand, lv_fields, lv_name, snapshot, stamp

pytestmark = pytest.mark.devicemapper

NewBackend = Callable[..., LvmBackend]
WHOSE = ["another cluster's", "nobody's"]


@pytest.fixture(scope="module", params=WHOSE)
def whose(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def theirs(whose: str, group: Group, backend: NewBackend, setting: Setting) -> Iterator[str]:
    """The handle that this driver would give to somebody else's volume; they also have a snapshot "snap"."""
    with ExitStack() as undo:
        if whose == "another cluster's":
            other = backend(setting=replace(setting, cluster="other"))
            one = create(other, "theirs", EXTENT)
            undo.callback(delete, other, one)
            undo.callback(delete, other, snapshot(other, "snap", one))
        else:
            for name in ("csi-theirs", "csis-snap"):  # with a stamp, but no owner
                make = ("lvcreate", "-qq", "-an", "-Zn", "-Wn", "-l", "1", "--addtag", "csi.0=name=theirs&digest=d")
                group.lvm.run(*make, "-n", name, group.name)
                undo.callback(group.lvm.run, "lvremove", "-qq", "-y", f"{group.name}/{name}")
        yield f"{setting.node}/{group.name}/theirs"


def everything(group: Group) -> list[str]:
    """Return what LVM reports about the group's volumes, and what is active."""
    fields = "lv_name,lv_uuid,lv_size,lv_tags,lv_active"
    return group.lvm.run("lvs", "-a", "--noheadings", "-o", fields, group.name) + group.devices()


def test_no_request_touches_somebody_elses_volume(group: Group, backend: NewBackend, theirs: str) -> None:
    ours = backend()
    snap = theirs.replace("/theirs", "/snap")
    before = everything(group)

    assert ours.list_volumes(PageRequest()).items == ()
    assert ours.list_snapshots(PageRequest()).items == ()
    assert ours.list_volume_health(PageRequest(), {}).items == ()
    asked: list[Callable[[], object]] = [
        lambda: ours.get_volume(theirs),
        lambda: ours.find_volume("theirs"),
        lambda: ours.delete_volume(theirs, {}),
        lambda: ours.open_device(OpenRequest(handle=theirs)),
        lambda: ours.formatting(theirs),
        lambda: ours.formatted(theirs),
        lambda: ours.volume_health(theirs, {}),
        lambda: ours.expand_volume(ExpandRequest(handle=theirs, size=SizeRange(required=2 * EXTENT))),
        lambda: ours.create_snapshot(SnapshotRequest(stamp=stamp(ours, "new"), source=theirs)),
        lambda: copy(ours, "new", Volume(handle=theirs, size=EXTENT, stamp=stamp(ours, "theirs"))),
        lambda: ours.get_snapshot(snap),
        lambda: ours.find_snapshot("snap"),
        lambda: ours.delete_snapshot(snap, {}),
    ]
    for ask in asked:
        with pytest.raises(FailedPrecondition, match="not touched"):
            ask()
    with pytest.raises((AlreadyExists, FailedPrecondition)):
        create(ours, "theirs", EXTENT)
    assert ours.find_device(theirs) is None
    ours.resume()
    ours.check()

    assert everything(group) == before


def test_a_device_of_somebody_elses_volume_is_neither_returned_nor_removed(
    group: Group, backend: NewBackend, setting: Setting
) -> None:
    ours, other = backend(), backend(setting=replace(setting, cluster="other"))
    volume = create(other, "theirs", EXTENT)
    other.open_device(OpenRequest(handle=volume.handle))
    before = everything(group)

    with pytest.raises(FailedPrecondition, match="not touched"):
        ours.find_device(volume.handle)
    with pytest.raises(FailedPrecondition, match="not touched"):
        ours.close_device(volume.handle)
    ours.resume()

    assert everything(group) == before
    other.close_device(volume.handle)
    delete(other, volume)


def test_a_volume_created_by_hand_keeps_its_name_and_is_unchanged(group: Group, backend: NewBackend) -> None:
    group.lvm.run("lvcreate", "-qq", "-an", "-Zn", "-Wn", "-l", "1", "-n", "csi-v", group.name)
    before = everything(group)
    with pytest.raises(AlreadyExists):
        create(backend(), "v", EXTENT)
    assert everything(group) == before
    group.lvm.run("lvremove", "-qq", "-y", f"{group.name}/csi-v")


def asked_of(one: LvmBackend, handle: str) -> list[StorageError]:
    """Send every request with this handle; return the errors."""
    found: list[StorageError] = []
    asked: list[Callable[[], object]] = [
        lambda: one.get_volume(handle),
        lambda: one.delete_volume(handle, {}),
        lambda: one.open_device(OpenRequest(handle=handle)),
        lambda: one.find_device(handle),
        lambda: one.close_device(handle),
        lambda: one.refresh_device(handle),
        lambda: one.formatting(handle),
        lambda: one.volume_health(handle, {}),
        lambda: one.expand_volume(ExpandRequest(handle=handle, size=SizeRange(required=2 * EXTENT))),
        lambda: one.create_snapshot(SnapshotRequest(stamp=stamp(one, "new"), source=handle)),
        lambda: copy(one, "new", Volume(handle=handle, size=EXTENT, stamp=stamp(one, "v"))),
        lambda: one.get_snapshot(handle),
        lambda: one.delete_snapshot(handle, {}),
    ]
    for ask in asked:
        with pytest.raises(StorageError) as raised:
            ask()
        found.append(raised.value)
    return found


def test_a_volume_of_another_node_or_group_is_not_reported_as_absent(
    group: Group, backend: NewBackend, setting: Setting
) -> None:
    """No command runs, because LVM of this node cannot know it, and the group need not exist."""
    ours = backend(setting=replace(setting, host=DyingHost()))
    elsewhere = backend(setting=replace(setting, host=DyingHost(), node="node-2"))
    assert {type(error) for error in asked_of(elsewhere, f"node-1/{group.name}/v")} == {WrongNode}
    errors = asked_of(ours, "node-1/another-group/v")
    assert {type(error) for error in errors} == {FailedPrecondition}
    assert {"another-group" in str(error) and group.name in str(error) for error in errors} == {True}


def test_a_volume_that_does_not_exist_is_not_found(group: Group, backend: NewBackend) -> None:
    ours = backend()
    with pytest.raises(NotFound):
        ours.get_volume(f"node-1/{group.name}/never")
    with pytest.raises(NotFound):
        ours.delete_volume(f"node-1/{group.name}/never", {})


def test_every_logical_volume_carries_the_instances_own_tags(group: Group, backend: NewBackend) -> None:
    ours = backend(tags=("team:storage", "tier#1"))
    volume = create(ours, "v", EXTENT)
    snap = snapshot(ours, "snap", volume)
    restored, thick = copy(ours, "restored", snap), create(ours, "thick", EXTENT, type="linear")
    thick_snap = snapshot(ours, "thick-snap", thick)
    copied = copy(ours, "copied", thick_snap, type="linear")

    listed = ("--noheadings", "--separator", "|", "-o", "lv_name,lv_tags")
    tagged = dict(line.split("|") for line in group.lvm.run("lvs", *listed, "-S", "lv_name=~^csi", group.name))
    assert len(tagged) == 6
    assert [name for name, tags in tagged.items() if not {"team:storage", "tier#1"} <= set(tags.split(","))] == []
    delete(ours, copied, thick_snap, thick, restored, snap, volume)


def test_volumes_created_before_tags_were_configured_still_belong_to_the_instance(
    group: Group, backend: NewBackend
) -> None:
    volume = create(backend(), "v", EXTENT)
    later = backend(tags=("new",))
    assert [one.handle for one in later.list_volumes(PageRequest()).items] == [volume.handle]
    assert expand(later, volume, 2 * EXTENT) == 2 * EXTENT
    assert lv_fields(group, volume, "lv_size")["lv_size"] == str(2 * EXTENT)
    assert lv_name(volume) in group.left()
    delete(later, volume)


@pytest.mark.parametrize("kind", ["snapshot", "volume"])
def test_a_volume_made_anew_under_the_same_name_has_no_snapshot_of_the_earlier_one(
    kind: str, backend: NewBackend
) -> None:
    one = backend()
    earlier = create(one, "v", EXTENT, type="thin")
    old = snapshot(one, "old", earlier)

    def snapshots() -> list[str]:
        return [found.stamp.name for found in one.list_snapshots(PageRequest(), earlier.handle).items]

    assert snapshots() == ["old"]
    delete(one, earlier)
    assert snapshots() == ["old"]
    anew = create(one, "v", EXTENT, type="thin") if kind == "volume" else copy(one, "v", old, type="thin")
    assert anew.handle == earlier.handle
    assert snapshots() == []
    with pytest.raises(AlreadyExists, match="its source is volume"):
        idempotent.create_snapshot(one, SnapshotRequest(stamp=old.stamp, source=anew.handle))
    (listed,) = one.list_snapshots(PageRequest()).items
    assert listed == one.get_snapshot(old.handle) == replace(old, source=listed.source)
    assert one.node_of(listed.source) == one.node_of(anew.handle)
    assert one.list_snapshots(PageRequest(), listed.source).items == (listed,)
    new = snapshot(one, "new", anew)
    assert snapshots() == ["new"]
    assert [found.stamp.name for found in one.list_snapshots(PageRequest()).items] == ["new", "old"]
    delete(one, new, old, anew)


def test_a_volume_whose_stamp_is_damaged_does_not_keep_the_others_from_being_listed(
    backend: NewBackend, group: Group
) -> None:
    one = backend()
    first, second = create(one, "a", EXTENT, type="thin"), create(one, "b", EXTENT, type="thin")
    old, new = snapshot(one, "old", second), snapshot(one, "new", second)
    for name in ("csi-a", "csis-old"):
        (tags,) = group.lvm.run("lvs", "--noheadings", "-o", "lv_tags", f"{group.name}/{name}")
        (part,) = (tag for tag in tags.split(",") if tag.startswith("csi.0="))
        group.lvm.run("lvchange", "-qq", "--deltag", part, f"{group.name}/{name}")

    assert [found.handle for found in one.list_volumes(PageRequest()).items] == [second.handle]
    for source in (None, second.handle):
        assert [found.handle for found in one.list_snapshots(PageRequest(), source).items] == [new.handle]
    with pytest.raises(FailedPrecondition, match="is missing; restore it"):
        one.get_volume(first.handle)
    delete(one, old, new, first, second)


def retag(group: Group, name: str, prefix: str, damaged: str) -> None:
    """Replace a volume's tags with this prefix."""
    (tags,) = group.lvm.run("lvs", "--noheadings", "-o", "lv_tags", f"{group.name}/{name}")
    for tag in tags.strip().split(","):
        if tag.startswith(prefix):
            group.lvm.run("lvchange", "-qq", "--deltag", tag, f"{group.name}/{name}")
    group.lvm.run("lvchange", "-qq", "--addtag", damaged, f"{group.name}/{name}")


def test_no_damaged_tag_of_one_resource_stops_lists_checks_or_the_start(backend: NewBackend, group: Group) -> None:
    one = backend()
    volume = create(one, "a", EXTENT, type="thin")
    create(one, "b", EXTENT, type="thin")
    new = snapshot(one, "new", volume)
    snapshot(one, "old", volume)
    group.lvm.run("lvchange", "-qq", "--addtag", "csi.todo=1", f"{group.name}/csi-b")  # an abandoned copy
    group.lvm.run("lvchange", "-qq", "--addtag", "csi.at=1", f"{group.name}/csi-b")
    group.lvm.run(
        "lvcreate", "-qq", "-an", "-Zn", "-Wn", "-l", "1", "-n", "csi-0", "--addtag", one_owner(one), group.name
    )
    for tag in ("csi.at=", "csi.todo=x"):
        group.lvm.run("lvchange", "-qq", "--addtag", tag, f"{group.name}/csi-0")

    one.resume()

    assert "csi-b" not in names(group)
    for prefix, damaged in (
        ("csi.at=", "csi.at=nan"),
        ("csi.size=", "csi.size=-1"),
        ("csi.source=", "csi.source=x"),
        ("csi.extend=", "csi.extend=x:y"),
        ("csi.0=", "csi.0=name=old&source=x:y"),
    ):
        retag(group, "csis-old", prefix, damaged)
        again = backend()
        again.resume()
        again.check()
        assert [found.handle for found in again.list_snapshots(PageRequest()).items][:1] == [new.handle], damaged
        assert [found.handle for found in again.list_volumes(PageRequest()).items] == [volume.handle]
    for name in ("csi-0", "csis-old"):
        group.lvm.run("lvremove", "-qq", "-y", f"{group.name}/{name}")
    delete(backend(), new, volume)


def names(group: Group) -> list[str]:
    return [name.strip() for name in group.lvm.run("lvs", "--noheadings", "-o", "lv_name", group.name)]


def one_owner(backend: LvmBackend) -> str:
    return owner_tag(backend.setting.driver, backend.setting.cluster)
