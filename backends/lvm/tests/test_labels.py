"""Handles and tags can be read again, whatever names the orchestrator chooses, and stay within LVM's limits."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from csi_multi_lvm import labels
from csi_multi_lvm.labels import MAX_DEVICE_NAME, SNAPSHOT_PREFIX, Handles, device_name, parse_handle
from hypothesis import given
from hypothesis import strategies as st

from csi_multi.contract import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    Source,
    SourceKind,
    Stamp,
    WrongNode,
    ids,
)

TAG = re.compile(r"[A-Za-z0-9_+.\-/=!:#&]{1,1024}")  # lvm(8)
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=128)


def stamp(name: str = "pvc-1", **more: object) -> Stamp:
    facts: dict[str, object] = {"driver": "multi.csi.test", "cluster": "prod", "digest": "ab12", **more}
    return Stamp(name=name, **facts)  # type: ignore[arg-type]


@given(TEXT, TEXT, st.dictionaries(TEXT, TEXT, max_size=5))
def test_any_stamp_fits_into_tags_and_comes_back(name: str, cluster: str, context: dict[str, str]) -> None:
    written = stamp(name, cluster=cluster, context=context)
    found = labels.stamp_tags(written)
    assert [tag for tag in found if not TAG.fullmatch(tag)] == []
    assert labels.read_stamp("v", frozenset(found)) == written


@pytest.mark.parametrize("kind", SourceKind)
def test_a_content_source_comes_back(kind: SourceKind) -> None:
    written = stamp(source=Source(kind=kind, handle="node-1/vg0/snap:1&x=~!%+ü"))
    assert labels.read_stamp("v", frozenset(labels.stamp_tags(written))) == written


def test_a_stamp_of_two_kibibytes_takes_several_tags() -> None:
    written = stamp(context={"key": "ü" * 900})
    found = labels.stamp_tags(written)
    assert len(found) > 2
    assert labels.read_stamp("v", frozenset(found)) == written


def test_a_person_can_read_the_usual_stamp() -> None:
    assert labels.stamp_tags(stamp("pvc-1f0e")) == [
        "csi.owner=multi.csi.test/prod",
        "csi.0=name=pvc-1f0e&digest=ab12",
    ]


def test_two_owners_never_have_the_same_tag() -> None:
    assert labels.owner_tag("a", "b/c") != labels.owner_tag("a/b", "c")


def test_a_volume_without_its_stamp_is_refused_with_the_remedy() -> None:
    with pytest.raises(
        FailedPrecondition, match=r"the tag csi\.0 of logical volume csi-x is missing; restore it with lvchange"
    ):
        labels.read_stamp("csi-x", frozenset({"csi.owner=a/b"}))


def test_of_two_records_of_progress_the_smaller_one_counts() -> None:
    assert labels.byte_count("v", {"csi.copied=4096", "csi.copied=8192"}, labels.BYTES_COPIED) == 4096
    assert labels.byte_count("v", {"csi.new"}, labels.BYTES_COPIED) == 0


def test_long_metadata_is_shortened_to_a_tag() -> None:
    found = labels.informative_tag("meta.pvc-name", "data base/ü~" * 100)
    assert TAG.fullmatch(found)
    assert found.startswith("csi.meta.pvc-name=data!20base!2F!C3!BC!7E")


def test_the_claim_and_the_persistent_volume_have_tags_of_their_own() -> None:
    metadata = {"pvc/name": "data-db-0", "pvc/namespace": "prod", "pv/name": "pvc-1f0e"}

    written = list(labels.metadata_tags(metadata))

    assert written == ["csi.meta.pvc-name=data-db-0", "csi.meta.pvc-namespace=prod", "csi.meta.pv-name=pvc-1f0e"]


# Names and handles
PVC = "pvc-0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"


def test_a_handle_contains_node_and_group() -> None:
    handles = Handles("node-1", "vg0")
    handle = handles.handle(handles.leaf_for(PVC))
    assert handle == f"node-1/vg0/{PVC}"
    assert handles.leaf("volume", handle) == PVC


def test_another_nodes_volume_is_on_the_wrong_node() -> None:
    with pytest.raises(WrongNode, match="is on node 'node-2'"):
        Handles("node-1", "vg0").leaf("volume", "node-2/vg0/x")


def test_a_volume_of_another_group_is_a_failed_precondition() -> None:
    with pytest.raises(FailedPrecondition, match="configure the group in which it was created"):
        Handles("node-1", "vg1").leaf("volume", "node-1/vg0/x")


@pytest.mark.parametrize(
    "handle",
    ["", "x", "node-1/x", "node-1//x", "node-1/vg0/", "node-1/vg0/../x", "node-1/-vg/x", "node-1/vg0/X", "n/v/x\n"],
)
def test_a_handle_of_another_form_is_not_found(handle: str) -> None:
    with pytest.raises(NotFound):
        parse_handle("volume", handle)


@given(st.text(min_size=1, max_size=128), st.integers(1, 63), st.integers(1, 63))
def test_every_name_fits_or_the_configuration_is_refused(name: str, node: int, group: int) -> None:
    handles = Handles("n" * node, "g" * group)
    try:
        leaf = handles.leaf_for(name)
    except InvalidArgument:
        assert node + group > 63
        return
    assert len(handles.handle(leaf)) <= ids.MAX_HANDLE
    assert len(device_name("g" * group, SNAPSHOT_PREFIX + leaf)) <= MAX_DEVICE_NAME
    assert handles.leaf("volume", handles.handle(leaf)) == leaf


def test_a_name_full_of_dashes_is_hashed_because_the_kernel_doubles_them() -> None:
    handles = Handles("n1", "volume-group-" * 4 + "x")
    assert handles.leaf_for("-".join("abcdefghijklmnopqrstu")).startswith("x-")


def test_the_kernels_name_doubles_dashes() -> None:
    assert device_name("vg-0", "csi-a-b") == "vg--0-csi--a--b"


@pytest.mark.parametrize(
    ("read", "tag"),
    [
        (labels.created_at, "csi.at="),
        (labels.created_at, "csi.at=nan"),
        (labels.created_at, "csi.at=1e300"),
        (labels.created_at, "csi.at=yesterday"),
        (labels.source_handle, "csi.source="),
        (labels.source_handle, "csi.source=node-1/vg0/s!00"),
        (labels.auto_extend, "csi.extend=x:y"),
        (labels.auto_extend, "csi.extend=70"),
        (lambda name, tags: labels.byte_count(name, tags, labels.SOURCE_SIZE), "csi.size="),
        (lambda name, tags: labels.byte_count(name, tags, labels.SOURCE_SIZE), "csi.size=-1"),
        (lambda name, tags: labels.byte_count(name, tags, labels.SOURCE_SIZE), "csi.size=9999999999999999999"),
        (labels.read_stamp, "csi.0=name=v&source=nonsense:x"),
    ],
)
def test_a_damaged_tag_is_a_refusal_that_names_it(read: Callable[[str, set[str]], object], tag: str) -> None:
    named = tag.partition("=")[0]
    with pytest.raises(FailedPrecondition, match=rf"the tag {named}.* of logical volume csis-s is damaged"):
        read("csis-s", {tag})
