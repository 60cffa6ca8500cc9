"""A real device of a node that is cut off: nothing is written by it any more, and the node can come back."""

from __future__ import annotations

import dataclasses
import errno
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from csi_multi_rbd import labels
from csi_multi_rbd.fencing import Fence

from .maps import Node, by, read, write

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
    node = Node(cluster, msgspec.structs.replace(config, fencing=True), setting)
    yield node
    node.clean()


@by("rbd")
def test_a_node_that_is_cut_off_writes_no_more_and_maps_anew_when_it_is_back(
    node: Node, setting: Setting, mounter: str
) -> None:
    image = node.image("v")
    device = node.open(image, mounter)
    write(device.path, b"x" * 4096)
    next_node = dataclasses.replace(setting, node="node-2", out_of_service=lambda name: name == setting.node)

    recorded = node.rbd.metadata(image)[labels.HOLDER]
    Fence(node.config, next_node).cut_off(node.rbd, image, node.rbd.watchers(image), recorded)

    with pytest.raises(OSError, match=r".*") as refused:
        write(device.path, b"y" * 4096)
    assert refused.value.errno in (errno.EIO, errno.ESHUTDOWN)
    assert node.watchers(image) == []
    node.close(image)
    device = node.open(image, mounter)
    assert read(device.path, 4096) == b"x" * 4096
    write(device.path, b"z" * 4096)
    assert read(device.path, 4096) == b"z" * 4096
