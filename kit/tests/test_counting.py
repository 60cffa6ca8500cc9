"""What counts as left on the storage, with and without layers that replace each other."""

from __future__ import annotations

import re

import pytest
from csi_multi_testing import memory
from csi_multi_testing.assertions import CheckFailed
from csi_multi_testing.context import CheckContext, in_process
from csi_multi_testing.counting import added_since, expect_as_before, expect_nothing_left


def context_with(*names: str, layers: bool) -> CheckContext:
    return in_process(memory.storage(resources=lambda: names, layers=layers))


def test_what_vanished_does_not_excuse_what_was_left() -> None:
    t = context_with("volume own", layers=False)

    assert added_since(t, {"volume another"}) == 1
    hint = "delete_volume: remaining: volume own (volume another vanished; if one took the place of the other, give"
    with pytest.raises(CheckFailed, match=re.escape(hint)):
        expect_nothing_left(t, {"volume another"}, "delete_volume")


def test_a_layer_takes_the_place_of_one_that_vanished() -> None:
    t = context_with("layer 2", layers=True)

    assert added_since(t, {"layer 1"}) == 0
    expect_nothing_left(t, {"layer 1"}, "delete_snapshot")
    expect_as_before(t, {"layer 1"}, "delete_snapshot")
    with pytest.raises(CheckFailed, match=r"delete_snapshot: remaining: layer 2$"):
        expect_nothing_left(t, set(), "delete_snapshot")


@pytest.mark.parametrize("layers", [False, True])
def test_what_vanished_beside_a_deletion_is_named(layers: bool) -> None:
    t = context_with("layer 2", layers=layers)

    expect_nothing_left(t, {"layer 2", "volume another"}, "delete_snapshot")
    with pytest.raises(CheckFailed, match="delete_snapshot: gone: volume another"):
        expect_as_before(t, {"layer 2", "volume another"}, "delete_snapshot")
