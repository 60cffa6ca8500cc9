"""Addresses and names that Ceph accepts are accepted; the error for others names the rule."""

from __future__ import annotations

import pytest
from csi_multi_rbd import ceph_rules
from csi_multi_rbd.ceph_rules import (
    FEATURES,
    NOT_IN_KERNELS,
    REQUIRED_FEATURES,
    MapOptions,
    features_problem,
    merge_options,
    options_problem,
    parse_options,
    split_features,
    striping_problem,
)
from hypothesis import given
from hypothesis import strategies as st

from csi_multi.contract import InvalidArgument


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
    assert ceph_rules.monitor_problem(text) == ""


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
    assert "host:port" in ceph_rules.monitor_problem(text)


def test_a_cluster_is_named_by_the_uuid_that_ceph_shows() -> None:
    assert ceph_rules.fsid_problem("3cb7b59b-9a3d-4b34-9a79-73900f2a06f6") == ""
    for text in ("", "rook-ceph", "3CB7B59B-9A3D-4B34-9A79-73900F2A06F6", "3cb7b59b-9a3d-4b34-9a79-73900f2a06f6\n"):
        assert "`ceph fsid` prints it" in ceph_rules.fsid_problem(text)


def test_a_user_is_named_without_the_type_before_it() -> None:
    assert ceph_rules.user_problem("csi") == ceph_rules.user_problem("csi.rbd-1") == ""
    for text in ("client.csi", "", "-csi", "a b", "csi\n"):
        assert "without the prefix 'client.'" in ceph_rules.user_problem(text)


@pytest.mark.parametrize("text", ["", "k8s", ".mgr", "a,b", "Größe", "a-b", "x" * 128])
def test_a_pool_or_namespace_has_any_name_that_a_spec_and_a_kernel_can_carry(text: str) -> None:
    assert ceph_rules.name_problem(text) == ""


@pytest.mark.parametrize("text", ["a/b", "a@b", "a b", "-a", "a\n", "a\x00", "x" * 129])
def test_a_name_that_would_mean_something_else_in_a_spec_is_refused(text: str) -> None:
    assert "without '/', '@' and blanks" in ceph_rules.name_problem(text)


def test_a_segment_has_the_shape_that_csi_allows() -> None:
    assert ceph_rules.segment_problem("zone", "eu-west-1a") == ceph_rules.segment_problem("a", "B") == ""
    for key, value in [("Zone", "a"), ("zone", ""), ("", "a"), ("zone", "a b"), ("zone", "a-"), ("zone", "x" * 64)]:
        assert "is not a segment" in ceph_rules.segment_problem(key, value)


def test_the_segment_of_a_node_is_left_to_the_core() -> None:
    assert "the key 'node' belongs to the core" in ceph_rules.segment_problem("node", "node-1")


MIB = 2**20
ALL = ("layering", "exclusive-lock", "object-map", "fast-diff", "deep-flatten")


def test_all_features_that_kernels_know_go_together() -> None:
    assert features_problem(ALL, "rbd") == features_problem(ALL, "rbd-nbd") == ""


def test_layering_alone_is_enough() -> None:
    assert features_problem(["layering"], "rbd") == ""


@pytest.mark.parametrize(("feature", "needed"), REQUIRED_FEATURES.items())
def test_a_feature_without_the_one_it_needs_is_refused(feature: str, needed: str) -> None:
    assert f"{feature!r} needs {needed!r}" in features_problem(["layering", feature], "rbd-nbd")


def test_without_layering_nothing_could_be_cloned() -> None:
    assert "which snapshots and clones need" in features_problem(["exclusive-lock"], "rbd")


def test_a_journal_is_for_the_mounter_that_can_write_it() -> None:
    assert features_problem([*ALL, "journaling"], "rbd-nbd") == ""
    assert "choose the mounter rbd-nbd" in features_problem([*ALL, "journaling"], "rbd")


def test_an_unknown_feature_is_told_which_there_are() -> None:
    assert "the features are: layering, exclusive-lock" in features_problem(["layering", "fast_diff"], "rbd")


