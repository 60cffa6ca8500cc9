"""Mapping and unmapping of images, and the errors when that fails."""

from __future__ import annotations

import errno

import pytest
from csi_multi_rbd import nbd
from csi_multi_rbd.errors import CephCommandFailed, ImageLocked

from csi_multi.contract import (
    FailedPrecondition,
    InvalidArgument,
    Timeout,
    Unavailable,
)

from .fake_node import MIB, FakeKernel, FakeRbd, Node, failing, found

pytestmark = pytest.mark.usefixtures("impatient")
BOTH = pytest.mark.parametrize("mounter", ["rbd", "rbd-nbd"])


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


def test_who_holds_the_lock_for_good_is_named(node: Node, rbd: FakeRbd) -> None:
    rbd.before["map krbd"] = failing(ImageLocked("map: (30)"))
    rbd.strangers = ["192.0.2.7:0/7"]
    with pytest.raises(FailedPrecondition, match=r"by 192\.0\.2\.7"):
        node.open(exclusive=False)


def test_a_process_that_cannot_have_the_lock_says_who_has_it(node: Node, rbd: FakeRbd) -> None:
    rbd.before["map nbd exclusive"] = failing(
        CephCommandFailed("rbd-nbd: failed to acquire exclusive lock: (30) Read-only")
    )
    with pytest.raises(FailedPrecondition, match="a client that has just closed it"):
        node.open(mounter="rbd-nbd")


def test_features_that_the_kernel_lacks_are_named(node: Node, rbd: FakeRbd, kernel: FakeKernel) -> None:
    rbd.image("v", "id1", "layering", "exclusive-lock", "journaling")
    error = CephCommandFailed("map: (6)")
    error.status = 6
    rbd.before["map krbd"] = failing(error)
    (kernel.sys / "bus" / "rbd").mkdir(parents=True)
    (kernel.sys / "bus" / "rbd" / "supported_features").write_text("0x1bf\n")
    with pytest.raises(FailedPrecondition, match="with journaling; use 'mounter: rbd-nbd'"):
        node.open()


@pytest.mark.parametrize("error", [CephCommandFailed("what?"), Timeout("late"), Unavailable("down")])
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


def test_a_device_that_does_not_go_is_not_closed(node: Node, rbd: FakeRbd) -> None:
    node.open()
    rbd.before["unmap krbd"] = failing(Unavailable("what?"))
    with pytest.raises(Unavailable, match=r"what\?"):
        node.devices.close("v")
    rbd.unmap = lambda *_, **__: None  # type: ignore[method-assign]
    with pytest.raises(Unavailable, match="still exists after it was unmapped"):
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


def test_a_device_of_a_process_is_told_its_size(
    node: Node, rbd: FakeRbd, kernel: FakeKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = node.open(mounter="rbd-nbd")

    def resize(number: int, cookie: str, size: int) -> None:
        assert cookie == device.proof["backend"]
        kernel.resize(f"nbd{number}", size)

    monkeypatch.setattr(nbd, "resize", resize)
    rbd.image("v", size=128 * MIB)
    node.devices.refresh("v")
    assert kernel.size(device.path.name) == 128 * MIB


def test_every_process_that_is_started_is_set_apart_from_the_drivers_container(
    node: Node, kernel: FakeKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved: list[list[int]] = []
    monkeypatch.setattr(nbd, "move_to_cgroup", lambda _, pids: moved.append(pids))
    node.open(mounter="rbd-nbd")
    (first,) = (int(entry.name) for entry in kernel.proc.iterdir())
    kernel.end(first)
    node.devices.restart_dead()
    (second,) = (int(entry.name) for entry in kernel.proc.iterdir())
    assert moved == [[first], [second]]
    assert first != second


def test_a_process_that_cannot_be_set_apart_serves_all_the_same_and_that_is_told(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def move(kernel: FakeKernel, pids: list[int]) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(nbd, "move_to_cgroup", move)
    device = node.open(mounter="rbd-nbd")
    assert found(node) == device
    (told,) = caplog.messages
    assert f"/dev/{device.path.name} ends with the driver's container" in told


def test_a_device_is_never_served_with_another_image_of_its_name(node: Node, rbd: FakeRbd, kernel: FakeKernel) -> None:
    node.open(mounter="rbd-nbd")
    rbd.image("v", "id2")
    kernel.end(1000)
    node.devices.restart_dead()
    assert "attach" not in rbd.asked


def test_processes_that_are_out_of_sight_are_not_taken_for_dead(node: Node, rbd: FakeRbd, kernel: FakeKernel) -> None:
    """A second one on a device would spoil it."""
    node.open(mounter="rbd-nbd")
    kernel.end(1000)
    kernel.whole = False
    node.devices.restart_dead()
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
