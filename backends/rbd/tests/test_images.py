"""Deletion: an open image is kept, and the error names its clients; other images lose their names, then their data."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from csi_multi_rbd import background, watchers
from csi_multi_rbd.backend import RbdBackend
from csi_multi_rbd.command import BackgroundRunner
from csi_multi_rbd.config import Config, Parameters, SnapshotParameters
from csi_multi_rbd.images import image_layout, refuse_other_cluster

from csi_multi.contract import InUse, InvalidArgument, NotFound, Result, Setting, Unavailable
from csi_multi.contract.params import parse
from csi_multi.core.idempotent import delete_snapshot, delete_volume

from . import contents
from .ceph import Cluster
from .ceph_commands import CephFailed
from .commands import Died, dies, fails, once, watched
from .volumes import (
    BACKGROUND_SECONDS,
    SIZE,
    create,
    delete,
    everything,
    held,
    image,
    info,
    rados,
    read,
    snapshot,
    spec,
    write,
)

TIB = 2**40
EIO = 5


def test_nothing_stays_of_a_volume_and_a_snapshot(cluster: Cluster, backend: RbdBackend) -> None:
    volume = create(backend, "v")
    write(cluster, backend, volume, b"data")
    delete(backend, snapshot(backend, "s", volume), volume)

    assert everything(cluster, backend) == []
    assert sorted(rados(cluster, backend, "ls").split()) == ["rbd_directory", "rbd_trash"]


def test_a_volume_that_somebody_has_open_stays_and_says_who_it_is(cluster: Cluster, backend: RbdBackend) -> None:
    volume = create(backend, "v")
    with held(cluster, backend, volume) as address, pytest.raises(InUse, match=address.replace("/", ".")):
        delete(backend, volume)

    assert backend.get_volume("v") == volume
    delete(backend, volume)


def restore(cluster: Cluster, where: str, name: str) -> None:
    """Take an image out of the trash, which rbd refuses while it tries to delete it."""
    ends = time.monotonic() + BACKGROUND_SECONDS
    while True:
        try:
            cluster.rbd("trash", "restore", where, "--image", name)
        except CephFailed as error:
            if "pending deletion" not in str(error) or time.monotonic() > ends:
                raise
        else:
            return


def test_a_snapshot_that_somebody_has_open_loses_its_name_and_keeps_its_data_until_it_is_closed(
    cluster: Cluster, config: Config, setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background.BackgroundWorker.__init__, "__kwdefaults__", {"pause": 0.5})
    backend = RbdBackend(config, setting)
    volume = create(backend, "v")
    write(cluster, backend, volume, b"data")
    cut, where = snapshot(backend, "s", volume), f"{cluster.pool}/{config.namespace}"
    id = info(cluster, backend, cut)["id"]
    with held(cluster, backend, cut):
        delete(backend, cut)
        assert not backend.main.trash.wait_until_idle(2)
        with pytest.raises(NotFound):
            backend.get_snapshot("s")
        restore(cluster, f"{where}/{id}", "seen")
        assert contents.read(cluster, f"{where}/seen", 0, 4) == b"data"

    cluster.rbd("rm", "--no-progress", f"{where}/seen")
    delete(backend, volume)
    assert everything(cluster, backend) == []
    backend.close()


def test_without_a_key_of_its_own_the_driver_refuses_to_delete_a_snapshot_that_is_open(
    cluster: Cluster, backend: RbdBackend, config: Config, setting: Setting
) -> None:
    """It could not purge it later."""
    keyless = RbdBackend(msgspec.structs.replace(config, keyring=""), setting)
    secrets = {"userID": cluster.user, "userKey": cluster.key}
    volume = create(backend, "v")
    cut = snapshot(backend, "s", volume)
    with held(cluster, backend, cut) as address, pytest.raises(InUse, match=address.replace("/", ".")):
        delete(keyless, cut, secrets=secrets)

    delete(keyless, cut, volume, secrets=secrets)
    assert everything(cluster, backend) == []
    keyless.close()


def test_an_image_that_a_command_still_has_open_is_deleted_when_that_has_ended(
    cluster: Cluster, backend: RbdBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a purge does that removes a copy in the background, and opens its source too."""
    monkeypatch.setattr(watchers, "CLOSING_SECONDS", 60.0)
    volume = create(backend, "v")
    with ExitStack() as opened:
        opened.enter_context(held(cluster, backend, volume))
        end = threading.Timer(1, opened.close)
        end.start()
        delete(backend, volume)
        end.join()

    assert everything(cluster, backend) == []


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
    assert backend.wait_until_idle(10)
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
    answered, run = threading.Event(), BackgroundRunner.run

    def waiting(self: BackgroundRunner, program: str, *words: str, timeout: float, **more: Any) -> Result:
        answered.wait(BACKGROUND_SECONDS)
        return run(self, program, *words, timeout=timeout, **more)

    monkeypatch.setattr(BackgroundRunner, "run", waiting)
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


