"""Entries that appear and disappear as a whole, among processes and foreign files. No root needed."""

import dataclasses
import os
import subprocess
import sys
import threading

import pytest
from csi_multi_loop.client import locked

from csi_multi.contract import (
    AlreadyExists,
    Busy,
    FailedPrecondition,
    NotFound,
    PageRequest,
)

MIB = 2**20


@pytest.mark.parametrize("resumed", [True, False], ids=["resumed", "retried at once"])
def test_what_a_dead_copy_left_never_shows_in_an_empty_volume(backend, requests, image, tmp_path, resumed):
    backend.check()
    new = tmp_path / "pool/volumes/.new-v"
    new.mkdir()
    (new / "image").write_bytes(b"another volume's data" * 1000)
    (new / "strange").touch()
    if resumed:
        backend.resume()
    handle = backend.create_volume(requests.volume("v", MIB)).handle

    assert image(backend, handle).read_bytes() == bytes(MIB)
    assert sorted(os.listdir(image(backend, handle).parent)) == ["image", "volume.json"]


def test_one_leftover_that_cannot_be_removed_keeps_no_other_and_the_instance_stays_up(backend, tmp_path, caplog):
    backend.check()
    volumes = tmp_path / "pool/volumes"
    (volumes / ".new-a/strange").mkdir(parents=True)  # as a file that a file server keeps (.nfs...) does
    (volumes / ".new-b").write_text("foreign")
    for leftover in (*(volumes / f".new-v{number}" for number in range(20)), tmp_path / "pool/snapshots/.gone-s"):
        leftover.mkdir()
    backend.check()

    assert sorted(os.listdir(volumes)) == [".new-a", ".new-b"]
    assert os.listdir(tmp_path / "pool/snapshots") == []
    assert "cannot be removed yet" in caplog.text


def test_leftovers_of_a_living_process_are_not_removed(backend, tmp_path):
    backend.check()
    new = tmp_path / "pool/volumes/.new-v"
    new.mkdir()
    (new / "image").touch()
    with locked(new):
        backend.resume()

        assert (new / "image").exists()
    backend.resume()
    assert not new.exists()


def test_a_name_taken_while_an_entry_is_built_is_left_to_its_owner(backend, requests, crash, tmp_path):
    other = tmp_path / "pool/volumes/v"

    def overtake():
        other.mkdir()
        (other / "mine").touch()

    backend.check()
    with crash.before("os.rename", overtake, below=tmp_path), pytest.raises(AlreadyExists):
        backend.create_volume(requests.volume("v"))

    assert os.listdir(other) == ["mine"]
    assert os.listdir(other.parent) == ["v"]


def test_a_name_made_and_deleted_by_many_at_once_stays_whole(connect, requests, leftovers):
    unexpected = []

    def work():
        backend = connect()
        for _ in range(40):
            try:
                backend.create_volume(requests.volume("v", MIB))
                backend.delete_volume("node-1/v", {})
            except (AlreadyExists, Busy, NotFound):
                continue
            except Exception as error:
                unexpected.append(error)

    connect().check()
    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert unexpected == []
    assert leftovers(connect()) == []


def test_a_name_being_made_is_busy_and_afterwards_free(backend, requests, tmp_path):
    backend.check()
    new = tmp_path / "pool/volumes/.new-v"
    new.mkdir()
    with locked(new), pytest.raises(Busy):
        backend.create_volume(requests.volume("v"))

    assert backend.create_volume(requests.volume("v"))


def test_a_held_volume_is_busy(backend, requests, image):
    handle = backend.create_volume(requests.volume("v")).handle
    with locked(image(backend, handle).parent):
        for attempt in (
            lambda: backend.delete_volume(handle, {}),
            lambda: backend.expand_volume(requests.expand(handle, 20 * MIB)),
            lambda: backend.create_snapshot(requests.snapshot("s", handle)),
            lambda: backend.clone_volume(requests.copy("c", "volume", handle)),
            lambda: backend.open_device(requests.open(handle)),
        ):
            with pytest.raises(Busy):
                attempt()


