"""Clones that were killed when only one of the two images named the other: nothing of them stays in the way."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from csi_multi_rbd import labels
from csi_multi_rbd.backend import RbdBackend
from csi_multi_rbd.config import Config
from csi_multi_rbd.labels import Label

from csi_multi.contract import Busy, FailedPrecondition, NotFound, Setting, Snapshot, Unavailable, Volume

from .ceph import Cluster
from .commands import Died, dies, watched
from .half_clones import Written, cut_by_hand, image_id, killed_between
from .volumes import (
    MIB,
    copy,
    create,
    delete,
    everything,
    held,
    image,
    info,
    rados,
    read,
    snapshot,
    stamp,
    write,
)

PAGE = Path(__file__).parents[3] / "docs/rbd.md"
AT = 9 * MIB  # in the third object
DATA = b"first"
What = Literal["snapshot", "clone", "restore"]
Then = Literal["nothing", "a restart", "its cut is removed"]


def prepared(cluster: Cluster, backend: RbdBackend, what: What) -> Volume | Snapshot:
    """Return what is to be copied."""
    volume = create(backend, "v")
    write(cluster, backend, volume, DATA, AT)
    return snapshot(backend, "of-v", volume) if what == "restore" else volume


def making(backend: RbdBackend, what: What, source: Volume | Snapshot) -> Volume | Snapshot:
    if what == "snapshot":
        assert isinstance(source, Volume)
        return snapshot(backend, "made", source)
    return copy(backend, "made", source)


def deleting(backend: RbdBackend, what: What) -> None:
    (backend.delete_snapshot if what == "snapshot" else backend.delete_volume)("made", {})


def goes_on(
    cluster: Cluster, backend: RbdBackend, config: Config, setting: Setting, source: Volume | Snapshot, then: Then
) -> None:
    if then == "a restart":
        other = RbdBackend(config, setting)
        other.resume()
        assert other.wait_until_idle(90)
        other.close()
    if then == "its cut is removed":
        cut_by_hand(cluster, backend, source)


KINDS = pytest.mark.parametrize("what", ["snapshot", "clone", "restore"])
THEN = pytest.mark.parametrize("then", ["nothing", "a restart", "its cut is removed"])
SIDES = pytest.mark.parametrize("written", ["in the clone", "in the parent"])


@KINDS
@SIDES
@THEN
def test_a_name_whose_clone_was_killed_between_two_images_is_made_by_the_retry(
    cluster: Cluster, backend: RbdBackend, config: Config, setting: Setting, tmp_path: Path,
    what: What, written: Written, then: Then,
) -> None:  # fmt: skip
    source = prepared(cluster, backend, what)
    killed_between(cluster, backend, source, lambda: making(backend, what, source), tmp_path, written)
    goes_on(cluster, backend, config, setting, source, then)

    made = making(backend, what, source)

    assert read(cluster, backend, made, len(DATA), AT) == DATA
    delete(backend, made, source)
    left = everything(cluster, backend)
    assert [one for one in left if image(backend, made) in one] == []


@KINDS
@THEN
def test_a_name_whose_clone_was_killed_between_two_images_can_be_deleted(
    cluster: Cluster, backend: RbdBackend, config: Config, setting: Setting, tmp_path: Path, what: What, then: Then
) -> None:
    source = prepared(cluster, backend, what)
    name = killed_between(cluster, backend, source, lambda: making(backend, what, source), tmp_path)
    goes_on(cluster, backend, config, setting, source, then)

    if name in cluster.rbd("ls", f"{config.pool}/{config.namespace}").split():
        deleting(backend, what)
    with pytest.raises(NotFound):
        deleting(backend, what)

    delete(backend, source)
    assert [one for one in everything(cluster, backend) if name in one or "csi-tmp" in one] == []


@KINDS
def test_what_was_half_cloned_goes_when_its_source_is_gone(
    cluster: Cluster, backend: RbdBackend, tmp_path: Path, what: What
) -> None:
    source = prepared(cluster, backend, what)
    name = killed_between(cluster, backend, source, lambda: making(backend, what, source), tmp_path)
    delete(backend, source)

    with pytest.raises(NotFound):
        making(backend, what, source)
    assert [one for one in everything(cluster, backend) if name in one] == []


def test_deleting_a_volume_settles_its_half_made_copy_first(
    cluster: Cluster, backend: RbdBackend, tmp_path: Path
) -> None:
    source = prepared(cluster, backend, "snapshot")
    killed_between(cluster, backend, source, lambda: making(backend, "snapshot", source), tmp_path)

    delete(backend, source)

    assert everything(cluster, backend) == []


def test_the_cut_of_a_clone_that_is_still_running_stays(
    cluster: Cluster, backend: RbdBackend, config: Config, setting: Setting, tmp_path: Path
) -> None:
    """The watch of a killed command ends after 30 s; until then it may be running elsewhere."""
    source = prepared(cluster, backend, "clone")
    killed_between(cluster, backend, source, lambda: making(backend, "clone", source), tmp_path)
    other = RbdBackend(config, setting)
    with held(cluster, backend, "made"):
        other.resume()
        assert "parent" in info(cluster, backend, "made")
        with pytest.raises((Busy, Unavailable), match="has it open"):
            making(backend, "clone", source)
        assert "parent" in info(cluster, backend, "made")

    other.check()
    assert [one for one in everything(cluster, other) if "made" in one] == []
    other.close()


def test_a_start_settles_every_copy_but_the_one_that_it_cannot(
    cluster: Cluster, backend: RbdBackend, config: Config, setting: Setting
) -> None:
    source = prepared(cluster, backend, "snapshot")
    assert isinstance(source, Volume)
    where = "/".join((config.pool, config.namespace, labels.name_prefix("snapshot", setting.driver, setting.cluster)))
    for name in ("a", "b", "c"):
        with watched(dies("rbd image-meta set")), pytest.raises(Died):
            snapshot(backend, name, source)
    cluster.rbd("image-meta", "set", f"{where}b", labels.KEY, "{")

    other = RbdBackend(config, setting)
    other.resume()
    other.check()

    left = [one for one in everything(cluster, other) if "(trash)" not in one]
    assert left == sorted(
        [
            f"image {image(backend, source)}",
            f"image {where.split('/')[-1]}b",
            f"snapshot {image(backend, source)}@csi-tmp-snap-b (user)",
        ]
    )
    other.close()


def broken(cluster: Cluster, backend: RbdBackend, tmp_path: Path) -> tuple[Volume, str]:
    """Return a volume, and a half-made clone of it whose parent's snapshot does not exist."""
    source = prepared(cluster, backend, "clone")
    assert isinstance(source, Volume)
    name = killed_between(cluster, backend, source, lambda: copy(backend, "made", source), tmp_path)
    cut_by_hand(cluster, backend, source)
    return source, name