def test_deleting_a_snapshot_takes_three_commands(backend: RbdBackend) -> None:
    """A command costs tens of milliseconds, and nothing is asked twice."""
    cut = snapshot(backend, "s", create(backend, "v"))

    with watched() as commands:
        delete_snapshot(backend, cut.handle, {})

    verbs = [" ".join(command.split()[:-1]) for command in commands]  # the first two run at the same time
    assert [*sorted(verbs[:2]), *verbs[2:]] == ["rbd image-meta list", "rbd info", "rbd trash mv"]


def test_a_driver_that_dies_in_a_deletion_is_followed_by_one_that_finishes(
    cluster: Cluster, backend: RbdBackend
) -> None:
    volume = create(backend, "v")
    with watched(after=dies("rbd trash mv")), pytest.raises(Died):
        delete(backend, volume)

    delete_volume(backend, volume.handle, {})

    assert everything(cluster, backend) == []


FSID = "3cb7b59b-9a3d-4b34-9a79-73900f2a06f6"


def config(**values: Any) -> Config:
    return Config(monitors=("10.0.0.1",), fsid=FSID, pool="k8s", user="csi", **values)


def parameters(**given: str) -> Parameters:
    """Parameters as users write them."""
    return parse(Parameters, given, "parameters")


def refused(instance: Config, **given: str) -> str:
    with pytest.raises(InvalidArgument) as found:
        image_layout(instance, parameters(**given))
    return str(found.value)


def test_without_parameters_an_image_is_as_the_instance_says() -> None:
    found = image_layout(config(data_pool="ec", image_features=("layering",)), Parameters())

    assert (found.features, found.data_pool) == (("layering",), "ec")
    assert (found.object_size, found.stripe_unit, found.stripe_count) == (0, 0, 0)


def test_what_a_class_says_wins() -> None:
    asked = parameters(
        dataPool="ec2",
        imageFeatures="layering,exclusive-lock",
        objectSize="8388608",
        stripeUnit="65536",
        stripeCount="8",
    )
    found = image_layout(config(data_pool="ec"), asked)

    assert (found.features, found.data_pool) == (("layering", "exclusive-lock"), "ec2")
    assert (found.object_size, found.stripe_unit, found.stripe_count) == (8388608, 65536, 8)


def test_a_data_pool_that_is_the_pool_itself_is_none_as_ceph_shows_it() -> None:
    assert image_layout(config(data_pool="ec"), parameters(dataPool="k8s")).data_pool == ""
    assert image_layout(config(data_pool="k8s"), Parameters()).data_pool == ""


def test_the_instances_own_pool_and_cluster_may_be_named() -> None:
    assert image_layout(config(), parameters(pool="k8s", clusterID=FSID)) == image_layout(config(), Parameters())


def test_a_copy_is_in_the_pool_of_its_source() -> None:
    assert "copies stay in the pool of their source" in refused(config(), pool="other")


def test_another_cluster_is_another_instance() -> None:
    said = refused(config(), clusterID="rook-ceph")

    assert "'clusterID' 'rook-ceph' is not the fsid" in said
    assert FSID in said


def test_a_snapshot_class_is_held_against_the_instance_as_well() -> None:
    refuse_other_cluster(config(), parse(SnapshotParameters, {"clusterID": FSID, "pool": "k8s"}, "parameters"))
    with pytest.raises(InvalidArgument, match="copies stay in the pool of their source"):
        refuse_other_cluster(config(), parse(SnapshotParameters, {"pool": "other"}, "parameters"))


def test_features_that_do_not_go_together_are_refused() -> None:
    assert "'imageFeatures': 'fast-diff' needs 'object-map'" in refused(config(), imageFeatures="layering,fast-diff")


def test_the_mounter_of_a_class_has_to_suit_the_features_of_the_instance() -> None:
    journaled = config(mounter="rbd-nbd", image_features=("layering", "exclusive-lock", "journaling"))

    assert "journaling" in image_layout(journaled, Parameters()).features
    assert "'mounter': no kernel can map" in refused(journaled, mounter="rbd")


def test_a_class_may_choose_a_mounter_that_its_features_need() -> None:
    asked = parameters(mounter="rbd-nbd", imageFeatures="layering,exclusive-lock,journaling")

    assert "journaling" in image_layout(config(), asked).features
