"""How devices are opened, found and closed, on a node and a cluster that do as the test says."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from csi_multi_rbd import alone, apart, devices, mapping, nbd, netlink
from csi_multi_rbd.devices import Devices, Use
from csi_multi_rbd.rbd import Rbd
from csi_multi_rbd.rows import Image
from csi_multi_rbd.statuses import Locked, Missing, Refused

from csi_multi.contract import (
    Blank,
    Device,
    FailedPrecondition,
    Health,
    InUse,
    InvalidArgument,
    NotFound,
    OpenRequest,
    Setting,
    Timeout,
    Unavailable,
)

from .fake_node import MIB, OURS, FakeKernel, FakeRbd, config

BOTH = pytest.mark.parametrize("mounter", ["rbd", "rbd-nbd"])


@pytest.fixture
def kernel(tmp_path: Path) -> FakeKernel:
    return FakeKernel(tmp_path)


@pytest.fixture
def rbd(kernel: FakeKernel) -> FakeRbd:
    return FakeRbd(kernel)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nbd, "sees_processes", lambda kernel: kernel.whole)
    for module in (alone, devices, mapping):
        monkeypatch.setattr(module, "STEP", 0.001)
    monkeypatch.setattr(alone, "LINGER", 0.01)
    monkeypatch.setattr(devices, "RELEASE", 0.01)
    monkeypatch.setattr(devices, "GROW", 0.01)
    monkeypatch.setattr(mapping, "APPEAR", 0.01)
    monkeypatch.setattr(mapping, "VANISH", 0.01)


class Node:
    """A driver that is started anew for each call."""

    def __init__(self, rbd: FakeRbd, setting: Setting, **values: object) -> None:
        self.rbd = rbd
        self._config = config(**values)
        self._setting = setting

    @property
    def devices(self) -> Devices:
        return Devices(self._config, self._setting, self._as_rbd, self.rbd.kernel)

    def open(self, image: str = "v", *, read_only: bool = False, blank: Blank = Blank.ZEROED, **use: Any) -> Device:
        request = OpenRequest(handle=image, read_only=read_only)
        wanted = Use(**{"mounter": "rbd", **use})
        return self.devices.open(self._as_rbd, self.rbd.images[image], wanted, request, blank)

    def open_known(self, image: Image, mounter: str) -> Device:
        """Open an image that was looked up a while ago."""
        request = OpenRequest(handle=image.name)
        return self.devices.open(self._as_rbd, image, Use(mounter=mounter), request, Blank.ZEROED)

    @property
    def _as_rbd(self) -> Rbd:
        return self.rbd  # type: ignore[return-value]


@pytest.fixture
def node(rbd: FakeRbd, setting: Setting) -> Node:
    rbd.image("v")
    return Node(rbd, setting)


@BOTH
def test_a_device_is_there_from_open_to_close(node: Node, kernel: FakeKernel, mounter: str) -> None:
    device = node.open(mounter=mounter)

    assert node.devices.find("v") == device
    assert node.open(mounter=mounter) == device
    node.devices.close("v")
    node.devices.close("v")
    assert node.devices.find("v") is None
    assert kernel.disks() == []
    assert list((kernel.dev / devices.MARKS).iterdir()) == []


def test_looking_and_closing_where_nothing_is_mapped_asks_nobody(node: Node, rbd: FakeRbd) -> None:
    assert node.devices.find("v") is None
    node.devices.close("v")
    assert node.devices.health("v") == ()
    node.devices.heal()
    assert rbd.asked == []


def test_an_opening_looks_maps_and_looks_again(node: Node, rbd: FakeRbd) -> None:
    """And one of what is mapped already only looks."""
    node.open()
    assert rbd.asked == ["watchers", "map krbd", "watchers"]
    rbd.asked.clear()
    node.open()
    assert rbd.asked == ["watchers"]


def test_what_may_be_used_by_many_is_mapped_without_a_look(node: Node, rbd: FakeRbd) -> None:
    rbd.strangers = ["192.0.2.7:0/7"]
    node.open(exclusive=False)
    assert rbd.asked == ["map krbd"]


@pytest.mark.parametrize(
    ("features", "exclusive", "words"),
    [
        (("layering", "exclusive-lock"), True, "map nbd exclusive"),
        (("layering", "exclusive-lock"), False, "map nbd"),
        (("layering",), True, "map nbd"),
    ],
)
def test_a_process_holds_the_lock_where_there_is_one_and_one_node_is_meant(
    node: Node, rbd: FakeRbd, features: tuple[str, ...], exclusive: bool, words: str
) -> None:
    rbd.image("v", "id1", *features)
    node.open(mounter="rbd-nbd", exclusive=exclusive)
    assert words in rbd.asked


@BOTH
def test_an_image_in_use_elsewhere_is_refused_before_it_is_mapped(node: Node, rbd: FakeRbd, mounter: str) -> None:
    rbd.strangers = ["192.0.2.7:0/7"]
    with pytest.raises(FailedPrecondition, match=r"192\.0\.2\.7:0/7"):
        node.open(mounter=mounter)
    assert set(rbd.asked) == {"watchers"}


@BOTH
def test_a_command_of_the_controller_that_watches_for_a_moment_is_waited_for(
    node: Node, rbd: FakeRbd, mounter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alone, "LINGER", 5.0)
    rbd.strangers = ["192.0.2.7:0/7", "192.0.2.7:0/8"]
    rbd.before["watchers"] = lambda: rbd.strangers.__delitem__(slice(1))  # one leaves at every look
    node.open(mounter=mounter)


@BOTH
def test_who_comes_while_it_is_mapped_makes_the_mapping_go(
    node: Node, rbd: FakeRbd, kernel: FakeKernel, mounter: str
) -> None:
    for verb in ("map krbd", "map nbd exclusive"):
        rbd.before[verb] = lambda: rbd.strangers.append("192.0.2.7:0/7")
    with pytest.raises(FailedPrecondition, match="in use elsewhere"):
        node.open(mounter=mounter)
    assert kernel.disks() == []


@BOTH
def test_who_died_before_the_second_look_left_a_mapping_that_goes_when_a_stranger_is_there(
    node: Node, rbd: FakeRbd, kernel: FakeKernel, mounter: str
) -> None:
    node.open(mounter=mounter)
    rbd.strangers = ["192.0.2.7:0/7"]
    with pytest.raises(FailedPrecondition, match="in use elsewhere"):
        node.open(mounter=mounter)
    assert kernel.disks() == []


def test_a_mapping_that_is_in_use_here_stays_when_a_stranger_comes(
    node: Node, rbd: FakeRbd, kernel: FakeKernel
) -> None:
    device = node.open()
    kernel.users.add(device.path)
    rbd.strangers = ["192.0.2.7:0/7"]
    with pytest.raises(FailedPrecondition, match="in use elsewhere"):
        node.open()
    assert node.devices.find("v") == device


def test_who_holds_the_lock_for_good_is_named(node: Node, rbd: FakeRbd) -> None:
    rbd.before["map krbd"] = failing(Locked("map: (30)"))
    rbd.strangers = ["192.0.2.7:0/7"]
    with pytest.raises(FailedPrecondition, match=r"by 192\.0\.2\.7"):
        node.open(exclusive=False)


def test_a_process_that_cannot_have_the_lock_says_who_has_it(node: Node, rbd: FakeRbd) -> None:
    rbd.before["map nbd exclusive"] = failing(Refused("rbd-nbd: failed to acquire exclusive lock: (30) Read-only"))
    with pytest.raises(FailedPrecondition, match="a client that has just left"):
        node.open(mounter="rbd-nbd")


def test_features_that_the_kernel_lacks_are_named(node: Node, rbd: FakeRbd, kernel: FakeKernel) -> None:
    rbd.image("v", "id1", "layering", "exclusive-lock", "journaling")
    error = Refused("map: (6)")
    error.status = 6
    rbd.before["map krbd"] = failing(error)
    (kernel.sys / "bus" / "rbd").mkdir(parents=True)
    (kernel.sys / "bus" / "rbd" / "supported_features").write_text("0x1bf\n")
    with pytest.raises(FailedPrecondition, match="with journaling; use 'mounter: rbd-nbd'"):
        node.open()


@pytest.mark.parametrize("error", [Refused("what?"), Timeout("late"), Unavailable("down")])
def test_another_failure_is_what_it_is(node: Node, rbd: FakeRbd, error: Exception) -> None:
    rbd.before["map krbd"] = failing(error)
    with pytest.raises(type(error), match=str(error).replace("?", r"\?")):
        node.open()


def test_options_of_a_class_go_to_its_mounter(node: Node, rbd: FakeRbd) -> None:
    node.open(map_options="krbd:a;nbd:b", unmap_options="krbd:u")
    assert rbd.options == ("noudev", "noshare", "a")
    node.devices.close("v")
    assert rbd.options == ("noudev", "u")
    node.open(mounter="rbd-nbd", map_options="krbd:a;nbd:io-timeout=3")
    assert rbd.options == ("try-netlink", "reattach-timeout=300", "io-timeout=3")
    with pytest.raises(InvalidArgument):
        node.open(map_options="krbd:exclusive")


def test_a_device_has_the_blankness_it_was_opened_with(node: Node, rbd: FakeRbd, kernel: FakeKernel) -> None:
    for blank in Blank:
        assert node.open(blank=blank).blank is blank
        assert found(node).blank is blank
    node.open(blank=Blank.INTERRUPTED)
    node.devices.note("v", Blank.NEVER)
    assert found(node).blank is Blank.NEVER


def test_a_note_about_another_image_on_that_disk_says_nothing(node: Node, kernel: FakeKernel) -> None:
    device = node.open(blank=Blank.INTERRUPTED)
    (kernel.sys / "block" / device.path.name / "device" / "image_id").write_text("id2\n")
    assert found(node).blank is Blank.ZEROED


def found(node: Node) -> Device:
    device = node.devices.find("v")
    assert device is not None
    return device


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


def test_a_command_that_was_killed_has_closed_the_device_when_it_is_gone(
    node: Node, rbd: FakeRbd, kernel: FakeKernel
) -> None:
    """As it is where the cluster does not answer."""
    disk = node.open().path.name

    def killed() -> None:
        kernel.unplug(disk)
        raise Timeout("rbd did not finish")

    rbd.before["unmap krbd"] = killed
    node.devices.close("v")
    assert node.devices.find("v") is None


def test_a_device_that_is_opened_at_the_last_moment_is_not_taken_for_closed(node: Node, rbd: FakeRbd) -> None:
    device = node.open()
    rbd.before["unmap krbd"] = lambda: rbd.kernel.users.add(device.path)
    with pytest.raises(InUse):
        node.devices.close("v")
    assert found(node) == device


def test_a_device_that_does_not_go_is_not_closed(node: Node, rbd: FakeRbd) -> None:
    node.open()
    rbd.before["unmap krbd"] = failing(Unavailable("what?"))
    with pytest.raises(Unavailable, match=r"what\?"):
        node.devices.close("v")
    rbd.unmap = lambda *_, **__: None  # type: ignore[method-assign]
    with pytest.raises(Unavailable, match="still there"):
        node.devices.close("v")


@BOTH
def test_a_driver_with_a_dev_of_its_own_is_told_so_and_nothing_is_left(
    node: Node, rbd: FakeRbd, kernel: FakeKernel, mounter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel, "number", lambda _: "")
    rbd.unmap = lambda *_, **__: kernel.unplug(kernel.disks()[0])  # type: ignore[method-assign]
    with pytest.raises(FailedPrecondition, match="mount the node's /dev"):
        node.open(mounter=mounter)
    assert kernel.disks() == []


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


def test_a_device_of_a_process_is_told_its_size(
    node: Node, rbd: FakeRbd, kernel: FakeKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = node.open(mounter="rbd-nbd")

    def resize(number: int, cookie: str, size: int) -> None:
        assert cookie == device.proof["backend"]
        kernel.resize(f"nbd{number}", size)

    monkeypatch.setattr(netlink, "resize", resize)
    rbd.image("v", size=128 * MIB)
    node.devices.refresh("v")
    assert kernel.size(device.path.name) == 128 * MIB


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
    for heal in (node.devices.heal, lambda: node.open(mounter="rbd-nbd")):
        for entry in list(kernel.proc.iterdir()):
            kernel.end(int(entry.name))
        assert [entry.reason for entry in node.devices.health("v")] == ["ProcessGone"]
        heal()
        assert node.devices.health("v") == ()
    assert found(node) == device


def test_every_process_that_is_started_is_set_apart_from_the_drivers_container(
    node: Node, kernel: FakeKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved: list[list[int]] = []
    monkeypatch.setattr(apart, "move", lambda _, pids: moved.append(pids))
    node.open(mounter="rbd-nbd")
    (first,) = (int(entry.name) for entry in kernel.proc.iterdir())
    kernel.end(first)
    node.devices.heal()
    (second,) = (int(entry.name) for entry in kernel.proc.iterdir())
    assert moved == [[first], [second]]
    assert first != second


def test_a_process_that_cannot_be_set_apart_serves_all_the_same_and_that_is_told(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def move(kernel: FakeKernel, pids: list[int]) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(apart, "move", move)
    device = node.open(mounter="rbd-nbd")
    assert found(node) == device
    (told,) = caplog.messages
    assert f"/dev/{device.path.name} ends with the driver's container" in told


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
    node.devices.heal()
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


def test_a_device_is_never_served_with_another_image_of_its_name(node: Node, rbd: FakeRbd, kernel: FakeKernel) -> None:
    node.open(mounter="rbd-nbd")
    rbd.image("v", "id2")
    kernel.end(1000)
    node.devices.heal()
    assert "attach" not in rbd.asked


def test_one_that_cannot_be_served_again_keeps_no_other(node: Node, rbd: FakeRbd, kernel: FakeKernel) -> None:
    rbd.image("w")
    for image in ("v", "w"):
        node.open(image, mounter="rbd-nbd")
    for pid in (1000, 1001):
        kernel.end(pid)
    rbd.before["attach"] = once(Unavailable("down"))
    node.devices.heal()
    assert [len(node.devices.health(image)) for image in ("v", "w")] == [1, 0]


def test_processes_that_are_out_of_sight_are_not_taken_for_dead(node: Node, rbd: FakeRbd, kernel: FakeKernel) -> None:
    """A second one on a device would spoil it."""
    node.open(mounter="rbd-nbd")
    kernel.end(1000)
    kernel.whole = False
    node.devices.heal()
    assert "attach" not in rbd.asked
    assert node.devices.health("v") == ()
    assert found(node) == node.open(mounter="rbd-nbd")
    rbd.image("w")
    with pytest.raises(FailedPrecondition, match="hostPID"):
        node.open("w", mounter="rbd-nbd")


def test_a_kernel_that_forgets_cookies_is_told_and_nothing_is_left(
    node: Node, rbd: FakeRbd, kernel: FakeKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = kernel.nbd

    def forgetful(cookie: str, pid: int = 0) -> str:
        disk = real(cookie, pid)
        (kernel.sys / "block" / disk / "backend").unlink()
        return disk

    monkeypatch.setattr(kernel, "nbd", forgetful)
    with pytest.raises(FailedPrecondition, match=r"Linux 5\.14"):
        node.open(mounter="rbd-nbd")
    assert kernel.disks() == []


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
    rbd.before["watchers"] = failing(Missing("gone"))
    (entry,) = node.devices.health("v")
    assert (entry.status, entry.reason) == (Health.DATA_LOSS, "ImageMissing")


def test_an_image_that_was_replaced_while_it_was_mapped_is_not_taken_for_the_one_meant(
    node: Node, rbd: FakeRbd
) -> None:
    known = rbd.images["v"]
    rbd.image("v", "id2")
    with pytest.raises(Unavailable, match="does not show it there"):
        node.open_known(known, "rbd")


def failing(error: Exception) -> Any:
    def fail() -> None:
        raise error

    return fail


def once(error: Exception) -> Any:
    errors = [error]

    def fail() -> None:
        if errors:
            raise errors.pop()

    return fail
