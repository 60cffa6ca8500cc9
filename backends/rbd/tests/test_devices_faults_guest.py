"""Devices while a node or cluster has faults: killed processes, blocked clients, a cluster that does not answer."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from csi_multi_rbd import watchers
from csi_multi_rbd.devices import MapSettings
from csi_multi_rbd.resources import Image
from msgspec.structs import replace

from csi_multi.contract import Blank, Device, FailedPrecondition, OpenRequest, Timeout, Unavailable
from csi_multi.host import sysfs

from .maps import MIB, Node, by, command, held, rbd_nbd, read, wait, write

if TYPE_CHECKING:
    from csi_multi_rbd.config import Config

    from csi_multi.contract.backend import Setting

    from .ceph_commands import Commands

pytestmark = [
    pytest.mark.krbd,
    pytest.mark.skipif(not Path("/sys/bus/rbd").exists(), reason="this kernel maps no images"),
]
SHORT = 15  # seconds that a command may take where the cluster is down
DOWN = 60.0  # seconds for an answer then, in a guest beside other load


@pytest.fixture
def node(cluster: Commands, config: Config, setting: Setting) -> Iterator[Node]:
    node = Node(cluster, config, setting)
    yield node
    node.clean()


@contextmanager
def paused(cluster: Commands) -> Iterator[None]:
    """The cluster is there, and does not answer."""
    daemons = (cluster.mon, cluster.osd)
    for daemon in daemons:
        daemon.pause()
    try:
        yield
    finally:
        for daemon in daemons:
            daemon.resume()
        cluster.ceph("osd", "down", "0")  # a lone OSD that was silent for long goes on holding all requests back
        cluster.wait(cluster.serves, "serve again")


def reasons(node: Node, image: str) -> list[str]:
    return [entry.reason for entry in node.devices.health(image)]


def found(node: Node, image: str) -> Device:
    device = node.find(image)
    assert device is not None
    return device


def kill_rbd_nbd() -> None:
    for pid in rbd_nbd():
        os.kill(pid, signal.SIGKILL)
    wait(lambda: rbd_nbd() == {})


def shut_out(node: Node, image: str) -> str:
    """Do to this node's client what another node does that takes over its lock. Return its address."""
    (address,) = node.watchers(image)
    node.cluster.ceph("osd", "blocklist", "add", address, "600")
    wait(lambda: node.watchers(image) == [])
    return address


def test_a_device_whose_process_was_killed_is_served_again_and_nothing_is_lost(node: Node) -> None:
    """A pod that uses it waits meanwhile."""
    image = node.image("v")
    device = node.open(image, "rbd-nbd")
    assert reasons(node, image) == []
    with held(device.path):
        write(device.path, b"a" * MIB)
        kill_rbd_nbd()
        assert reasons(node, image) == ["ProcessGone"]
        assert found(node, image) == device
        waiting = threading.Thread(target=write, args=(device.path, b"b" * MIB, MIB))
        waiting.start()

        node.devices.restart_dead()
        waiting.join(60)
        assert not waiting.is_alive()
        assert reasons(node, image) == []
        sysfs.verify(device)
    assert read(device.path, 2 * MIB) == b"a" * MIB + b"b" * MIB
    kill_rbd_nbd()
    assert node.open(image, "rbd-nbd") == device
    assert read(device.path, MIB) == b"a" * MIB
    kill_rbd_nbd()
    node.close(image)
    assert node.mappings(image) == []


