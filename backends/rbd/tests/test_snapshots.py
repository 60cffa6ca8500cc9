"""Snapshots and copies: of one point in time, independent of their source and of each other."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from csi_multi_rbd import flatten, labels, trash
from csi_multi_rbd.backend import RbdBackend
from csi_multi_rbd.config import Config

from csi_multi.contract import (
    AlreadyExists,
    InUse,
    NotFound,
    OutOfRange,
    PermissionDenied,
    ResourceExhausted,
    Setting,
    Snapshot,
    SnapshotRequest,
    Unavailable,
    Volume,
)
from csi_multi.core.idempotent import create_snapshot

from . import volumes
from .ceph import Cluster
from .commands import Died, changing, dies, fails, watched
from .half_clones import Header
from .volumes import (
    BACKGROUND_SECONDS,
    MIB,
    SIZE,
    copy,
    create,
    delete,
    everything,
    held,
    image,
    info,
    read,
    retried,
    snapshot,
    spec,
    write,
)

EPERM, EIO = 1, 5
AT = 9 * MIB  # in the third object
SECOND = timedelta(seconds=1)


def filled(cluster: Cluster, backend: RbdBackend, name: str, data: bytes = b"first") -> Volume:
    volume = create(backend, name)
    write(cluster, backend, volume, data, AT)
    return volume


def shows(cluster: Cluster, backend: RbdBackend, *ones: Volume | Snapshot) -> list[bytes]:
    return [read(cluster, backend, one, 5, AT) for one in ones]


def snapshots(cluster: Cluster, backend: RbdBackend) -> list[str]:
    """Return the snapshots that people see: those that Ceph keeps for clones are out of sight."""
    return [one for one in everything(cluster, backend) if one.startswith("snapshot") and "(user)" in one]


def test_a_snapshot_and_a_clone_show_one_point_in_time(cluster: Cluster, backend: RbdBackend) -> None:
    volume = filled(cluster, backend, "v")
    cut, clone = snapshot(backend, "s", volume), copy(backend, "c", volume)
    write(cluster, backend, volume, b"later", AT)
    restored = copy(backend, "r", cut)
    write(cluster, backend, clone, b"other", AT)

    assert shows(cluster, backend, volume, cut, restored, clone) == [b"later", b"first", b"first", b"other"]


def test_a_snapshot_says_what_it_is_of_and_since_when(cluster: Cluster, backend: RbdBackend) -> None:
    volume = create(backend, "v", 20 * MIB)
    before = datetime.now(UTC)
    cut = snapshot(backend, "s", volume)

    assert (cut.source, cut.size, cut.ready) == (volume.handle, 20 * MIB, True)
    assert before - SECOND <= cut.created <= datetime.now(UTC) + SECOND
    assert backend.get_snapshot(cut.handle) == backend.find_snapshot("s") == cut


def test_everything_outlives_what_it_was_made_of(cluster: Cluster, backend: RbdBackend) -> None:
    volume = filled(cluster, backend, "v")
    cut, clone = snapshot(backend, "s", volume), copy(backend, "c", volume)

    delete(backend, volume)
    restored = copy(backend, "r", cut)
    delete(backend, cut)

    assert shows(cluster, backend, restored, clone) == [b"first", b"first"]
    for gone in (volume.handle, cut.handle):
        with pytest.raises(NotFound):
            backend.get_volume(gone)
    with pytest.raises(NotFound):
        backend.get_snapshot(cut.handle)


def test_the_trash_empties_itself_with_the_last_copy(cluster: Cluster, backend: RbdBackend) -> None:
    """v <- s <- r <- t, and the oldest goes first."""
    volume = filled(cluster, backend, "v")
    cut = snapshot(backend, "s", volume)
    restored = copy(backend, "r", cut)
    second = snapshot(backend, "t", restored)

    delete(backend, volume, cut, restored)
    left = everything(cluster, backend)
    assert [one for one in left if one.startswith("trash")] == [
        f"trash {image(backend, cut)}",
        f"trash {image(backend, restored)}",
        f"trash {image(backend, volume)}",
    ]
    assert shows(cluster, backend, second) == [b"first"]

    delete(backend, second)
    assert everything(cluster, backend) == []


def test_the_trash_empties_itself_when_the_last_copy_is_flattened(
    cluster: Cluster, backend: RbdBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trash, "SWEEP_SECONDS", 0.0)
    volume = filled(cluster, backend, "v")
    clone = copy(backend, "c", volume)
    delete(backend, volume)
    assert backend.wait_until_idle(BACKGROUND_SECONDS)
    cluster.rbd("flatten", "--no-progress", spec(backend, clone))

    backend.check()

    assert everything(cluster, backend) == [f"image {image(backend, clone)}"]
    assert shows(cluster, backend, clone) == [b"first"]


def test_a_copy_may_be_larger_and_is_never_smaller(cluster: Cluster, backend: RbdBackend) -> None:
    volume = filled(cluster, backend, "v")
    cut = snapshot(backend, "s", volume)
    larger, clone = copy(backend, "r", cut, 3 * SIZE), copy(backend, "c", volume, 2 * SIZE)

    assert (larger.size, clone.size, copy(backend, "e", cut, 1).size) == (3 * SIZE, 2 * SIZE, SIZE)
    assert info(cluster, backend, larger)["size"] == 3 * SIZE
    assert shows(cluster, backend, larger, clone) == [b"first", b"first"]
    assert read(cluster, backend, larger, MIB, 2 * SIZE) == bytes(MIB)
    with pytest.raises(OutOfRange, match="never shrink"):
        copy(backend, "x", cut, limit=SIZE - 1)


def test_a_snapshot_of_a_volume_that_has_grown_has_its_new_size(cluster: Cluster, backend: RbdBackend) -> None:
    volume = filled(cluster, backend, "v")
    small = snapshot(backend, "s", volume)
    volumes.expand(backend, volume, 2 * SIZE)
    large = snapshot(backend, "t", volume)

    assert (small.size, large.size) == (SIZE, 2 * SIZE)
    assert (copy(backend, "r", small).size, copy(backend, "q", large).size) == (SIZE, 2 * SIZE)


def test_many_restores_stand_on_one_base_of_the_snapshot(cluster: Cluster, backend: RbdBackend) -> None:
    cut = snapshot(backend, "s", filled(cluster, backend, "v"))
    with ThreadPoolExecutor(4) as threads:
        restored = list(threads.map(lambda number: copy(backend, f"r{number}", cut), range(4)))

    assert shows(cluster, backend, *restored) == [b"first"] * 4
    assert snapshots(cluster, backend) == [f"snapshot {image(backend, cut)}@{labels.BASE_SNAPSHOT} (user)"]
    with watched() as seen:
        copy(backend, "again", cut)
    assert [command.split()[1] for command in changing(seen)] == ["clone", "image-meta"]


def test_no_snapshot_of_the_drivers_stays_on_a_volume(cluster: Cluster, backend: RbdBackend) -> None:
    volume = filled(cluster, backend, "v")
    snapshot(backend, "s", volume)
    copy(backend, "c", volume)
    with pytest.raises(AlreadyExists):
        snapshot(backend, "s", volume)

    assert snapshots(cluster, backend) == []


@pytest.mark.parametrize("status", [EPERM, EIO])
def test_nothing_stays_of_a_copy_that_the_cluster_refuses(cluster: Cluster, backend: RbdBackend, status: int) -> None:
    volume = create(backend, "v")
    before = everything(cluster, backend)
    refused = PermissionDenied if status == EPERM else Unavailable
    for act in (lambda: snapshot(backend, "s", volume), lambda: copy(backend, "c", volume)):
        with watched(fails("rbd clone", status, "Operation not permitted")), pytest.raises(refused):
            act()

    assert everything(cluster, backend) == before


def test_the_cut_of_a_copy_that_nobody_asks_for_again_goes_when_a_driver_starts(
    cluster: Cluster, config: Config, setting: Setting, backend: RbdBackend
) -> None:
    volume = filled(cluster, backend, "v")
    cluster.rbd("snap", "create", "--no-progress", f"{spec(backend, volume)}@by-hand")
    before = everything(cluster, backend)
    with watched(before=dies("rbd clone")), pytest.raises(Died):
        snapshot(backend, "s", volume)
    assert everything(cluster, backend) != before

    RbdBackend(config, setting).resume()

    assert everything(cluster, backend) == before


@pytest.mark.parametrize("words", ["rbd clone", "rbd image-meta set"])
def test_a_copy_whose_driver_died_is_made_by_the_retry_as_of_then(
    cluster: Cluster, backend: RbdBackend, words: str
) -> None:
    volume = filled(cluster, backend, "v")
    for act in (lambda: snapshot(backend, "s", volume), lambda: copy(backend, "c", volume)):
        with watched(dies(words)), pytest.raises(Died):
            act()
    write(cluster, backend, volume, b"later", AT)
    asked = datetime.now(UTC)

    cut, clone = snapshot(backend, "s", volume), copy(backend, "c", volume)

    assert cut.created >= asked
    assert shows(cluster, backend, cut, clone) == [b"later", b"later"]
    assert snapshots(cluster, backend) == []
    delete(backend, volume, cut, clone)
    assert everything(cluster, backend) == []


def test_no_error_is_final_while_something_half_made_is_there(cluster: Cluster, backend: RbdBackend) -> None:
    volume = create(backend, "v")
    with watched(fails("rbd image-meta set", EPERM, "Operation not permitted")), pytest.raises(Unavailable):
        snapshot(backend, "s", volume)
    refuse = fails("rbd snap rm", EPERM, "Operation not permitted")
    alike = fails("rbd clone", EPERM, "Operation not permitted")
    with (
        watched(lambda command: (refuse(command), alike(command))),
        pytest.raises(Unavailable, match="cannot be removed"),
    ):
        snapshot(backend, "t", volume)

    delete(backend, snapshot(backend, "s", volume), snapshot(backend, "t", volume))
    assert everything(cluster, backend) == [f"image {image(backend, volume)}"]


def test_what_was_half_made_goes_when_its_source_is_gone(cluster: Cluster, backend: RbdBackend) -> None:
    volume = filled(cluster, backend, "v")
    cut = snapshot(backend, "s", volume)
    acts = (lambda: snapshot(backend, "t", volume), lambda: copy(backend, "c", volume), lambda: copy(backend, "r", cut))
    for act in acts:
        with watched(dies("rbd image-meta set")), pytest.raises(Died):
            act()
    delete(backend, volume, cut)

    for act in acts:
        with pytest.raises(NotFound):
            act()
    assert everything(cluster, backend) == []


def test_a_clone_that_its_parent_does_not_know_is_never_handed_out(
    cluster: Cluster, backend: RbdBackend, tmp_path: Path
) -> None:
    """`rbd clone` writes the parent into the clone, and only then the clone into the parent; it was killed between."""
    cut = snapshot(backend, "s", filled(cluster, backend, "v"))
    header = Header(cluster, backend, cut, tmp_path)
    with watched(at("rbd clone", header.keep), at("rbd clone", header.restore, Died)), pytest.raises(Died):
        copy(backend, "r", cut)

    restored = copy(backend, "r", cut)
    delete(backend, cut)

    assert shows(cluster, backend, restored) == [b"first"]
    delete(backend, restored)


def at(words: str, act: Callable[[], None], then: type[BaseException] | None = None) -> Callable[[str], None]:
    """Do something at each command that begins with these words, and raise."""

    def acting(command: str) -> None:
        if command.startswith(words):
            act()
            if then:
                raise then(command)

    return acting


def test_a_clones_inherited_label_is_not_its_own(cluster: Cluster, backend: RbdBackend) -> None:
    volume = create(backend, "v")
    cluster.rbd("snap", "create", "--no-progress", f"{spec(backend, volume)}@by-hand")
    clone = ("clone", "--rbd-default-clone-format", "2", f"{spec(backend, volume)}@by-hand", spec(backend, "c"))
    cluster.rbd(*clone)

    assert labels.KEY in cluster.rbd("image-meta", "list", spec(backend, "c"))
    with pytest.raises(NotFound):
        backend.get_volume("c")
    assert create(backend, "c").handle == "c"
    assert "parent" not in info(cluster, backend, "c")


def test_a_snapshot_that_somebody_made_by_hand_keeps_its_volume(cluster: Cluster, backend: RbdBackend) -> None:
    volume = create(backend, "v")
    cluster.rbd("snap", "create", "--no-progress", f"{spec(backend, volume)}@before-upgrade")

    with pytest.raises(InUse, match="before-upgrade"):
        delete(backend, volume)
    cluster.rbd("snap", "rm", "--no-progress", f"{spec(backend, volume)}@before-upgrade")
    delete(backend, volume)
    assert everything(cluster, backend) == []


def test_a_volume_in_use_is_copied_too(cluster: Cluster, backend: RbdBackend) -> None:
    volume = filled(cluster, backend, "v")
    with held(cluster, backend, volume):
        cut, clone = snapshot(backend, "s", volume), copy(backend, "c", volume)

    assert shows(cluster, backend, cut, clone) == [b"first", b"first"]


def test_two_drivers_that_are_asked_for_one_snapshot_cut_one(
    cluster: Cluster, backend: RbdBackend, config: Config, setting: Setting
) -> None:
    other = RbdBackend(config, setting)
    volume = filled(cluster, backend, "v")

    def asked(one: RbdBackend) -> Snapshot:
        request = SnapshotRequest(stamp=volumes.stamp(one, "s"), source=volume.handle)
        return retried(lambda: create_snapshot(one, request))

    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(asked, (backend, other))

    assert (first.handle, first.source) == (second.handle, second.source)
    assert shows(cluster, backend, first) == [b"first"]
    assert other.wait_until_idle(BACKGROUND_SECONDS)
    assert snapshots(cluster, backend) == []
    other.close()


def test_the_source_of_a_copy_must_be_there(backend: RbdBackend) -> None:
    volume = create(backend, "v")
    cut = snapshot(backend, "s", volume)
    delete(backend, cut, volume)

    for act in (
        lambda: snapshot(backend, "t", volume),
        lambda: copy(backend, "r", cut),
        lambda: copy(backend, "c", volume),
    ):
        with pytest.raises(NotFound):
            act()


def test_a_volume_with_too_many_snapshots_is_not_cut_again_before_copies_of_it_are_flattened(
    cluster: Cluster, config: Config, setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = RbdBackend(msgspec.structs.replace(config, flatten_snapshots=2, max_snapshots=3), setting)
    volume = filled(cluster, backend, "v")
    with monkeypatch.context() as patched:
        patched.setattr(flatten.Flattener, "schedule", lambda *_: None)
        cuts = [snapshot(backend, f"s{number}", volume) for number in range(3)]
        with pytest.raises(ResourceExhausted, match="3 snapshots"):
            snapshot(backend, "s3", volume)

    assert retried(lambda: snapshot(backend, "s3", volume)).handle == "s3"
    assert shows(cluster, backend, *cuts) == [b"first"] * 3
    assert any("parent" not in info(cluster, backend, cut) for cut in cuts)
    backend.close()


def test_an_image_below_too_many_others_is_not_copied_before_it_is_flattened(
    cluster: Cluster, config: Config, setting: Setting
) -> None:
    backend = RbdBackend(msgspec.structs.replace(config, flatten_depth=2, max_depth=2), setting)
    volume = filled(cluster, backend, "v")
    restored = copy(backend, "r", snapshot(backend, "s", volume))

    third = retried(lambda: copy(backend, "c", restored))

    assert shows(cluster, backend, third) == [b"first"]
    assert "parent" not in info(cluster, backend, restored)
    backend.close()


@pytest.mark.parametrize(
    ("source", "wanted", "layout"),
    [
        ({}, {"object_size": MIB}, (MIB, None, None)),
        ({}, {"object_size": 8 * MIB}, (8 * MIB, None, None)),
        ({"stripe_unit": 2 * MIB, "stripe_count": 2}, {"object_size": MIB}, (MIB, None, None)),
        ({"object_size": MIB}, {"stripe_unit": 2 * MIB, "stripe_count": 2}, (4 * MIB, 2 * MIB, 2)),
        ({"object_size": MIB}, {"stripe_unit": 65536, "stripe_count": 2}, (MIB, 65536, 2)),
        ({"object_size": MIB, "stripe_unit": 65536, "stripe_count": 4}, {}, (MIB, 65536, 4)),
    ],
    ids=["smaller", "larger", "smaller than the stripes", "larger stripes", "stripes", "as the source"],
)
def test_a_copy_is_laid_out_as_its_class_says_whatever_its_source_has(
    cluster: Cluster,
    backend: RbdBackend,
    source: dict[str, int],
    wanted: dict[str, int],
    layout: tuple[int, int | None, int | None],
) -> None:
    volume = create(backend, "v", **source)
    write(cluster, backend, volume, b"first" * MIB, AT)  # over the borders of objects and stripes
    clone, restored = copy(backend, "c", volume, **wanted), copy(backend, "r", snapshot(backend, "s", volume), **wanted)
    for one in (clone, restored):
        write(cluster, backend, one, b"other", AT + MIB)

        told = info(cluster, backend, one)
        assert (told["object_size"], told.get("stripe_unit"), told.get("stripe_count")) == layout
        assert read(cluster, backend, one, 2 * MIB, AT) == changed(b"first" * MIB, MIB, b"other")[: 2 * MIB]
    cluster.rbd("flatten", "--no-progress", spec(backend, clone))
    assert read(cluster, backend, clone, 5 * MIB, AT) == changed(b"first" * MIB, MIB, b"other")


def changed(data: bytes, at: int, by: bytes) -> bytes:
    return data[:at] + by + data[at + len(by) :]
