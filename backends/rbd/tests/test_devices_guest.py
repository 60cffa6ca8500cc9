"""Devices of images: present while open, proven to be the right ones, for one node at a time, by both mounters."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from csi_multi_rbd import watchers
from csi_multi_rbd.mapping import ImageMapper

from csi_multi.contract import Blank, FailedPrecondition, InUse, NotFound
from csi_multi.host import sysfs

from .maps import BOTH, MIB, SIZE, Node, by, command, held, rbd_nbd, read, write

if TYPE_CHECKING:
    from csi_multi_rbd.config import Config

    from csi_multi.contract.backend import Setting

    from .ceph_commands import Commands

pytestmark = [
    pytest.mark.krbd,
    pytest.mark.skipif(not Path("/sys/bus/rbd").exists(), reason="this kernel maps no images"),
]


@pytest.fixture
def node(cluster: Commands, config: Config, setting: Setting) -> Iterator[Node]:
    node = Node(cluster, config, setting)
    yield node
    node.clean()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchers, "MAX_WAIT", 1.0)


@by(*BOTH)
def test_a_device_is_there_from_open_to_close_and_the_next_process_finds_it(node: Node, mounter: str) -> None:
    image = node.image("v")
    assert node.find(image) is None
    device = node.open(image, mounter)

    sysfs.verify(device)
    assert sysfs.size_of(device.number) == SIZE
    assert node.find(image) == device
    assert node.open(image, mounter) == device
    assert len(node.mappings(image)) == 1
    assert len(node.watchers(image)) == 1
    node.close(image)
    node.close(image)
    assert node.find(image) is None
    assert node.mappings(image) == []
    assert node.watchers(image) == []
    assert rbd_nbd() == {}


@by("rbd-nbd")
def test_what_is_written_outlives_the_device(node: Node, mounter: str) -> None:
    image = node.image("v")
    write(node.open(image, mounter).path, b"x" * MIB)
    node.close(image)

    assert read(node.open(image, mounter).path, 2 * MIB) == b"x" * MIB + bytes(MIB)


@by("rbd")
def test_images_of_one_name_in_two_places_are_told_apart(node: Node, other_cluster: Commands, mounter: str) -> None:
    """Two clusters, or two instances with a namespace each, on one node."""
    there, default = node.there(other_cluster), node.there(node.cluster)
    nodes = [node, there, default]
    try:
        images = [one.image("v") for one in nodes]
        devices = [one.open(images[0], mounter) for one in nodes]

        assert len({device.path for device in devices}) == 3
        assert len({tuple(sorted(device.proof.items())) for device in devices}) == 3
        assert [one.find("v") for one in nodes] == devices
        for one in nodes:
            one.close("v")
            assert one.find("v") is None
    finally:
        node.clean()
        for one in (there, default):
            one.cluster.rbd("rm", "--no-progress", f"{one.cluster.pool}/v")


def test_what_was_found_out_about_blankness_is_found_again_as_long_as_the_device_is_open(node: Node) -> None:
    image = node.image("v")
    assert node.open(image, blank=Blank.INTERRUPTED).blank is Blank.INTERRUPTED
    assert getattr(node.find(image), "blank", None) is Blank.INTERRUPTED
    node.devices.set_blank(image, Blank.NEVER)
    assert getattr(node.find(image), "blank", None) is Blank.NEVER
    node.close(image)
    node.by_hand("map", "-o", "noudev", node.rbd.spec(image))
    assert getattr(node.find(image), "blank", None) is Blank.ZEROED


@by("rbd")
def test_a_device_opened_read_only_refuses_writes_until_it_is_opened_for_them(node: Node, mounter: str) -> None:
    """And keeps others from deleting the image."""
    image = node.image("v")
    device = node.open(image, mounter, read_only=True)
    assert device.read_only
    assert node.find(image) == device
    with device.path.open("rb") as disk:
        assert disk.read(512) == bytes(512)
    with pytest.raises(OSError, match=r"ermitted|ead-only"):
        write(device.path, b"x" * 4096)
    assert len(node.watchers(image)) == 1
    with held(device.path), pytest.raises(InUse, match="read-only"):
        node.open(image, mounter)

    device = node.open(image, mounter)
    assert not device.read_only
    write(device.path, b"x" * 4096)
    with held(device.path), pytest.raises(InUse, match="read-write"):
        node.open(image, mounter, read_only=True)


@by(*BOTH)
def test_a_device_takes_the_new_size_of_its_image_while_it_is_used(node: Node, mounter: str) -> None:
    image = node.image("v")
    device = node.open(image, mounter)
    with held(device.path):
        node.resize(image, SIZE + 32 * MIB)
        node.devices.refresh(image)

        assert sysfs.size_of(device.number) == SIZE + 32 * MIB
    write(device.path, b"x" * 4096, SIZE + 32 * MIB - 4096)


def test_a_volume_that_is_not_open_cannot_be_refreshed(node: Node) -> None:
    with pytest.raises(NotFound):
        node.devices.refresh(node.image("v"))


@by("rbd")
def test_an_open_image_can_be_cut_and_its_clones_flattened(node: Node, mounter: str) -> None:
    """Which the kernel's exclusive mapping would refuse."""
    image = node.image("v")
    device = node.open(image, mounter)
    write(device.path, b"x" * MIB)
    node.cluster.rbd("snap", "create", "--no-progress", f"{node.rbd.spec(image)}@s")
    node.cluster.rbd("clone", "--rbd-default-clone-format", "2", f"{node.rbd.spec(image)}@s", node.rbd.spec("copy"))
    copy = node.open("copy", mounter)
    with held(copy.path), held(device.path):
        node.cluster.rbd("flatten", "--no-progress", node.rbd.spec("copy"))
        assert read(copy.path, 4096) == b"x" * 4096
        node.cluster.rbd("snap", "rm", "--no-progress", f"{node.rbd.spec(image)}@s")


