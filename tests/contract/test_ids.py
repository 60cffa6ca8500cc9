"""Ids hold what is needed to find a thing again; anything else is a thing that does not exist."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from csi_multi.contract import FailedPrecondition, InvalidToken, Node, NotFound, ids

INSTANCES = st.from_regex(ids.INSTANCE, fullmatch=True)
NODES = st.from_regex(ids.NODE, fullmatch=True)
FACTS = st.from_regex(ids.FACT, fullmatch=True)
HANDLES = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=128)
READABLE = st.from_regex(r"(?:x-)?[-a-z0-9]{1,50}", fullmatch=True)


def test_the_longest_parts_make_an_id_of_exactly_128_bytes() -> None:
    handle = f"{'n' * ids.MAX_NODE}/{ids.leaf('p' * ids.LEAF)}"
    text = ids.join("i" * ids.MAX_INSTANCE, handle)

    assert len(text.encode()) == ids.MAX_ID == 128
    assert len(handle) == ids.MAX_HANDLE
    assert ids.split("volume", text) == ("i" * ids.MAX_INSTANCE, handle)


@given(INSTANCES, HANDLES)
def test_an_id_is_read_back_as_it_was_made(instance: str, handle: str) -> None:
    assert ids.split("volume", ids.join(instance, handle)) == (instance, handle)


@pytest.mark.parametrize(
    "text",
    [
        *("", "/", "//", "fast", "fast/", "/v", "FAST/v", "fa st/v", "fast\n/v", "\nfast/v", "-fast/v", "fast-/v"),
        *("fäst/v", "../v", "f" * 21 + "/v", "fake-vol-id", "none-exist-id", "\x00/v", "fast\x00/v", "~2;fast/v"),
    ],
)
def test_an_id_of_another_shape_is_an_unknown_thing(text: str) -> None:
    with pytest.raises(NotFound, match="does not exist"):
        ids.split("volume", text)


@given(st.text(max_size=40))
def test_no_text_makes_reading_an_id_fail_in_another_way(text: str) -> None:
    try:
        instance, handle = ids.split("volume", text)
    except NotFound:
        return
    assert ids.join(instance, handle) == text
    assert handle


@pytest.mark.parametrize("token", ["", "fast", "/x", "FAST/x", "invalid-token", "\x00"])
def test_a_token_of_another_shape_is_refused(token: str) -> None:
    with pytest.raises(InvalidToken, match="start"):
        ids.split_token(token)


def test_a_token_may_point_at_the_start_of_an_instance() -> None:
    assert ids.split_token("fast/") == ("fast", "")


@given(NAMES | READABLE)
@example("x-")
@example("\t/\n💾")
@example("")
def test_a_leaf_is_deterministic_short_and_plain(name: str) -> None:
    leaf = ids.leaf(name)

    assert leaf == ids.leaf(name)
    assert len(leaf) <= ids.LEAF
    assert re.fullmatch(r"[a-z0-9][-a-z0-9]*", leaf)
    assert not leaf.endswith("-")


@given(NAMES | READABLE, NAMES | READABLE)
@example("x-mfrggzdfmztwq2lknnwg23tpoa", "abc")
@example("a", "A")
def test_different_names_have_different_leaves(one: str, other: str) -> None:
    assert (ids.leaf(one) == ids.leaf(other)) == (one == other)


@given(NAMES)
def test_no_name_is_the_hash_of_another(name: str) -> None:
    leaf = ids.leaf(name)

    assert ids.leaf(leaf) != leaf or leaf == name


@given(NODES, READABLE, st.text(max_size=40), st.text(max_size=40))
@example("n" * ids.MAX_NODE, "p" * ids.LEAF, "1", "2")
@example("n", "v", "", "1")
def test_an_earlier_volume_of_a_handle_has_a_handle_of_the_same_place_that_no_volume_has(
    node: str, name: str, one: str, other: str
) -> None:
    handle = f"{node}/{ids.leaf(name)}"

    earlier = ids.earlier(handle, one)
    place, leaf = ids.split_local("volume", earlier)
    assert (place, len(earlier) <= ids.MAX_HANDLE) == (node, True)
    assert ids.leaf(leaf) != leaf
    assert (earlier == ids.earlier(handle, other)) == (one == other)
    assert ids.earlier(ids.leaf(name), one) != ids.leaf(name)
    assert len(ids.earlier(f"{node}/{'g' * 14}/{ids.leaf(name, 0)}", one)) <= ids.MAX_HANDLE


def test_a_readable_name_stays_readable() -> None:
    name = "pvc-0b1e7ef3-93a5-4d6a-8a7c-1e8f0c9c1a2b"

    assert ids.leaf(name) == name


@given(NODES, st.dictionaries(INSTANCES, FACTS, max_size=5))
def test_a_node_id_is_read_back_by_each_instance(name: str, facts: dict[str, str]) -> None:
    text = ids.join_node(name, facts)

    for instance, fact in facts.items():
        assert ids.split_node(text, instance) == Node(name=name, fact=fact, id=text)
    assert ids.split_node(text, "x" * 21) == Node(name=name, fact="", id=text)


def test_instances_that_know_the_same_share_a_place_in_a_node_id() -> None:
    facts = {"cloud": "i-1", "backup": "i-1", "other": "x"}

    assert ids.join_node("node-1", facts) == "node-1;backup+cloud=i-1;other=x"


def test_a_node_id_that_gets_too_long_names_the_remedy() -> None:
    with pytest.raises(FailedPrecondition, match=r"at most 256 are allowed; give the instances .* shorter names"):
        ids.join_node("n" * 63, {f"instance-number-{number:03}": f"i-{number:017}" for number in range(6)})


@pytest.mark.parametrize(
    "text",
    [
        "",
        ";",
        "node-1;",
        "node-1;=",
        "node-1;fast",
        "node-1;fast=",
        "node-1;+=x",
        "node-1;fast+=x",
        "node-1;FAST=x",
        "a b",
        "node-1\n",
        "é",
        ";fast=x",
    ],
)
def test_a_node_id_of_another_shape_is_an_unknown_node(text: str) -> None:
    with pytest.raises(NotFound, match="node"):
        ids.split_node(text, "fast")


@pytest.mark.parametrize(
    "handle", ["", "node-1", "node-1/", "/v", "node-1/../x", "node-1/a/b", "-n/v", "node-1/V", "node-1/v\n"]
)
def test_a_node_local_handle_of_another_shape_is_unknown(handle: str) -> None:
    with pytest.raises(NotFound):
        ids.split_local("volume", handle)


def test_a_node_local_handle_is_node_and_leaf() -> None:
    longest = ids.leaf("x" * 128)

    assert ids.split_local("volume", f"node-1/{longest}") == ("node-1", longest)


@pytest.mark.parametrize("text", ["fast/v\x00", "fast/\n", "fast/v\x7f"])
def test_an_id_with_a_control_character_is_an_unknown_thing(text: str) -> None:
    with pytest.raises(NotFound):
        ids.split("volume", text)
