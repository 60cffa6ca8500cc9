"""Features that go together, kernels that can map them, and stripes that Ceph makes as they were asked for.

Ceph itself makes an image without the features whose companions are missing, and rounds the size of objects.
"""

from __future__ import annotations

import pytest
from csi_multi_rbd.features import KNOWN, NEEDS, NOT_IN_KERNELS, misfit, objection, split
from hypothesis import given
from hypothesis import strategies as st

MIB = 2**20
ALL = ("layering", "exclusive-lock", "object-map", "fast-diff", "deep-flatten")


def test_all_features_that_kernels_know_go_together() -> None:
    assert objection(ALL, "rbd") == objection(ALL, "rbd-nbd") == ""


def test_layering_alone_is_enough() -> None:
    assert objection(["layering"], "rbd") == ""


@pytest.mark.parametrize(("feature", "needed"), NEEDS.items())
def test_a_feature_without_the_one_it_needs_is_refused(feature: str, needed: str) -> None:
    assert f"{feature!r} needs {needed!r}" in objection(["layering", feature], "rbd-nbd")


def test_without_layering_nothing_could_be_cloned() -> None:
    assert "neither snapshots nor clones" in objection(["exclusive-lock"], "rbd")


def test_a_journal_is_for_the_mounter_that_can_write_it() -> None:
    assert objection([*ALL, "journaling"], "rbd-nbd") == ""
    assert "choose the mounter rbd-nbd" in objection([*ALL, "journaling"], "rbd")


def test_an_unknown_feature_is_told_which_there_are() -> None:
    assert "there are: layering, exclusive-lock" in objection(["layering", "fast_diff"], "rbd")


@given(st.sets(st.sampled_from(KNOWN)), st.sampled_from(["rbd", "rbd-nbd"]))
def test_what_is_not_objected_to_is_complete(features: set[str], mounter: str) -> None:
    complete = "layering" in features and all(NEEDS[one] in features for one in features & NEEDS.keys())
    mappable = mounter == "rbd-nbd" or not features & NOT_IN_KERNELS

    assert (objection(features, mounter) == "") == (complete and mappable)


def test_a_list_of_features_is_separated_by_commas() -> None:
    assert split(" layering, exclusive-lock,layering,") == ("layering", "exclusive-lock")
    assert split("") == ()


@pytest.mark.parametrize(
    ("size", "unit", "count"),
    [(0, 0, 0), (8 * MIB, 0, 0), (0, 65536, 4), (0, 4 * MIB, 1), (8 * MIB, 8 * MIB, 2), (4096, 512, 3)],
)
def test_stripes_that_fill_objects_evenly_fit(size: int, unit: int, count: int) -> None:
    assert misfit(object_size=size, unit=unit, count=count) == ""


@pytest.mark.parametrize(
    ("size", "unit", "count", "says"),
    [
        (5_000_000, 0, 0, "is not a power of two; 4194304 is"),
        (0, 65536, 0, "only together with stripeCount"),
        (0, 0, 4, "only together with stripeUnit"),
        (0, 98304, 2, "a power of two from 512"),
        (0, 256, 2, "a power of two from 512"),
        (0, 8 * MIB, 2, "4194304 bytes, Ceph's default; give objectSize"),
        (65536, 131072, 2, "to the size of an object, 65536 bytes"),
    ],
)
def test_stripes_that_ceph_would_refuse_or_change_are_refused(size: int, unit: int, count: int, says: str) -> None:
    assert says in misfit(object_size=size, unit=unit, count=count)
