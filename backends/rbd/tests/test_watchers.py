"""An image in use on another node is not mapped here, and the error names its clients."""

from __future__ import annotations

import pytest
from csi_multi_rbd import watchers

from csi_multi.contract import (
    FailedPrecondition,
)

from .fake_node import FakeKernel, FakeRbd, Node

pytestmark = pytest.mark.usefixtures("impatient")
BOTH = pytest.mark.parametrize("mounter", ["rbd", "rbd-nbd"])


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
    monkeypatch.setattr(watchers, "MAX_WAIT", 5.0)
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
