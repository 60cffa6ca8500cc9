"""Handles carry node and group, and names stay within what LVM and CSI can take."""

from __future__ import annotations

import pytest
from csi_multi_lvm.names import DEVICE_NAME, SNAPSHOT, Names, device_name, parse
from hypothesis import given, settings
from hypothesis import strategies as st

from csi_multi.contract import FailedPrecondition, InvalidArgument, NotFound, WrongNode, ids

PVC = "pvc-0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"


def test_a_handle_says_node_and_group_and_reads_back() -> None:
    names = Names("node-1", "vg0")
    handle = names.join(names.leaf(PVC))
    assert handle == f"node-1/vg0/{PVC}"
    assert names.split("volume", handle) == PVC


def test_another_nodes_volume_is_not_unknown_but_elsewhere() -> None:
    with pytest.raises(WrongNode, match="lives on node 'node-2'"):
        Names("node-1", "vg0").split("volume", "node-2/vg0/x")


def test_a_volume_of_the_group_that_was_configured_before_is_not_unknown() -> None:
    with pytest.raises(FailedPrecondition, match="configure the group it was made in"):
        Names("node-1", "vg1").split("volume", "node-1/vg0/x")


@pytest.mark.parametrize(
    "handle",
    ["", "x", "node-1/x", "node-1//x", "node-1/vg0/", "node-1/vg0/../x", "node-1/-vg/x", "node-1/vg0/X", "n/v/x\n"],
)
def test_a_handle_of_another_shape_was_never_made(handle: str) -> None:
    with pytest.raises(NotFound):
        parse("volume", handle)


@settings(deadline=None)
@given(st.text(min_size=1, max_size=128), st.integers(1, 63), st.integers(1, 63))
def test_every_name_fits_or_the_configuration_is_refused(name: str, node: int, group: int) -> None:
    names = Names("n" * node, "g" * group)
    try:
        leaf = names.leaf(name)
    except InvalidArgument:
        assert node + group > 63
        return
    assert len(names.join(leaf)) <= ids.MAX_HANDLE
    assert len(device_name("g" * group, SNAPSHOT + leaf)) <= DEVICE_NAME
    assert names.split("volume", names.join(leaf)) == leaf


def test_a_name_full_of_dashes_is_hashed_because_the_kernel_doubles_them() -> None:
    names = Names("n1", "volume-group-" * 4 + "x")
    assert names.leaf("-".join("abcdefghijklmnopqrstu")).startswith("x-")


def test_the_kernels_name_doubles_dashes() -> None:
    assert device_name("vg-0", "csi-a-b") == "vg--0-csi--a--b"