def test_a_volume_of_another_driver_is_neither_listed_nor_deleted(backend, connect, setting, requests, tmp_path):
    other = connect(tmp_path / "other", setting=dataclasses.replace(setting, driver="other.csi.test"))
    other.check()
    handle = backend.create_volume(requests.volume("v")).handle
    (tmp_path / "pool/volumes/v").rename(tmp_path / "other/volumes/v")
    with pytest.raises(FailedPrecondition, match=r"belongs to driver 'multi\.csi\.test'"):
        other.delete_volume(handle, {})
    with pytest.raises(FailedPrecondition):
        other.find_volume("v")

    assert other.list_volumes(PageRequest()).items == ()
    assert other.list_volume_health(PageRequest(), {}).items == ()
    (tmp_path / "other/volumes/v").rename(tmp_path / "pool/volumes/v")
    assert backend.get_volume(handle).handle == handle


def test_foreign_files_are_neither_listed_nor_touched(backend, requests, tmp_path):
    backend.check()
    volumes = tmp_path / "pool/volumes"
    (volumes / "lost+found").mkdir()
    (volumes / "notes").write_text("mine")
    (volumes / "project").mkdir()
    (volumes / ".new-Foreign").mkdir()
    handle = backend.create_volume(requests.volume("v")).handle
    backend.resume()

    assert [volume.handle for volume in backend.list_volumes(PageRequest()).items] == [handle]
    assert backend.list_volume_health(PageRequest(), {}).items == ()
    assert sorted(path.name for path in volumes.iterdir()) == [".new-Foreign", "lost+found", "notes", "project", "v"]
    for name in ("notes", "project"):
        with pytest.raises(AlreadyExists):
            backend.create_volume(requests.volume(name))
        with pytest.raises(FailedPrecondition):
            backend.delete_volume(f"node-1/{name}", {})


def test_a_volume_with_a_foreign_file_in_it_is_not_removed(backend, requests, image):
    handle = backend.create_volume(requests.volume("v")).handle
    (image(backend, handle).parent / "precious").write_text("mine")
    with pytest.raises(FailedPrecondition, match="precious"):
        backend.delete_volume(handle, {})

    assert backend.get_volume(handle)


FEW_DESCRIPTORS = """
import os, resource, sys
from csi_multi.contract.backend import Setting
from csi_multi.contract.errors import StorageError
from csi_multi.contract.model import SizeRange, SnapshotRequest, Stamp, VolumeRequest
from csi_multi.host.command import LocalHost
from csi_multi_loop.backend import LoopBackend
from csi_multi_loop.config import Config

config = Config(directory=sys.argv[1], reserve_percent=0, min_size=4096)
setting = Setting(instance="scratch", driver="multi.csi.test", cluster="c", node="node-1", host=LocalHost())
backend = LoopBackend(config, setting)
backend.check()
free = os.open("/", os.O_RDONLY)  # the next one to be opened; every number below it is taken
os.close(free)
refused = 0
for more in range(12):
    for kind in ("volume", "snapshot"):
        stamp = Stamp(driver="multi.csi.test", cluster="c", name=f"{kind}-{more}", digest="d")
        resource.setrlimit(resource.RLIMIT_NOFILE, (free + more, 4096))
        try:
            if kind == "volume":
                backend.create_volume(VolumeRequest(stamp=stamp, size=SizeRange(required=4096)))
            else:
                backend.create_snapshot(SnapshotRequest(stamp=stamp, source="node-1/source"))
        except StorageError:
            refused += 1
        resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
left = [name for kind in ("volumes", "snapshots") for name in os.listdir(f"{sys.argv[1]}/{kind}") if name[0] == "."]
print(refused, *left)
"""


def test_a_creation_that_fails_for_want_of_descriptors_leaves_nothing(backend, requests, tmp_path):
    backend.create_volume(requests.volume("source", 4 * MIB))
    words = [sys.executable, "-c", FEW_DESCRIPTORS, str(tmp_path / "pool")]
    refused, *left = subprocess.run(words, check=True, timeout=120, stdout=subprocess.PIPE).stdout.split()

    assert int(refused) >= 6
    assert left == []


def test_what_a_dead_process_left_is_removed_by_the_regular_check_of_another(backend, tmp_path):
    backend.check()
    for name in (".new-v", ".gone-w"):
        (tmp_path / "pool/volumes" / name).mkdir()
        (tmp_path / "pool/volumes" / name / "image").touch()
    backend.check()

    assert os.listdir(tmp_path / "pool/volumes") == []
