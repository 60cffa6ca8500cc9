"""Members among the snapshots: under names of their own, and shown only while their group is."""

import shutil
from pathlib import Path

import msgspec
import pytest
from csi_multi_loop.group_store import member_leaf, member_prefix
from csi_multi_loop.labels import SnapshotLabel

from csi_multi.contract import LEAF_SHAPE, NotFound, PageRequest, StorageError, leaf

from .conftest import MIB


@pytest.fixture
def group(backend, requests):
    volumes = [backend.create_volume(requests.volume(name, MIB)).handle for name in ("data", "log")]
    return backend.create_group_snapshot(requests.group("g", *volumes))


def pool(backend, kind):
    return Path(backend.config.directory) / kind


@pytest.mark.parametrize("name", ["g", "x-g", "G", "n" * 43, "n" * 128, "x-aaaaaaaaaaaaaaaaaaaaaaaaaa"])
def test_no_requested_name_becomes_that_of_a_member(name):
    member = member_leaf(leaf(name), 12345)

    assert LEAF_SHAPE.fullmatch(member)
    assert leaf(member) != member
    assert not leaf(f"{member_prefix(leaf(name))}0").startswith(member_prefix(leaf(name)))


def test_members_of_a_group_whose_label_is_damaged_are_kept(backend, group):
    (pool(backend, "groups") / "g/group.json").write_text("{")
    backend.check()

    assert len(list(pool(backend, "snapshots").iterdir())) == 2
    for call in (
        lambda: backend.get_group_snapshot(group.handle),
        lambda: backend.delete_group_snapshot("node-1/g", {}),
    ):
        with pytest.raises(StorageError, match="is damaged"):
            call()
    with pytest.raises(StorageError, match="is damaged"):
        backend.get_snapshot(group.snapshots[0].handle)


def test_members_whose_group_is_gone_are_hidden_and_removed(backend, connect, group):
    shutil.rmtree(pool(backend, "groups") / "g")

    assert backend.list_snapshots(PageRequest()).items == ()
    with pytest.raises(NotFound):
        backend.get_snapshot(group.snapshots[0].handle)
    connect().check()
    assert list(pool(backend, "snapshots").iterdir()) == []
    assert list(pool(backend, "groups").iterdir()) == []


def test_members_beyond_those_of_a_group_are_removed(backend, connect, group):
    first, _ = sorted(pool(backend, "snapshots").iterdir())
    extra = first.with_name(member_leaf("g", 5))
    shutil.copytree(first, extra)
    connect().check()

    assert not extra.exists()
    assert connect().get_group_snapshot(group.handle) == group
    assert len(connect().list_snapshots(PageRequest()).items) == 2


def test_what_belongs_to_another_owner_is_left_alone(backend, connect, group, setting):
    label = pool(backend, "groups") / "g/group.json"
    label.write_text(label.read_text().replace("multi.csi.test", "other.csi.test"))
    backend.check()

    assert len(list(pool(backend, "snapshots").iterdir())) == 2
    with pytest.raises(StorageError, match=r"belongs to driver 'other.csi.test'"):
        backend.delete_group_snapshot(group.handle, {})


def test_a_driver_without_groups_refuses_a_member_and_reads_other_snapshots(backend, requests, group):
    backend.create_snapshot(requests.snapshot("s", group.snapshots[0].source))
    labels = {
        path.parent.name: msgspec.json.decode(path.read_bytes(), type=SnapshotLabel).version
        for path in pool(backend, "snapshots").glob("*/snapshot.json")
    }

    assert labels == {member_leaf("g", 0): 2, member_leaf("g", 1): 2, "s": 1}


def test_a_removal_that_cannot_be_finished_yet_keeps_nothing_else(backend, connect, requests, group, caplog):
    volume = group.snapshots[0].source
    other = backend.create_group_snapshot(requests.group("h", volume))
    member = pool(backend, "snapshots") / member_leaf("g", 0)
    (member / "foreign").write_text("mine")
    for name in ("g", "h"):
        shutil.rmtree(pool(backend, "groups") / name)
    connect().check()

    assert [path.name for path in pool(backend, "snapshots").iterdir()] == [member.name]
    assert "cannot be removed yet" in caplog.text
    assert other.handle == "node-1/h"