@by("rbd-nbd")
def test_an_image_in_use_on_another_node_is_refused_and_its_holder_named(
    node: Node, mounter: str, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = node.image("v")
    waits = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        time.sleep(seconds)

    monkeypatch.setattr(watchers, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
    with node.elsewhere(image) as address:
        with pytest.raises(FailedPrecondition, match=address):
            node.open(image, mounter)
        assert sum(waits) <= watchers.MAX_WAIT + watchers.POLL_SECONDS
        assert node.mappings(image) == []
        node.open(image, mounter, exclusive=False)
        assert len(node.mappings(image)) == 1
    node.open(image, mounter)


def test_of_two_nodes_that_open_an_image_at_the_same_moment_one_at_most_has_it(
    node: Node, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have looked, and seen nobody."""
    image = node.image("v")
    theirs = []
    real = ImageMapper.map

    def overtaken(self: ImageMapper, *words: object, **options: object) -> object:
        theirs.append(node.elsewhere(image))
        theirs[0].__enter__()
        return real(self, *words, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(ImageMapper, "map", overtaken)
    with pytest.raises(FailedPrecondition, match="in use elsewhere"):
        node.open(image)
    assert node.mappings(image) == []
    theirs[0].__exit__(None, None, None)


@by("rbd-nbd")
def test_a_device_in_use_stays(node: Node, mounter: str, tmp_path: Path) -> None:
    image = node.image("v")
    device = node.open(image, mounter)
    with held(device.path), pytest.raises(InUse, match="unpublish"):
        node.close(image)
    target = tmp_path / "raw"
    target.touch()
    command("mount", "--bind", str(device.path), str(target))
    with pytest.raises(InUse, match="unpublish"):
        node.close(image)
    command("umount", str(target))
    loop = command("losetup", "--find", "--show", "--read-only", str(device.path))
    with pytest.raises(InUse):
        node.close(image)
    command("losetup", "--detach", loop)

    assert node.find(image) == device
    write(device.path, b"x" * 4096)
    node.close(image)


def test_a_device_that_somebody_has_merely_open_stays(node: Node) -> None:
    image = node.image("v")
    device = node.open(image)
    with held(device.path, os.O_RDONLY), pytest.raises(InUse):
        node.close(image)
    assert node.find(image) == device
    node.close(image)


def test_of_several_mappings_the_one_in_use_is_found_and_all_are_closed(node: Node) -> None:
    """Left by somebody who died between two, or mapped by hand."""
    image = node.image("v")
    spec = node.rbd.spec(image)
    nodes = [Path(node.by_hand("map", "-o", "noudev", spec)) for _ in range(3)]
    with held(nodes[1]):
        found = node.find(image)
        assert found is not None
        assert found.path == nodes[1]
        assert node.open(image).path == nodes[1]
        assert node.mappings(image) == [nodes[1].name]
        node.by_hand("map", "-o", "noudev", spec)
        with pytest.raises(InUse):
            node.close(image)
    node.close(image)
    assert node.mappings(image) == []


@by("rbd")
def test_who_died_after_the_image_was_mapped_finds_it_mapped(
    node: Node, mounter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = node.image("v")
    with monkeypatch.context() as patch:
        patch.setattr(ImageMapper, "_find_mapped", died)
        with pytest.raises(Death):
            node.open(image, mounter)
    mapped = node.mappings(image)
    assert len(mapped) == 1

    assert node.open(image, mounter).path.name == mapped[0]
    assert node.mappings(image) == mapped
    node.close(image)
    with monkeypatch.context() as patch:
        patch.setattr(ImageMapper, "_find_mapped", died)
        with pytest.raises(Death):
            node.open(image, mounter)
    node.close(image)
    assert node.mappings(image) == []


class Death(BaseException):
    """The process ends here."""


def died(*_: object) -> None:
    raise Death


def test_options_reach_the_kernel(node: Node) -> None:
    image = node.image("v")
    device = node.open(image, options="krbd:queue_depth=32,noshare;nbd:io-timeout=9")
    told = Path(f"/sys/block/{device.path.name}/device/config_info").read_text()
    assert "queue_depth=32" in told
    assert "noshare" in told


def test_the_kernel_is_told_where_the_node_is_and_reads_from_the_nearest_copy(node: Node) -> None:
    device = node.at("zone:a|rack:b").open(node.image("v"))

    told = Path(f"/sys/block/{device.path.name}/device/config_info").read_text()
    assert "read_from_replica=localize" in told
    assert "crush_location=zone:a|rack:b" in told


def test_options_reach_the_process(node: Node) -> None:
    image = node.image("v")
    node.open(image, "rbd-nbd", options="krbd:queue_depth=32;nbd:reattach-timeout=77")
    (line,) = rbd_nbd().values()
    assert "--reattach-timeout=77" in line
    assert "reattach-timeout=300" not in line


def test_features_that_the_kernel_does_not_map_are_named(node: Node) -> None:
    image = node.image("v", features="layering,exclusive-lock,journaling")
    with pytest.raises(FailedPrecondition, match=r"with journaling; use 'mounter: rbd-nbd'"):
        node.open(image)
    assert node.mappings(image) == []
    sysfs.verify(node.open(image, "rbd-nbd"))


def test_an_image_without_the_exclusive_lock_has_one_node_all_the_same(node: Node, impatient: None) -> None:
    image = node.image("v", features="layering")
    with node.elsewhere(image), pytest.raises(FailedPrecondition, match="in use elsewhere"):
        node.open(image, "rbd-nbd")
    sysfs.verify(node.open(image, "rbd-nbd"))


@by("rbd-nbd")
def test_the_key_that_came_with_a_request_is_enough(node: Node, mounter: str) -> None:
    """The instance has no keyring: closing and finding need none."""
    image = node.image("v")
    keyless = node.keyless()
    secrets = {"userID": node.config.user, "userKey": node.cluster.key}
    with keyless.rbd.as_user(secrets) as rbd:
        device = keyless.open(image, mounter, rbd=rbd)
    write(device.path, b"x" * 4096)
    for line in rbd_nbd().values():
        assert node.cluster.key not in line
    assert keyless.find(image) == device
    assert keyless.devices.health(image) == ()
    keyless.devices.refresh(image)
    keyless.close(image)
    assert node.mappings(image) == []


def test_a_process_leaves_no_log_and_no_socket(node: Node) -> None:
    places = (Path("/var/log/ceph"), Path("/run/ceph"))
    before = [sorted(place.glob("*client*")) for place in places]
    image = node.image("v")
    node.open(image, "rbd-nbd")
    assert [sorted(place.glob("*client*")) for place in places] == before
    (pid,) = rbd_nbd()
    os.kill(pid, signal.SIGKILL)
    assert [sorted(place.glob("*client*")) for place in places] == before
