"""Deleting: what is open or needed stays, and says by whom; the rest is gone at once, and for good soon after."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from csi_multi_rbd.backend import RbdBackend
from csi_multi_rbd.config import Config
from csi_multi_rbd.shell import Background

from csi_multi.contract import InUse, NotFound, Setting, Unavailable
from csi_multi.core.idempotent import delete_snapshot, delete_volume

from .ceph import Cluster
from .commands import Died, dies, fails, once, watched
from .volumes import PATIENCE, SIZE, create, delete, everything, held, image, info, rados, read, snapshot, spec, write

TIB = 2**40
EIO = 5


def test_nothing_stays_of_a_volume_and_a_snapshot(cluster: Cluster, backend: RbdBackend) -> None:
    volume = create(backend, "v")
    write(cluster, backend, volume, b"data")
    delete(backend, snapshot(backend, "s", volume), volume)

    assert everything(cluster, backend) == []
    assert sorted(rados(cluster, backend, "ls").split()) == ["rbd_directory", "rbd_trash"]


def test_an_image_that_somebody_has_open_stays_and_says_who_it_is(cluster: Cluster, backend: RbdBackend) -> None:
    volume = create(backend, "v")
    cut = snapshot(backend, "s", volume)
    for one in (volume, cut):
        with held(cluster, backend, one) as address, pytest.raises(InUse, match=address.replace("/", ".")):
            delete(backend, one)

    assert backend.get_volume("v") == volume
    delete(backend, volume, cut)


def test_what_is_gone_is_not_found(backend: RbdBackend) -> None:
    volume = create(backend, "v")
    delete(backend, volume)

    with pytest.raises(NotFound):
        delete(backend, volume)
    for handle in ("never-made", "no/handle", "../v", "v@s", "-v", ""):
        with pytest.raises(NotFound):
            backend.delete_volume(handle, {})


@pytest.mark.parametrize("words", ["rbd trash mv", "rbd snap rm"])
def test_a_deletion_that_was_cut_short_is_finished_by_the_retry(
    cluster: Cluster, backend: RbdBackend, words: str
) -> None:
    volume = create(backend, "v")
    cut = snapshot(backend, "s", volume)
    cluster.rbd("snap", "create", "--no-progress", f"{spec(backend, cut)}@csi-base")
    with watched(after=once(fails(words, EIO))), pytest.raises(Unavailable):
        delete(backend, cut)
    with suppress(NotFound):
        delete(backend, cut)
    delete(backend, volume)

    assert everything(cluster, backend) == []


def test_a_driver_that_died_before_it_purged_leaves_that_to_the_next(
    cluster: Cluster, backend: RbdBackend, config: Config, setting: Setting
) -> None:
    volume = create(backend, "v")
    cluster.rbd("create", "--size", "1M", f"{cluster.pool}/{config.namespace}/by-hand")
    for name in (image(backend, volume), "by-hand"):
        cluster.rbd("trash", "mv", f"{cluster.pool}/{config.namespace}/{name}")  # as if it died right then

    following = RbdBackend(config, setting)
    following.resume()

    assert everything(cluster, following) == ["trash by-hand"]
    following.close()


def test_two_drivers_may_delete_at_once(
    cluster: Cluster, backend: RbdBackend, config: Config, setting: Setting
) -> None:
    other = RbdBackend(config, setting)
    handles = [create(backend, f"v{number}").handle for number in range(3)]

    def act(one: RbdBackend) -> None:
        for handle in handles:
            for _ in range(3):
                try:
                    delete_volume(one, handle, {})
                    break
                except Unavailable:
                    continue

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(act, (backend, other)))

    assert everything(cluster, other) == everything(cluster, backend) == []
    other.close()


def test_what_a_person_takes_out_of_the_trash_is_a_volume_again(cluster: Cluster, backend: RbdBackend) -> None:
    """Its snapshot keeps it from being purged."""
    volume = create(backend, "v")
    write(cluster, backend, volume, b"precious")
    cut = snapshot(backend, "s", volume)
    delete(backend, volume)
    assert backend.purger.idle(10)
    id = cluster.rbd("trash", "ls", f"{cluster.pool}/{backend.config.namespace}").split()[0]
    cluster.rbd("trash", "restore", f"{cluster.pool}/{backend.config.namespace}/{id}")

    delete(backend, cut)
    assert everything(cluster, backend) == [f"image {image(backend, volume)}"]
    assert backend.get_volume("v") == volume
    assert read(cluster, backend, volume, 8) == b"precious"
    delete(backend, volume)
    assert everything(cluster, backend) == []


def test_a_large_volume_is_gone_at_once_and_its_data_later(
    cluster: Cluster, config: Config, setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10 TiB are 2,621,440 objects to look for; here that begins when the answer was long given."""
    answered, run = threading.Event(), Background.run

    def waiting(self: Background, program: str, *words: str, timeout: float) -> str:
        answered.wait(PATIENCE)
        return run(self, program, *words, timeout=timeout)

    monkeypatch.setattr(Background, "run", waiting)
    backend = RbdBackend(msgspec.structs.replace(config, overprovision=1e6), setting)
    volume = create(backend, "v", 10 * TIB)
    delete(backend, volume)

    assert cluster.everything(config.namespace) == [f"trash {image(backend, volume)}"]
    with pytest.raises(NotFound):
        backend.get_volume("v")
    answered.set()
    assert everything(cluster, backend) == []
    backend.close()


