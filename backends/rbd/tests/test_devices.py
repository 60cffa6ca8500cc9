"""Devices are opened, found and closed on a simulated node and cluster."""

from __future__ import annotations

from dataclasses import replace

import pytest
from csi_multi_rbd import devices
from csi_multi_rbd.errors import ImageNotFound

from csi_multi.contract import (
    Blank,
    FailedPrecondition,
    Health,
    InUse,
    NotFound,
    Setting,
    Unavailable,
)

from .fake_node import MIB, OURS, FakeKernel, FakeRbd, Node, failing, found, once

pytestmark = pytest.mark.usefixtures("impatient")
BOTH = pytest.mark.parametrize("mounter", ["rbd", "rbd-nbd"])


@BOTH
def test_a_device_is_there_from_open_to_close(node: Node, kernel: FakeKernel, mounter: str) -> None:
    device = node.open(mounter=mounter)

    assert node.devices.find("v") == device
    assert node.open(mounter=mounter) == device
    node.devices.close("v")
    node.devices.close("v")
    assert node.devices.find("v") is None
    assert kernel.disks() == []
    assert list((kernel.dev / devices.NOTES).iterdir()) == []


def test_looking_and_closing_where_nothing_is_mapped_asks_nobody(node: Node, rbd: FakeRbd) -> None:
    assert node.devices.find("v") is None
    node.devices.close("v")
    assert node.devices.health("v") == ()
    node.devices.restart_dead()
    assert rbd.asked == []


def test_a_device_has_the_blankness_it_was_opened_with(node: Node, rbd: FakeRbd, kernel: FakeKernel) -> None:
    for blank in Blank:
        assert node.open(blank=blank).blank is blank
        assert found(node).blank is blank
    node.open(blank=Blank.INTERRUPTED)
    node.devices.set_blank("v", Blank.NEVER)
    assert found(node).blank is Blank.NEVER


def test_a_note_about_another_image_on_that_disk_says_nothing(node: Node, kernel: FakeKernel) -> None:
    device = node.open(blank=Blank.INTERRUPTED)
    (kernel.sys / "block" / device.path.name / "device" / "image_id").write_text("id2\n")
    assert found(node).blank is Blank.ZEROED


@BOTH
def test_a_device_is_as_read_only_as_asked(node: Node, kernel: FakeKernel, mounter: str) -> None:
    assert node.open(mounter=mounter, read_only=True).read_only
    assert found(node).read_only
    assert not node.open(mounter=mounter).read_only
    kernel.users.add(found(node).path)
    with pytest.raises(InUse, match="read-write"):
        node.open(mounter=mounter, read_only=True)


@BOTH
def test_a_mapping_of_an_image_that_was_replaced_goes(node: Node, rbd: FakeRbd, mounter: str) -> None:
    old = node.open(mounter=mounter)
    rbd.image("v", "id2")

    new = node.open(mounter=mounter)
    assert new.path != old.path
    assert "id2" in str(new.proof)
    assert found(node) == new


def test_a_mapping_of_an_image_that_was_replaced_stays_while_it_is_used(
    node: Node, rbd: FakeRbd, kernel: FakeKernel
) -> None:
    old = node.open()
    rbd.image("v", "id2")
    kernel.users.add(old.path)
    with pytest.raises(FailedPrecondition, match="id id1"):
        node.open()
    assert found(node) == old


@BOTH
def test_a_mapping_that_the_cluster_has_forgotten_is_made_anew(node: Node, rbd: FakeRbd, mounter: str) -> None:
    old = node.open(mounter=mounter)
    rbd.forgotten = True
    assert node.open(mounter=mounter).path != old.path


def test_a_mapping_that_the_cluster_has_forgotten_stays_while_it_is_used(
    node: Node, rbd: FakeRbd, kernel: FakeKernel
) -> None:
    old = node.open()
    rbd.forgotten = True
    kernel.users.add(old.path)
    assert node.open() == old


def test_of_several_mappings_the_one_in_use_is_found_and_the_others_go(
    node: Node, rbd: FakeRbd, kernel: FakeKernel
) -> None:
    disks = [kernel.krbd("v", "id1") for _ in range(3)]
    kernel.users.add(kernel.dev / disks[1])
    assert found(node).path.name == disks[1]
    assert node.open().path.name == disks[1]
    assert kernel.disks() == [disks[1]]


def test_all_mappings_are_closed(node: Node, kernel: FakeKernel) -> None:
    for _ in range(3):
        kernel.krbd("v", "id1")
    node.devices.close("v")
    assert kernel.disks() == []


@pytest.mark.parametrize("way", ["mounted", "raw", "loop"])
@BOTH
def test_a_device_in_use_is_not_closed(node: Node, kernel: FakeKernel, mounter: str, way: str) -> None:
    device = node.open(mounter=mounter)
    if way == "loop":
        file = kernel.sys / "block" / "loop3" / "loop" / "backing_file"
        file.parent.mkdir(parents=True)
        file.write_text(f"{device.path}\n")
    else:
        (kernel.users if way == "mounted" else kernel.raw).add(device.path)
    with pytest.raises(InUse, match="unpublish"):
        node.devices.close("v")
    assert found(node) == device


