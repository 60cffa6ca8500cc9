"""Addresses and names that Ceph takes are taken, and whatever else is told what is wrong with it."""

from __future__ import annotations

import pytest
from csi_multi_rbd import spelling


@pytest.mark.parametrize(
    "text",
    [
        "10.0.0.1",
        "10.0.0.1:6789",
        "ceph-mon_1.example.com:3300",
        "[fd00::1]",
        "[fd00::1]:6789",
        "v2:10.0.0.1:3300",
        "v1:[fd00::1]:6789",
        "v2:10.0.0.1:3300/0",
        "[v2:10.0.0.1:3300,v1:10.0.0.1:6789]",
        "[v2:[fd00::1]:3300/0,v1:[fd00::1]:6789/0]",
    ],
)
def test_a_monitor_has_every_address_that_ceph_takes(text: str) -> None:
    assert spelling.monitor(text) == ""


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-m",
        "10.0.0.1,10.0.0.2",
        "10.0.0.1 10.0.0.2",
        "10.0.0.1;10.0.0.2",
        "v2:mon-a:3300",
        "v2:10.0.0.1",
        "v3:10.0.0.1:3300",
        "[v2:10.0.0.1:3300",
        "10.0.0.1:port",
        "http://10.0.0.1:6789",
        "10.0.0.1\n",
    ],
)
def test_what_is_no_address_of_one_monitor_is_told_the_forms(text: str) -> None:
    assert "host:port" in spelling.monitor(text)


def test_a_cluster_is_named_by_the_uuid_that_ceph_shows() -> None:
    assert spelling.fsid("3cb7b59b-9a3d-4b34-9a79-73900f2a06f6") == ""
    for text in ("", "rook-ceph", "3CB7B59B-9A3D-4B34-9A79-73900F2A06F6", "3cb7b59b-9a3d-4b34-9a79-73900f2a06f6\n"):
        assert "`ceph fsid` shows it" in spelling.fsid(text)


def test_a_user_is_named_without_the_type_before_it() -> None:
    assert spelling.user("csi") == spelling.user("csi.rbd-1") == ""
    for text in ("client.csi", "", "-csi", "a b", "csi\n"):
        assert "without 'client.'" in spelling.user(text)


@pytest.mark.parametrize("text", ["", "k8s", ".mgr", "a,b", "Größe", "a-b", "x" * 128])
def test_a_pool_or_namespace_has_any_name_that_a_spec_and_a_kernel_can_carry(text: str) -> None:
    assert spelling.place(text) == ""


@pytest.mark.parametrize("text", ["a/b", "a@b", "a b", "-a", "a\n", "a\x00", "x" * 129])
def test_a_name_that_would_mean_something_else_in_a_spec_is_refused(text: str) -> None:
    assert "without '/', '@' and blanks" in spelling.place(text)


def test_a_segment_has_the_shape_that_csi_allows() -> None:
    assert spelling.segment("zone", "eu-west-1a") == spelling.segment("a", "B") == ""
    for key, value in [("Zone", "a"), ("zone", ""), ("", "a"), ("zone", "a b"), ("zone", "a-"), ("zone", "x" * 64)]:
        assert "is not a segment" in spelling.segment(key, value)


def test_the_segment_of_a_node_is_left_to_the_core() -> None:
    assert "'node' is the core's" in spelling.segment("node", "node-1")