def test_the_name_of_what_was_deleted_is_free_before_its_data_is_gone(cluster: Cluster, backend: RbdBackend) -> None:
    volume = create(backend, "v")
    write(cluster, backend, volume, b"old")
    cut = snapshot(backend, "s", volume)
    delete(backend, volume)

    again = create(backend, "v", 2 * SIZE)

    assert read(cluster, backend, again, 3) == bytes(3)
    assert read(cluster, backend, cut, 3) == b"old"
    delete(backend, again, cut)
    assert everything(cluster, backend) == []


@pytest.mark.parametrize("kind", ["volume", "snapshot"])
def test_a_command_that_is_killed_in_a_deletion_is_followed_by_one_that_finishes(
    cluster: Cluster, backend: RbdBackend, tmp_path: Path, kind: str
) -> None:
    """`rbd trash mv` writes into the trash, removes the object with the id, and at last the entry in the directory."""
    volume = create(backend, "v")
    write(cluster, backend, volume, b"data")
    torn = snapshot(backend, "s", volume) if kind == "snapshot" else volume
    keys = (f"name_{image(backend, torn)}", f"id_{info(cluster, backend, torn)['id']}")
    for key in keys:
        rados(cluster, backend, "getomapval", "rbd_directory", key, str(tmp_path / key))
    cluster.rbd("trash", "mv", spec(backend, torn))
    for key in keys:
        rados(cluster, backend, "setomapval", "rbd_directory", key, given=(tmp_path / key).read_bytes())

    if kind == "snapshot":
        delete_snapshot(backend, torn.handle, {})
    delete_volume(backend, volume.handle, {})

    assert everything(cluster, backend) == []
    assert sorted(rados(cluster, backend, "ls").split()) == ["rbd_directory", "rbd_trash"]


def test_deleting_a_snapshot_takes_four_commands(backend: RbdBackend) -> None:
    """A command costs tens of milliseconds, and nothing is asked twice."""
    cut = snapshot(backend, "s", create(backend, "v"))

    with watched() as commands:
        delete_snapshot(backend, cut.handle, {})

    verbs = [" ".join(command.split()[:-1]) for command in commands]
    assert verbs == ["rbd info", "rbd image-meta list", "rbd status", "rbd trash mv"]


def test_a_driver_that_dies_in_a_deletion_is_followed_by_one_that_finishes(
    cluster: Cluster, backend: RbdBackend
) -> None:
    volume = create(backend, "v")
    with watched(after=dies("rbd trash mv")), pytest.raises(Died):
        delete(backend, volume)

    delete_volume(backend, volume.handle, {})

    assert everything(cluster, backend) == []