@pytest.mark.skipif(not os.environ.get("MATRIX"), reason="make matrix: minutes, and commands that the kernel keeps")
@by("rbd")
def test_while_the_cluster_does_not_answer_everything_ends_in_time_and_closing_succeeds(
    cluster: Commands, config: Config, setting: Setting, mounter: str
) -> None:
    node = Node(cluster, replace(config, connect_seconds=2, command_seconds=SHORT), setting)
    try:
        image, other, third = (node.image(name) for name in ("v", "w", "x"))
        device, neighbour = node.open(image, mounter), node.open(third, mounter)
        unopened = node.info(other)
        with paused(cluster):
            with at_most(DOWN / 6):
                assert found(node, image) == device
            with at_most(DOWN):
                assert reasons(node, image) == ["ClusterUnreachable"]
            with at_most(DOWN), pytest.raises((Unavailable, Timeout)):
                open_known(node, unopened, mounter)
            with at_most(DOWN), suppress(Unavailable, Timeout):
                node.close(image)
            with at_most(DOWN):
                node.close(image)
            assert node.mappings(image) == []
        assert node.mappings(other) == []
        sysfs.verify(Node(cluster, config, setting).open(image, mounter, exclusive=False))
        write(neighbour.path, b"a" * 4096)  # the lock that could not be given back was broken, and its holder shut out
    finally:
        node.clean()


def open_known(node: Node, image: Image, mounter: str) -> None:
    """Open an image that was looked up before."""
    request = OpenRequest(handle=image.name)
    node.devices.open(node.rbd, image, MapSettings(mounter=mounter), request, Blank.ZEROED)


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    started = time.monotonic()
    yield
    assert time.monotonic() - started < seconds


@by("rbd")
def test_a_node_that_was_shut_out_says_so_and_opens_anew(node: Node, mounter: str) -> None:
    """As happens to one that was cut off while another took the image over."""
    image = node.image("v")
    device = node.open(image, mounter)
    write(device.path, b"a" * MIB)
    address = shut_out(node, image)

    (entry,) = node.devices.health(image)
    assert entry.reason == "WatchLost"
    assert mounter == "rbd-nbd" or address in entry.message
    with pytest.raises(OSError, match="rror"):
        write(device.path, b"b" * 4096)
    again = node.open(image, mounter)
    assert reasons(node, image) == []
    assert len(node.mappings(image)) == 1
    assert read(again.path, 4096) == b"a" * 4096
    write(again.path, b"c" * 4096)


def test_an_image_that_is_taken_over_takes_no_other_of_the_node_with_it(node: Node) -> None:
    """Which it would, if they shared a connection to the cluster."""
    first, second = node.image("v"), node.image("w")
    node.open(first)
    device = node.open(second)
    shut_out(node, first)
    assert reasons(node, first) == ["WatchLost"]
    assert reasons(node, second) == []
    write(device.path, b"a" * 4096)


@by("rbd")
def test_an_image_that_was_replaced_meanwhile_is_not_taken_for_the_one_that_is_mapped(node: Node, mounter: str) -> None:
    image = node.image("v")
    old = node.open(image, mounter)
    write(old.path, b"a" * MIB)
    shut_out(node, image)
    node.cluster.rbd("rm", "--no-progress", node.rbd.spec(image))
    node.image("v")

    with held(old.path), pytest.raises(FailedPrecondition, match="which was deleted"):
        node.open(image, mounter)
    new = node.open(image, mounter)
    assert new.proof != old.proof
    assert read(new.path, 4096) == bytes(4096)
    assert len(node.mappings(image)) == 1


def test_an_image_whose_node_died_is_taken_over_when_the_cluster_has_forgotten_that(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the dead one is shut out, so that nothing it may still send is written."""
    monkeypatch.setattr(watchers, "MAX_WAIT", 90.0)
    image = node.image("v")
    write(node.open(image, "rbd-nbd").path, b"a" * MIB)
    (address,) = node.watchers(image)
    kill_rbd_nbd()
    command("rbd-nbd", "unmap", f"/dev/{node.mappings(image)[0]}")

    with at_most(75):
        device = node.open(image)
    assert read(device.path, 4096) == b"a" * 4096
    write(device.path, b"b" * 4096)
    assert address in node.cluster.ceph("osd", "blocklist", "ls")
