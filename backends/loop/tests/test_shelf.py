"""Entries that appear and disappear as a whole, among processes. No root needed."""

import os
import threading

import pytest
from csi_multi_loop.guard import held

from csi_multi.contract import AlreadyExists, Busy, NotFound

MIB = 2**20


@pytest.mark.parametrize("resumed", [True, False], ids=["resumed", "retried at once"])
def test_what_a_dead_copy_left_never_shows_in_an_empty_volume(backend, ask, image, tmp_path, resumed):
    backend.check()
    new = tmp_path / "pool/volumes/.new-v"
    new.mkdir()
    (new / "image").write_bytes(b"somebody's data" * 1000)
    (new / "strange").touch()
    if resumed:
        backend.resume()
    handle = backend.create_volume(ask.volume("v", MIB)).handle

    assert image(backend, handle).read_bytes() == bytes(MIB)
    assert sorted(os.listdir(image(backend, handle).parent)) == ["image", "volume.json"]


def test_a_sweep_leaves_alone_what_a_living_process_is_making(backend, tmp_path):
    backend.check()
    new = tmp_path / "pool/volumes/.new-v"
    new.mkdir()
    (new / "image").touch()
    with held(new):
        backend.resume()

        assert (new / "image").exists()
    backend.resume()
    assert not new.exists()


def test_a_directory_that_was_replaced_between_open_and_lock_is_not_held(tmp_path, crash):
    directory = tmp_path / "entry"
    directory.mkdir()

    def replace():
        directory.rename(tmp_path / "gone")
        directory.mkdir()

    with crash.before("fcntl.flock", replace), pytest.raises(FileNotFoundError), held(directory):
        pass
    with held(directory), pytest.raises(BlockingIOError), held(directory):
        pass
    with held(directory, shared=True), held(directory, shared=True):
        pass


def test_a_name_taken_while_an_entry_is_built_is_left_to_its_owner(backend, ask, crash, tmp_path):
    other = tmp_path / "pool/volumes/v"

    def overtake():
        other.mkdir()
        (other / "mine").touch()

    backend.check()
    with crash.before("os.rename", overtake), pytest.raises(AlreadyExists):
        backend.create_volume(ask.volume("v"))

    assert os.listdir(other) == ["mine"]
    assert os.listdir(other.parent) == ["v"]


def test_a_name_made_and_deleted_by_many_at_once_stays_whole(make, ask, leftovers):
    strange = []

    def work():
        backend = make()
        for _ in range(40):
            try:
                backend.create_volume(ask.volume("v", MIB))
                backend.delete_volume("node-1/v", {})
            except (AlreadyExists, Busy, NotFound):
                continue
            except Exception as error:
                strange.append(error)

    make().check()
    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert strange == []
    assert leftovers(make()) == []