@given(st.sets(st.sampled_from(FEATURES)), st.sampled_from(["rbd", "rbd-nbd"]))
def test_what_is_not_objected_to_is_complete(features: set[str], mounter: str) -> None:
    complete = "layering" in features and all(
        REQUIRED_FEATURES[one] in features for one in features & REQUIRED_FEATURES.keys()
    )
    mappable = mounter == "rbd-nbd" or not features & NOT_IN_KERNELS

    assert (features_problem(features, mounter) == "") == (complete and mappable)


def test_a_list_of_features_is_separated_by_commas() -> None:
    assert split_features(" layering, exclusive-lock,layering,") == ("layering", "exclusive-lock")
    assert split_features("") == ()


@pytest.mark.parametrize(
    ("size", "unit", "count"),
    [(0, 0, 0), (8 * MIB, 0, 0), (0, 65536, 4), (0, 4 * MIB, 1), (8 * MIB, 8 * MIB, 2), (4096, 512, 3)],
)
def test_stripes_that_fill_objects_evenly_fit(size: int, unit: int, count: int) -> None:
    assert striping_problem(object_size=size, unit=unit, count=count) == ""


@pytest.mark.parametrize(
    ("size", "unit", "count", "says"),
    [
        (5_000_000, 0, 0, "is not a power of two; the next lower one is 4194304"),
        (0, 65536, 0, "needs stripeCount"),
        (0, 0, 4, "needs stripeUnit"),
        (0, 98304, 2, "a power of two from 512"),
        (0, 256, 2, "a power of two from 512"),
        (0, 8 * MIB, 2, "4194304 bytes, Ceph's default; give objectSize"),
        (65536, 131072, 2, "to the object size, 65536 bytes"),
    ],
)
def test_stripes_that_ceph_would_refuse_or_change_are_refused(size: int, unit: int, count: int, says: str) -> None:
    assert says in striping_problem(object_size=size, unit=unit, count=count)


@pytest.mark.parametrize(
    ("text", "krbd", "nbd"),
    [
        ("", (), ()),
        ("noshare", ("noshare",), ()),
        ("krbd:ms_mode=secure,queue_depth=64", ("ms_mode=secure", "queue_depth=64"), ()),
        ("nbd:io-timeout=9", (), ("io-timeout=9",)),
        ("krbd:a,b=c;nbd:d", ("a", "b=c"), ("d",)),
        (" KRBD : a , b ; nbd:d;", ("a", "b"), ("d",)),
        ("krbd:crush_location=host:a|rack:b,a", ("crush_location=host:a|rack:b", "a"), ()),
        ("krbd:a;krbd:b", ("a", "b"), ()),
        ("krbd:a;NBD: try-netlink, d", ("a",), ("d",)),
    ],
)
def test_options_belong_to_the_mounter_before_them(text: str, krbd: tuple[str, ...], nbd: tuple[str, ...]) -> None:
    assert parse_options(text) == MapOptions(krbd=krbd, nbd=nbd)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("fuse:a", "'fuse' is not a mounter"),
        ("krbd:a b", "'a b' is not an option"),
        ("krbd:=x", "'=x' is not an option"),
        ("krbd:--exclusive", "is not an option"),
        ("exclusive", "leave out 'exclusive'"),
        ("krbd:EXCLUSIVE", "leave out 'EXCLUSIVE'"),
        ("krbd:ro", "readOnly"),
        ("krbd:noudev", "the driver sets it"),
        ("krbd:secret=AQ", "the key comes from"),
        ("krbd:force", "loses data that was not written yet"),
        ("nbd:exclusive", "access mode"),
        ("nbd:device=/dev/nbd1", "the driver sets it"),
        ("nbd:cookie=x", "the driver sets it"),
        ("nbd:try-netlink=no", "the driver sets it"),
        ("nbd:encryption-passphrase-file=/x", "does not encrypt"),
        ("nbd:quiesce-hook=/bin/sh", "run a program"),
    ],
)
def test_what_is_no_option_or_would_break_a_promise_is_refused_with_the_reason(text: str, reason: str) -> None:
    assert reason in options_problem(text)
    with pytest.raises(InvalidArgument):
        parse_options(text)


def test_a_secret_is_not_repeated() -> None:
    assert "AQsecret" not in options_problem("krbd:secret=AQsecret")


def test_what_a_class_asks_for_replaces_the_drivers_own() -> None:
    assert merge_options(("a", "b=1"), ("b=2", "c")) == ("a", "b=2", "c")