def labelled(backend: RbdBackend, name: str, **more: str) -> bytes:
    return labels.encode(Label(image=name, stamp=stamp(backend, "made"), **more)).encode()  # type: ignore[arg-type]


def set_label(cluster: Cluster, backend: RbdBackend, name: str, label: bytes) -> None:
    header = f"rbd_header.{image_id(cluster, backend, name)}"
    rados(cluster, backend, "setomapval", header, f"metadata_{labels.KEY}", given=label)


def test_a_complete_volume_whose_parent_is_lost_is_never_made_anew(
    cluster: Cluster, backend: RbdBackend, tmp_path: Path
) -> None:
    """Who flattens takes the clone from the parent first, and the parent from the clone last."""
    source, name = broken(cluster, backend, tmp_path)
    set_label(cluster, backend, name, labelled(backend, name))
    before = image_id(cluster, backend, name)

    with pytest.raises(Exception, match="already exists"):
        copy(backend, "made", source)
    with pytest.raises(Unavailable, match="see Recovery in"):
        backend.get_volume("made")

    assert image_id(cluster, backend, name) == before
    backend.delete_volume("made", {})
    assert everything(cluster, backend) == [f"image {image(backend, source)}"]


def test_a_volume_whose_parent_is_lost_works_again_after_the_documented_recovery(
    cluster: Cluster, backend: RbdBackend, tmp_path: Path
) -> None:
    _, name = broken(cluster, backend, tmp_path)
    set_label(cluster, backend, name, labelled(backend, name))

    recovery = PAGE.read_text().partition("**An image lost its parent**")[2].partition("```sh\n")[2].partition("```")[0]
    where = f"{cluster.pool}/{backend.config.namespace}"
    for text, own in (
        ("k8s/prod", where),
        ("-p k8s -N prod", f"-p {cluster.pool} -N {backend.config.namespace}"),
        ("csi-vol-619815a8-pvc-1f0e", name),
    ):
        assert text in recovery
        recovery = recovery.replace(text, own)
    cluster.run("bash", "-euo", "pipefail", "-c", f"cd {tmp_path}\n{recovery}")

    assert backend.get_volume("made").handle == "made"
    assert "parent" not in info(cluster, backend, "made")


