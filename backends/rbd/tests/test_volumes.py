"""Empty volumes: one command each, with the layout of their class, and never in place of an image with data."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from csi_multi_rbd import labels
from csi_multi_rbd.backend import RbdBackend
from csi_multi_rbd.config import Config
from csi_multi_rbd.labels import Label

from csi_multi.contract import (
    AlreadyExists,
    Busy,
    FailedPrecondition,
    NotFound,
    OutOfRange,
    PermissionDenied,
    ResourceExhausted,
    Setting,
    Stamp,
    Unavailable,
    Volume,
)
from csi_multi.core.idempotent import create_volume

from . import contents
from .ceph import Cluster
from .commands import changing, fails, once, watched
from .volumes import (
    MIB,
    SIZE,
    create,
    delete,
    everything,
    expand,
    held,
    image,
    info,
    read,
    retried,
    spec,
    stamp,
    volume_request,
    write,
)

MAKE = "rbd import"
EMPTY = 200  # bytes of an image that was cut short
OTHER_POOL = "bulk"
EPERM, EIO = 1, 5


@pytest.fixture(scope="module")
def other_pool(cluster: Cluster) -> Iterator[str]:
    """A second pool for data, which the user may use as well."""
    cluster.ceph("osd", "pool", "create", OTHER_POOL, "8")
    cluster.rbd("pool", "init", OTHER_POOL)
    profile = f"profile rbd pool={cluster.pool}, profile rbd pool={OTHER_POOL}"
    _allow(cluster, osd=profile)
    yield OTHER_POOL
    _allow(cluster, osd=f"profile rbd pool={cluster.pool}")


def _allow(cluster: Cluster, *, osd: str) -> None:
    manager = f"profile rbd pool={cluster.pool}"
    cluster.ceph("auth", "caps", f"client.{cluster.user}", "mon", "profile rbd", "osd", osd, "mgr", manager)


def half_made(cluster: Cluster, backend: RbdBackend, name: str, *, labelled: bool = True) -> None:
    """Make what a killed creation leaves: an image with no size to speak of, and perhaps its label."""
    cluster.rbd("create", "--size", f"{EMPTY}B", spec(backend, name))
    if labelled:
        label = labels.encode(Label(image=image(backend, name), stamp=stamp(backend, name)))
        cluster.rbd("image-meta", "set", spec(backend, name), labels.KEY, label)


def test_a_volume_takes_one_command_once_the_room_is_known(backend: RbdBackend) -> None:
    backend.check()
    with watched() as seen:
        create(backend, "v")

    assert [command.split()[:2] for command in seen] == [MAKE.split()]


def test_rbd_labels_an_image_before_it_gives_it_its_size(
    cluster: Cluster, backend: RbdBackend, config: Config, tmp_path: Path
) -> None:
    """What a killed creation leaves can be told from a volume only for as long as rbd works in this order."""
    (tmp_path / "image").write_bytes(labels.empty_image(SIZE, {labels.KEY: "{}"}))
    told = cluster.run(
        "sh", "-c", 'exec rbd "$@" 2>&1', "-", "import", str(tmp_path / "image"), spec(backend, "v"),
        "--export-format", "2", "--no-progress", "--debug-rbd=20", "--log-to-stderr=true", "--err-to-stderr=true",
    )  # fmt: skip
    steps = [
        re.search(pattern, told) for pattern in (r"create name=\S+.* size=(\d+)", "metadata_set", r"resize: size=")
    ]

    assert all(steps), told
    assert [step.start() for step in steps if step] == sorted(step.start() for step in steps if step)
    assert steps[0]
    assert 0 < int(steps[0][1]) < labels.SMALLEST


def test_what_a_volume_is_stands_on_its_image_alone(
    cluster: Cluster, backend: RbdBackend, config: Any, setting: Any
) -> None:
    volume = create(backend, "Daten für 💾", 20 * MIB)
    another = RbdBackend(config, setting)

    assert another.get_volume(volume.handle) == another.find_volume("Daten für 💾") == volume
    assert json.loads(cluster.rbd("image-meta", "get", spec(backend, volume), labels.KEY))["stamp"]["name"]
    another.close()


@pytest.mark.parametrize("labelled", [False, True])
def test_a_volume_that_is_not_finished_is_made_anew_by_the_retry(
    cluster: Cluster, backend: RbdBackend, labelled: bool
) -> None:
    half_made(cluster, backend, "v", labelled=labelled)
    before = info(cluster, backend, "v")["id"]
    with pytest.raises(NotFound):
        backend.get_volume("v")

    volume = create(backend, "v")

    assert backend.get_volume("v") == volume
    assert info(cluster, backend, volume)["id"] != before
    assert everything(cluster, backend) == [f"image {image(backend, 'v')}"]


def test_deleting_a_half_made_volume_leaves_nothing(cluster: Cluster, backend: RbdBackend) -> None:
    half_made(cluster, backend, "v")
    backend.delete_volume("v", {})

    assert everything(cluster, backend) == []


@pytest.mark.parametrize("left", ["id", "entry", "id and entry"])
def test_a_name_that_a_killed_command_left_without_an_image_can_be_used(
    cluster: Cluster, backend: RbdBackend, left: str
) -> None:
    """rbd takes the name first, lists it, and writes the header last; what undoes it goes the other way."""
    half_made(cluster, backend, "v")
    tear(cluster, backend, "v", left=left)

    volume = create(backend, "v")

    assert backend.get_volume("v") == volume
    assert everything(cluster, backend) == [f"image {image(backend, 'v')}"]


def tear(cluster: Cluster, backend: RbdBackend, handle: str, *, left: str = "entry") -> None:
    """Leave nothing of an image but its name: the object with its id, its entry in the directory, or both."""
    where = ("--pool", cluster.pool, "--namespace", backend.config.namespace)
    name, id = image(backend, handle), info(cluster, backend, handle)["id"]
    cluster.rados(*where, "rm", f"rbd_header.{id}", f"rbd_object_map.{id}")
    if "id" not in left:
        cluster.rados(*where, "rm", f"rbd_id.{name}")
    for key in () if "entry" in left else (f"name_{name}", f"id_{id}"):
        cluster.rados(*where, "rmomapkey", "rbd_directory", key)


def test_an_image_that_is_still_being_made_is_waited_for(cluster: Cluster, backend: RbdBackend) -> None:
    half_made(cluster, backend, "v")
    with held(cluster, backend, "v"), pytest.raises(Busy, match="has it open"):
        create(backend, "v", 2 * SIZE)


def test_an_image_without_a_label_that_has_data_is_never_touched(cluster: Cluster, backend: RbdBackend) -> None:
    cluster.rbd("create", "--size", "16M", spec(backend, "v"))
    write(cluster, backend, "v", b"precious", at=5 * MIB)

    with pytest.raises(FailedPrecondition, match="has data"):
        create(backend, "v", 2 * SIZE)
    with pytest.raises(FailedPrecondition, match="has data"):
        backend.delete_volume("v", {})
    assert contents.read(cluster, spec(backend, "v"), 5 * MIB, 8) == b"precious"


def test_another_drivers_image_under_a_name_of_ours_is_never_touched(cluster: Cluster, backend: RbdBackend) -> None:
    stamp = Stamp(driver="other.example", cluster="c", name="v", digest="")
    cluster.rbd("create", "--size", "16M", spec(backend, "v"))
    label = labels.encode(Label(image=image(backend, "v"), stamp=stamp))
    cluster.rbd("image-meta", "set", spec(backend, "v"), labels.KEY, label)
    before = info(cluster, backend, "v")["id"]

    for act in (lambda: create(backend, "v"), lambda: backend.delete_volume("v", {}), lambda: backend.get_volume("v")):
        with pytest.raises(FailedPrecondition, match=r"other\.example"):
            act()
    assert info(cluster, backend, "v")["id"] == before


def test_a_damaged_label_is_nobodys_to_overwrite(cluster: Cluster, backend: RbdBackend) -> None:
    volume = create(backend, "v")
    cluster.rbd("image-meta", "set", spec(backend, volume), labels.KEY, "{")

    with pytest.raises(FailedPrecondition, match="damaged"):
        create(backend, "v")
    with pytest.raises(FailedPrecondition, match="damaged"):
        delete(backend, volume)


def test_a_refusal_takes_what_is_half_made_with_it(cluster: Cluster, backend: RbdBackend) -> None:
    def leave(command: str) -> None:
        if command.startswith(MAKE):
            half_made(cluster, backend, "v")

    refuse = fails(MAKE, EPERM, "Operation not permitted")
    with watched(lambda command: (leave(command), refuse(command))), pytest.raises(PermissionDenied):
        create(backend, "v")
    assert everything(cluster, backend) == []


def test_a_refusal_that_leaves_nothing_is_final(cluster: Cluster, backend: RbdBackend) -> None:
    with watched(fails(MAKE, EPERM, "Operation not permitted")), pytest.raises(PermissionDenied):
        create(backend, "v")
    assert everything(cluster, backend) == []


def test_two_drivers_that_are_asked_for_one_volume_make_one(
    cluster: Cluster, backend: RbdBackend, config: Config, setting: Setting
) -> None:
    other = RbdBackend(config, setting)

    def asked(one: RbdBackend) -> list[Volume]:
        wishes = [volume_request(one, f"v{number}") for number in range(3)]
        return [retried(lambda: create_volume(one, wanted, "node-1")) for wanted in wishes]  # noqa: B023

    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(asked, (backend, other))

    assert first == second
    assert everything(cluster, other) == [f"image {image(backend, volume)}" for volume in first]
    other.close()


def test_an_image_is_laid_out_as_its_class_says(cluster: Cluster, backend: RbdBackend, other_pool: str) -> None:
    volume = create(
        backend,
        "v",
        image_features="layering,exclusive-lock",
        object_size=MIB,
        stripe_unit=65536,
        stripe_count=4,
        data_pool=other_pool,
    )
    told = info(cluster, backend, volume)

    assert set(told["features"]) == {"layering", "exclusive-lock", "striping", "data-pool"}
    assert (told["object_size"], told["stripe_unit"], told["stripe_count"]) == (MIB, 65536, 4)
    assert told["data_pool"] == other_pool
    write(cluster, backend, volume, b"data")
    objects = cluster.rados("--pool", other_pool, "--namespace", backend.config.namespace, "ls").split()
    assert [one.split(".")[0] for one in objects] == ["rbd_data"]


def test_an_image_has_the_instances_features_when_its_class_names_none(cluster: Cluster, backend: RbdBackend) -> None:
    volume = create(backend, "v")

    assert set(info(cluster, backend, volume)["features"]) == set(backend.config.image_features)


@pytest.mark.parametrize(
    ("asked", "made"), [(0, 1024 * MIB), (1, 16 * MIB), (16 * MIB + 1, 17 * MIB), (17 * MIB, 17 * MIB)]
)
def test_sizes_are_whole_mib_from_the_smallest_up(cluster: Cluster, backend: RbdBackend, asked: int, made: int) -> None:
    volume = create(backend, "v", asked)

    assert volume.size == info(cluster, backend, volume)["size"] == made


def test_a_size_that_cannot_be_made_leaves_nothing(cluster: Cluster, backend: RbdBackend) -> None:
    with pytest.raises(OutOfRange):
        create(backend, "v", 16 * MIB + 1, limit=16 * MIB + 2)
    with pytest.raises(OutOfRange):
        create(backend, "v", 1, limit=MIB)
    assert everything(cluster, backend) == []


def test_a_command_that_fails_after_it_has_done_its_work_is_repaired_by_the_retry(
    cluster: Cluster, backend: RbdBackend
) -> None:
    with watched(after=once(fails(MAKE, EIO))), pytest.raises(Unavailable):
        create(backend, "v")

    with pytest.raises(AlreadyExists):
        create(backend, "v")
    assert everything(cluster, backend) == [f"image {image(backend, 'v')}"]


def test_a_volume_grows_and_keeps_its_data(cluster: Cluster, backend: RbdBackend) -> None:
    volume = create(backend, "v")
    write(cluster, backend, volume, b"data")

    assert expand(backend, volume, 3 * SIZE) == info(cluster, backend, volume)["size"] == 3 * SIZE
    assert backend.get_volume("v").size == 3 * SIZE
    assert read(cluster, backend, volume, 4) == b"data"
    assert read(cluster, backend, volume, SIZE, 2 * SIZE) == bytes(SIZE)


def test_a_volume_grows_while_it_is_open(cluster: Cluster, backend: RbdBackend) -> None:
    volume = create(backend, "v")
    with held(cluster, backend, volume):
        assert expand(backend, volume, 2 * SIZE) == 2 * SIZE


def test_a_volume_that_is_large_enough_stays_as_it_is(backend: RbdBackend) -> None:
    volume = create(backend, "v", 2 * SIZE)
    with watched() as seen:
        assert expand(backend, volume, SIZE) == expand(backend, volume, 2 * SIZE) == 2 * SIZE

    assert changing(seen) == []


def test_a_volume_never_shrinks_nor_passes_its_limit(backend: RbdBackend) -> None:
    volume = create(backend, "v", 2 * SIZE)
    with pytest.raises(OutOfRange):
        expand(backend, volume, SIZE, limit=SIZE)
    with pytest.raises(OutOfRange):
        expand(backend, volume, 3 * SIZE + 1, limit=3 * SIZE + 2)

    assert expand(backend, volume, 2 * SIZE + 1, limit=3 * SIZE) == 2 * SIZE + MIB


def test_a_volume_above_a_maximum_that_was_lowered_since_is_large_enough(
    backend: RbdBackend, config: Config, setting: Setting
) -> None:
    volume = create(backend, "v", 3 * SIZE)
    other = RbdBackend(msgspec.structs.replace(config, max_size=2 * SIZE), setting)

    assert expand(other, volume, SIZE) == 3 * SIZE
    with pytest.raises(OutOfRange):
        expand(other, volume, 4 * SIZE)
    other.close()


def test_a_volume_grows_by_what_there_is_room_for(backend: RbdBackend) -> None:
    """It counts what is added: the rest was promised when it was made."""
    room = backend.config
    available = backend.main.capacity.report(room.pool).available
    volume = create(backend, "v", available // MIB * MIB)

    assert expand(backend, volume, volume.size + SIZE) == volume.size + SIZE
    with pytest.raises(ResourceExhausted):
        expand(backend, volume, 3 * volume.size)


def test_a_growth_that_was_cut_short_is_finished_by_the_retry(cluster: Cluster, backend: RbdBackend) -> None:
    volume = create(backend, "v")
    with watched(after=once(fails("rbd resize", 5))), pytest.raises(Unavailable):
        expand(backend, volume, 2 * SIZE)

    assert expand(backend, volume, 2 * SIZE) == info(cluster, backend, volume)["size"] == 2 * SIZE


def test_what_is_gone_does_not_grow(backend: RbdBackend) -> None:
    volume = create(backend, "v")
    delete(backend, volume)
    with pytest.raises(NotFound):
        expand(backend, volume, 2 * SIZE)
