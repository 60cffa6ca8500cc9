"""The names of a group's members: no other snapshot has one, and each names its group's first member."""

from __future__ import annotations

import pytest
from csi_multi_lvm import labels
from csi_multi_lvm.group_members import number_of
from csi_multi_lvm.labels import Handles, first_member
from hypothesis import given
from hypothesis import strategies as st

from csi_multi.contract import InvalidArgument, ids

HANDLES = Handles("node-1", "vg0")


@given(st.text(min_size=1, max_size=60), st.integers(0, 300))
def test_a_member_has_a_name_that_no_snapshot_gets(group: str, number: int) -> None:
    leaf = HANDLES.member_leaf(HANDLES.leaf_for(group), number)

    assert ids.LEAF_SHAPE.fullmatch(leaf)
    assert HANDLES.leaf_for(leaf) != leaf
    assert first_member(HANDLES.leaf_for(group)) == ""
    assert first_member(leaf) == HANDLES.member_leaf(HANDLES.leaf_for(group), 0)
    assert number_of(labels.SNAPSHOT_PREFIX + leaf) == number


def test_groups_of_different_names_have_different_members() -> None:
    names = ["g", "g-0", "G", "group", "x-g", "ö"]

    assert len({HANDLES.member_leaf(HANDLES.leaf_for(name), 0) for name in names}) == len(names)


def test_members_whose_handle_would_be_too_long_are_refused() -> None:
    handles = Handles("n" * 63, "v" * 16)
    leaf = handles.leaf_for("group")

    with pytest.raises(InvalidArgument, match="vgrename"):
        handles.member_leaf(leaf, 0)