@pytest.mark.parametrize("inherits", [False, True])
def test_an_image_whose_parent_is_lost_and_that_holds_data_is_not_removed(
    cluster: Cluster, backend: RbdBackend, tmp_path: Path, inherits: bool
) -> None:
    source = prepared(cluster, backend, "clone")
    assert isinstance(source, Volume)
    name = killed_between(cluster, backend, source, lambda: copy(backend, "made", source), tmp_path)
    write(cluster, backend, "made", b"precious", 5 * MIB)
    cut_by_hand(cluster, backend, source)
    if inherits:
        set_label(cluster, backend, name, labelled(backend, image(backend, source)))

    for act in (lambda: copy(backend, "made", source), lambda: backend.delete_volume("made", {})):
        with pytest.raises((FailedPrecondition, Unavailable), match="has data"):
            act()
    assert image_id(cluster, backend, name)


def test_an_image_with_an_inherited_label_that_lost_its_parent_is_made_anew(
    cluster: Cluster, backend: RbdBackend, tmp_path: Path
) -> None:
    source, name = broken(cluster, backend, tmp_path)
    set_label(cluster, backend, name, labelled(backend, image(backend, source)))

    made = copy(backend, "made", source)
    assert read(cluster, backend, made, len(DATA), AT) == DATA


@pytest.mark.parametrize("inherits", [False, True])
def test_without_an_object_map_only_a_clone_that_nobody_can_have_got_is_removed(
    cluster: Cluster, backend: RbdBackend, tmp_path: Path, inherits: bool
) -> None:
    """Without the map nothing cheap says whether it holds data; but rbd copies the image-meta before it returns."""
    source = prepared(cluster, backend, "clone")
    assert isinstance(source, Volume)

    def making() -> Volume:
        return copy(backend, "made", source, image_features="layering")

    name = killed_between(cluster, backend, source, making, tmp_path)
    cut_by_hand(cluster, backend, source)
    if inherits:
        set_label(cluster, backend, name, labelled(backend, image(backend, source)))
        with pytest.raises((FailedPrecondition, Unavailable), match="may hold data"):
            making()
    else:
        assert read(cluster, backend, making(), len(DATA), AT) == DATA


def test_another_drivers_image_whose_parent_is_lost_is_never_touched(
    cluster: Cluster, backend: RbdBackend, tmp_path: Path
) -> None:
    source, name = broken(cluster, backend, tmp_path)
    other = labelled(backend, name).replace(backend.setting.driver.encode(), b"other.example")
    set_label(cluster, backend, name, other)

    for act in (lambda: copy(backend, "made", source), lambda: backend.delete_volume("made", {})):
        with pytest.raises((FailedPrecondition, Unavailable), match=r"other\.example"):
            act()
    assert image_id(cluster, backend, name)