def test_a_device_that_is_opened_at_the_last_moment_is_not_taken_for_closed(node: Node, rbd: FakeRbd) -> None:
    device = node.open()
    rbd.before["unmap krbd"] = lambda: rbd.kernel.users.add(device.path)
    with pytest.raises(InUse):
        node.devices.close("v")
    assert found(node) == device


def test_a_device_of_the_kernel_grows_with_its_image(node: Node, rbd: FakeRbd, kernel: FakeKernel) -> None:
    with pytest.raises(NotFound):
        node.devices.refresh("v")
    disk = node.open().path.name
    rbd.image("v", size=128 * MIB)
    with pytest.raises(Unavailable, match="does not show"):
        node.devices.refresh("v")
    assert kernel.text(disk, "device/refresh") == "1"
    kernel.resize(disk, 128 * MIB)
    node.devices.refresh("v")


def test_without_a_keyring_nobody_is_asked(rbd: FakeRbd, setting: Setting) -> None:
    rbd.image("v")
    node = Node(rbd, setting, keyring="")
    node.open()
    rbd.asked.clear()
    node.devices.refresh("v")
    assert node.devices.health("v") == ()
    node.devices.close("v")
    assert rbd.asked == ["unmap krbd"]


def test_a_device_whose_process_died_is_served_again(node: Node, rbd: FakeRbd, kernel: FakeKernel) -> None:
    device = node.open(mounter="rbd-nbd")
    for restart in (node.devices.restart_dead, lambda: node.open(mounter="rbd-nbd")):
        for entry in list(kernel.proc.iterdir()):
            kernel.end(int(entry.name))
        assert [entry.reason for entry in node.devices.health("v")] == ["ProcessGone"]
        restart()
        assert node.devices.health("v") == ()
    assert found(node) == device


def test_a_node_that_holds_no_key_starts_no_process_and_says_so(
    rbd: FakeRbd, kernel: FakeKernel, setting: Setting, caplog: pytest.LogCaptureFixture
) -> None:
    """The chart names the controller's keyring to nodes, too."""
    rbd.image("v")
    node = Node(rbd, replace(setting, controller=False))
    node.open(mounter="rbd-nbd")
    for entry in list(kernel.proc.iterdir()):
        kernel.end(int(entry.name))
    rbd.asked.clear()
    caplog.clear()
    node.devices.restart_dead()
    assert rbd.asked == []
    assert "there is no key here" in caplog.text
    assert [entry.reason for entry in node.devices.health("v")] == ["ProcessGone"]


def test_a_node_that_holds_no_key_has_its_kernel_look_for_a_new_size(
    rbd: FakeRbd, kernel: FakeKernel, setting: Setting
) -> None:
    rbd.image("v")
    node = Node(rbd, replace(setting, controller=False))
    device = node.open()
    rbd.asked.clear()
    node.devices.refresh("v")
    assert kernel.text(device.path.name, "device/refresh") == "1"
    assert rbd.asked == []


def test_one_that_cannot_be_served_again_keeps_no_other(node: Node, rbd: FakeRbd, kernel: FakeKernel) -> None:
    rbd.image("w")
    for image in ("v", "w"):
        node.open(image, mounter="rbd-nbd")
    for pid in (1000, 1001):
        kernel.end(pid)
    rbd.before["attach"] = once(Unavailable("down"))
    node.devices.restart_dead()
    assert [len(node.devices.health(image)) for image in ("v", "w")] == [1, 0]


def test_what_is_wrong_is_said(node: Node, rbd: FakeRbd) -> None:
    device = node.open()
    assert node.devices.health("v") == ()
    rbd.forgotten = True
    (entry,) = node.devices.health("v")
    assert (entry.status, entry.reason) == (Health.INACCESSIBLE, "WatchLost")
    assert OURS in entry.message
    assert device.path.name in entry.message
    rbd.before["watchers"] = failing(Unavailable("no answer"))
    (entry,) = node.devices.health("v")
    assert (entry.status, entry.reason) == (Health.INACCESSIBLE, "ClusterUnreachable")


def test_a_device_of_an_image_that_is_gone_has_lost_its_data(node: Node, rbd: FakeRbd) -> None:
    node.open()
    rbd.before["watchers"] = failing(ImageNotFound("gone"))
    (entry,) = node.devices.health("v")
    assert (entry.status, entry.reason) == (Health.DATA_LOSS, "ImageMissing")


def test_an_image_that_was_replaced_while_it_was_mapped_is_not_taken_for_the_one_meant(
    node: Node, rbd: FakeRbd
) -> None:
    known = rbd.images["v"]
    rbd.image("v", "id2")
    with pytest.raises(Unavailable, match="does not show that device"):
        node.open_known(known, "rbd")
