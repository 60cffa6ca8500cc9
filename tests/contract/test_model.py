"""Sizes inside a range, and the order of places to try."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from csi_multi.contract import AccessMode, Mount, OutOfRange, SizeRange, TopologyRequirement

SIZES = st.integers(0, 1 << 40)
GRANULES = st.sampled_from([1, 512, 4096, 4 << 20, 1 << 30])


@given(SIZES, SIZES, GRANULES, st.integers(1, 1 << 32), SIZES, SIZES)
def test_a_chosen_size_obeys_caller_and_backend(
    required: int, limit: int, granularity: int, minimum: int, maximum: int, default: int
) -> None:
    assume(not limit or limit >= required)
    size = SizeRange(required=required, limit=limit)
    try:
        chosen = size.choose(granularity=granularity, minimum=minimum, maximum=maximum, default=default)
    except OutOfRange:
        return

    assert size.holds(chosen)
    assert chosen % granularity == 0
    assert chosen >= minimum
    assert not maximum or chosen <= maximum


@given(SIZES, SIZES, GRANULES, st.integers(1, 1 << 32))
def test_a_size_is_refused_only_when_none_fits(required: int, limit: int, granularity: int, minimum: int) -> None:
    assume(limit and limit >= required)
    smallest = -(-max(required, minimum) // granularity) * granularity
    fits = smallest <= limit
    try:
        chosen = SizeRange(required=required, limit=limit).choose(granularity=granularity, minimum=minimum)
    except OutOfRange as error:
        assert not fits
        assert str(limit) in str(error)  # noqa: PT017 - both outcomes are right, each for its own input
    else:
        assert fits
        assert chosen == smallest


def test_an_exact_size_is_kept() -> None:
    assert SizeRange(required=8192, limit=8192).choose(granularity=4096) == 8192


def test_the_default_counts_only_when_nothing_is_required() -> None:
    assert SizeRange().choose(default=1 << 30) == 1 << 30
    assert SizeRange(limit=4096).choose(default=1 << 30) == 4096
    assert SizeRange(required=5).choose(default=1 << 30) == 5
    assert SizeRange(least=8192).choose(default=4096) == 8192
    assert SizeRange(least=8192).choose(default=1 << 30) == 1 << 30
    with pytest.raises(OutOfRange):
        SizeRange(least=8192, limit=4096).choose(default=1 << 30)


def test_a_size_above_the_maximum_is_refused() -> None:
    with pytest.raises(OutOfRange, match="above the maximum of 4096"):
        SizeRange(required=4097).choose(maximum=4096)


def test_places_are_tried_most_wanted_first_and_once() -> None:
    a, b, c = {"zone": "a"}, {"zone": "b"}, {"zone": "c"}

    assert TopologyRequirement(requisite=(a, b, c), preferred=(c, a)).candidates == (c, a, b)


def test_only_modes_with_many_targets_or_nodes_allow_a_second_target() -> None:
    strict = {mode for mode in AccessMode if not mode.many_targets}

    assert strict == {
        AccessMode.SINGLE_NODE_WRITER,
        AccessMode.SINGLE_NODE_READER_ONLY,
        AccessMode.SINGLE_NODE_SINGLE_WRITER,
    }


def test_mount_flags_do_not_show_in_a_representation() -> None:
    assert "secret" not in repr(Mount(flags=("password=secret",)))
