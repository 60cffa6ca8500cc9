"""One owner per directory, whatever process acts for it; and a directory that vanishes. Root only to mount."""

import dataclasses
import json
import shutil

import pytest

from csi_multi.contract import CapacityRequest, NotFound, PageRequest, Unavailable
from csi_multi.host import loopdev

MIB = 2**20


def uses(backend, requests, node="node-1"):
    """Yield everything that an instance is asked for."""
    handle = f"{node}/v"
    yield from (
        backend.check,
        backend.resume,
        lambda: backend.create_volume(requests.volume("w")),
        lambda: backend.clone_volume(requests.copy("w", "volume", handle)),
        lambda: backend.create_snapshot(requests.snapshot("s", handle)),
        lambda: backend.expand_volume(requests.expand(handle, 64 * MIB)),
        lambda: backend.delete_volume(handle, {}),
        lambda: backend.delete_snapshot(f"{node}/none", {}),
        lambda: backend.get_volume(handle),
        lambda: backend.get_snapshot(f"{node}/none"),
        lambda: backend.find_volume("v"),
        lambda: backend.find_volume("none"),
        lambda: backend.find_snapshot("none"),
        lambda: backend.list_volumes(PageRequest()),
        lambda: backend.list_snapshots(PageRequest()),
        lambda: backend.list_volume_health(PageRequest(), {}),
        lambda: backend.volume_health(handle, {}),
        lambda: backend.capacity(CapacityRequest()),
        lambda: backend.open_device(requests.open(handle)),
    )


@pytest.mark.parametrize(
    "change", [{"instance": "fast"}, {"driver": "other.csi.test"}, {"cluster": "other"}, {"node": "node-2"}]
)
def test_a_second_owner_of_a_directory_is_refused_and_both_are_named(backend, connect, setting, requests, change):
    backend.create_volume(requests.volume("v"))
    second = dataclasses.replace(setting, **change)
    other = connect(setting=second)
    for attempt in uses(other, requests, second.node):
        with pytest.raises(Unavailable, match=r"belongs to instance 'scratch' of driver 'multi\.csi\.test'") as refused:
            attempt()
        assert f"not to instance {second.instance!r} of driver {second.driver!r}" in str(refused.value)
        assert f"on node {second.node!r}" in str(refused.value)

    assert [volume.handle for volume in backend.list_volumes(PageRequest()).items] == ["node-1/v"]


def test_the_processes_of_one_instance_are_one_owner(connect, setting, requests):
    """The next process, one beside it during an update, and the node part beside the controller part."""
    old, new = connect(), connect()
    node = connect(setting=dataclasses.replace(setting, controller=False))
    for number, backend in enumerate((old, new, node, connect(), old)):
        backend.check()
        backend.create_volume(requests.volume(f"v{number}"))

    assert len(node.list_volumes(PageRequest()).items) == 5


def test_a_directory_from_before_owners_were_written_is_taken_over(connect, requests, tmp_path):
    connect().create_volume(requests.volume("v"))
    (tmp_path / "pool/owner.json").unlink()
    backend = connect()
    assert backend.get_volume("node-1/v")
    backend.check()

    assert (tmp_path / "pool/owner.json").exists()


def test_an_owner_from_before_nodes_were_written_is_the_node_that_asks(connect, requests, tmp_path):
    connect().create_volume(requests.volume("v"))
    file = tmp_path / "pool/owner.json"
    marker = json.loads(file.read_text())
    del marker["owner"]["node"]
    file.write_text(json.dumps(marker))

    assert connect().get_volume("node-1/v")


def test_a_damaged_owner_is_named(connect, requests, tmp_path):
    connect().check()
    (tmp_path / "pool/owner.json").write_text("{")
    with pytest.raises(Unavailable, match=r"owner\.json is damaged"):
        connect().check()


def vanished_refuses_everything(backend, requests):
    for attempt in uses(backend, requests):
        with pytest.raises(Unavailable, match="not the directory that this driver has used so far"):
            attempt()
    assert [entry.reason for entry in backend.node_storage_health({})] == ["DirectoryUnreachable"]


def test_a_directory_that_vanishes_is_neither_empty_nor_made_anew(backend, requests, tmp_path):
    backend.create_volume(requests.volume("v"))
    (tmp_path / "pool").rename(tmp_path / "away")
    vanished_refuses_everything(backend, requests)
    assert not (tmp_path / "pool").exists()
    (tmp_path / "pool").mkdir()
    vanished_refuses_everything(backend, requests)
    assert list((tmp_path / "pool").iterdir()) == []
    shutil.rmtree(tmp_path / "pool")
    (tmp_path / "away").rename(tmp_path / "pool")

    assert backend.get_volume("node-1/v")
    with pytest.raises(NotFound):
        backend.get_volume("node-1/none")


def test_another_directory_in_its_place_is_not_taken_for_it(backend, connect, requests, tmp_path):
    backend.create_volume(requests.volume("v"))
    (tmp_path / "pool").rename(tmp_path / "away")
    connect().check()

    vanished_refuses_everything(backend, requests)


@pytest.mark.root
def test_a_disk_that_is_unmounted_takes_no_volume_with_it(filesystem, mount, connect, requests, host, tmp_path):
    disk = filesystem("tmpfs", 64 * MIB)
    backend = connect(mount(disk, tmp_path / "bound", "--bind"))
    handle = backend.create_volume(requests.volume("v")).handle
    backend.open_device(requests.open(handle))
    host.run("umount", "--lazy", str(tmp_path / "bound"))
    vanished_refuses_everything(backend, requests)
    for attempt in (lambda: backend.find_device(handle), lambda: backend.close_device(handle)):
        with pytest.raises(Unavailable, match="not the directory"):
            attempt()
    mount(disk, tmp_path / "bound", "--bind")

    assert backend.find_device(handle)
    backend.close_device(handle)
    assert backend.get_volume(handle)


@pytest.mark.root
def test_a_volume_that_is_attached_is_not_called_gone_by_a_driver_that_starts_without_its_disk(
    filesystem, mount, connect, requests, host, tmp_path
):
    disk = filesystem("tmpfs", 64 * MIB)
    backend = connect(mount(disk, tmp_path / "bound", "--bind"))
    handle = backend.create_volume(requests.volume("lost")).handle
    other = backend.create_volume(requests.volume("w")).handle
    backend.open_device(requests.open(handle))
    host.run("umount", "--lazy", str(tmp_path / "bound"))
    host.run("umount", "--lazy", str(disk))
    started = connect(tmp_path / "bound")
    started.check()
    for attempt in (
        lambda: started.delete_volume(handle, {}),
        lambda: started.get_volume(handle),
        lambda: started.find_device(handle),
        lambda: started.close_device(handle),
    ):
        with pytest.raises(Unavailable, match="mount its disk again"):
            attempt()
    with pytest.raises(NotFound):
        started.get_volume(other)  # nothing of it is left on this node
    (device,) = loopdev.find_lost(tmp_path / "bound/volumes/lost/image", name_parts=2)
    loopdev.detach(host, device)
    with pytest.raises(NotFound):
        started.get_volume(handle)
