"""What tells one request from another. The rules themselves are tested over the wire, in rpc/."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from csi_multi.core.idempotent import digest

STRINGS = st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=4)


@given(STRINGS, STRINGS, STRINGS, STRINGS)
def test_a_digest_is_equal_only_for_equal_parameters(a: dict, b: dict, c: dict, d: dict) -> None:
    assert (digest(a, b) == digest(c, d)) == ((a, b) == (c, d))


@given(STRINGS)
def test_a_digest_does_not_depend_on_order(a: dict) -> None:
    assert digest(a) == digest(dict(reversed(list(a.items()))))


def test_a_digest_tells_parameters_from_mutable_ones() -> None:
    assert digest({"a": "b"}, {}) != digest({}, {"a": "b"})


def test_a_digest_stays_the_same_for_ever() -> None:
    """It is stored on resources: another value would turn every retry after an upgrade into a conflict."""
    assert digest({"tier": "ssd", "é": "x"}, {"iops": "5"}) == "d41781b79c5d9e6f3862affbc7c7f329"
