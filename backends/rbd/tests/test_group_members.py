"""The names of members: none that a request can have, and of one group only."""

from __future__ import annotations

import pytest
from csi_multi_rbd.group_members import is_member, member_leaf, member_prefix

from csi_multi.contract import ids

NAMES = ("g", "g-0", "x-g", "snapshot-0a", "a" * 43)


@pytest.mark.parametrize("group", NAMES)
def test_a_members_name_is_one_that_no_requested_name_becomes(group: str) -> None:
    leaf = member_leaf(group, 31)

    assert ids.LEAF_SHAPE.fullmatch(leaf)
    assert ids.leaf(leaf) != leaf
    assert is_member(leaf)


def test_every_group_has_names_of_its_own() -> None:
    prefixes = [member_prefix(one) for one in NAMES]

    assert len(set(prefixes)) == len(NAMES)
    assert [one for one in prefixes for other in prefixes if one != other and one.startswith(other)] == []


@pytest.mark.parametrize("leaf", ["", "s", "x-" + "a" * 26, ids.earlier("v", "1")])
def test_other_snapshots_are_no_members(leaf: str) -> None:
    assert not is_member(leaf)
