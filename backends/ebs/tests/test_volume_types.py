"""The sizes, IOPS and throughput that each volume type allows, and the errors for others."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from csi_multi_ebs.config import MutableParameters, Parameters, Type
from csi_multi_ebs.resources import Ec2Volume
from csi_multi_ebs.user_tags import IOPS_PER_GB
from csi_multi_ebs.volume_types import TYPE_LIMITS, VolumeSpec, modified_spec, new_spec, size_in_gib
from hypothesis import given
from hypothesis import strategies as st

from csi_multi.contract import InvalidArgument, OutOfRange, SizeRange
from csi_multi.contract.params import parse

GIB = 2**30


def made(size: int = 10, mutable: dict[str, str] | None = None, **parameters: str) -> VolumeSpec:
    """Return the spec of a volume of so many GiB, with parameters as users write them."""
    own = parse(Parameters, parameters, "parameters")
    later = parse(MutableParameters, mutable, "mutable_parameters") if mutable else None
    return new_spec(own, later, SizeRange(required=size * GIB))


def row(**facts: Any) -> Ec2Volume:
    known = {"id": "vol-0a", "state": "in-use", "size": 10, "zone": "eu-west-1a", "type": "gp3"}
    return Ec2Volume(**{**known, "created": datetime.now(UTC), "iops": 3000, "throughput": 125, **facts})


def test_without_parameters_a_volume_is_gp3_with_what_ec2_gives_it() -> None:
    assert made() == VolumeSpec(type="gp3", size=10)


def test_a_volume_without_a_size_has_100_gib() -> None:
    assert new_spec(Parameters(), None, SizeRange()) == VolumeSpec(type="gp3", size=100)
    assert new_spec(Parameters(), None, SizeRange(limit=50 * GIB)).size == 50


def test_a_size_is_rounded_up_to_whole_gib() -> None:
    assert size_in_gib("gp3", SizeRange(required=GIB + 1)) == 2


def test_a_limit_below_the_next_gib_is_out_of_range() -> None:
    with pytest.raises(OutOfRange, match="gp3 volumes have 1 to 65536 whole GiB"):
        size_in_gib("gp3", SizeRange(required=GIB + 1, limit=GIB + 2))


def test_a_type_with_a_large_minimum_makes_a_larger_volume() -> None:
    assert made(type="st1", size=10).size == 125
    with pytest.raises(OutOfRange, match="st1 volumes have 125 to 16384"):
        size_in_gib("st1", SizeRange(required=GIB, limit=10 * GIB))


@pytest.mark.parametrize(("kind", "most"), [("gp2", 16384), ("gp3", 65536), ("io2", 65536), ("standard", 1024)])
def test_the_largest_size_of_a_type_is_named(kind: str, most: int) -> None:
    assert size_in_gib(kind, SizeRange(required=most * GIB)) == most
    with pytest.raises(OutOfRange, match=f"{kind} volumes have 1 to {most}|{kind} volumes have 4 to {most}"):
        size_in_gib(kind, SizeRange(required=most * GIB + 1))


def test_a_copy_is_at_least_as_large_as_its_source() -> None:
    assert size_in_gib("gp3", SizeRange(required=GIB), least=20) == 20
    assert size_in_gib("gp3", SizeRange(), least=20, default=20) == 20
    with pytest.raises(OutOfRange, match="the source has 20"):
        size_in_gib("gp3", SizeRange(limit=20 * GIB - 1), least=20)


@pytest.mark.parametrize(
    ("kind", "size", "iops"),
    [("gp3", 1, 3000), ("gp3", 160, 80000), ("io1", 4, 100), ("io1", 1280, 64000), ("io2", 256, 256000)],
)
def test_the_ends_of_a_range_are_inside_it(kind: str, size: int, iops: int) -> None:
    assert made(size, type=kind, iops=str(iops)).iops == iops


@pytest.mark.parametrize(
    ("kind", "size", "iops", "says"),
    [
        ("gp3", 10, 2999, "allows 3000 to 5000 IOPS (at most 500 per GiB); request at least 3000"),
        ("gp3", 5, 3001, "allows 3000 to 3000 IOPS (at most 500 per GiB); request at least 7 GiB, or fewer IOPS"),
        ("gp3", 1000, 80001, "allows 3000 to 80000 IOPS (at most 500 per GiB); request at most 80000"),
        ("io1", 10, 501, "allows 100 to 500 IOPS (at most 50 per GiB); request at least 11 GiB, or fewer IOPS"),
        ("io2", 10, 99, "allows 100 to 10000 IOPS (at most 1000 per GiB); request at least 100"),
    ],
)
def test_iops_out_of_range_are_refused_with_the_range_and_the_remedy(
    kind: str, size: int, iops: int, says: str
) -> None:
    with pytest.raises(InvalidArgument) as found:
        made(size, type=kind, iops=str(iops))

    assert str(found.value) == f"'iops' requests {iops} IOPS, but a {kind} volume of {size} GiB {says}"


@pytest.mark.parametrize("kind", ["gp2", "st1", "sc1", "standard"])
def test_a_type_whose_iops_cannot_be_chosen_says_so(kind: str) -> None:
    with pytest.raises(InvalidArgument, match=f"'iops' does not apply to type {kind}.*choose type gp3, io1 or io2"):
        made(500, type=kind, iops="3000")
    with pytest.raises(InvalidArgument, match="'iopsPerGB' does not apply to type"):
        made(500, type=kind, iopsPerGB="3")


@pytest.mark.parametrize("kind", ["io1", "io2"])
def test_a_type_that_must_be_told_its_iops_says_so(kind: str) -> None:
    with pytest.raises(InvalidArgument, match=f"type {kind} needs 'iops' or 'iopsPerGB'.*allows 100 to"):
        made(type=kind)


def test_iops_per_gb_count_for_the_size_that_is_made() -> None:
    assert made(20, type="io1", iopsPerGB="50").iops == 1000
    assert made(2, type="io1", iopsPerGB="50").iops == 200  # 4 GiB


def test_too_many_iops_per_gb_are_capped() -> None:
    assert made(20, type="io1", iopsPerGB="500").iops == 1000
    assert made(10000, type="io1", iopsPerGB="50").iops == 64000
    assert made(1, type="gp3", iopsPerGB="9999").iops == 3000


def test_too_few_iops_per_gb_are_refused_or_raised() -> None:
    with pytest.raises(InvalidArgument, match='at least 600 GiB, or set allowAutoIOPSPerGBIncrease: "true"'):
        made(10, type="gp3", iopsPerGB="5")
    assert made(10, type="gp3", iopsPerGB="5", allowAutoIOPSPerGBIncrease="true").iops == 3000


def test_throughput_needs_iops_that_carry_it() -> None:
    assert made(throughput="750").throughput == 750
    assert made(throughput="1000", iops="4000").throughput == 1000
    with pytest.raises(
        InvalidArgument, match="too much for 3000 IOPS, which allow 750 MiB/s; set iops to at least 4000"
    ):
        made(throughput="1000")


@pytest.mark.parametrize("wrong", ["124", "2001"])
def test_throughput_out_of_range_is_refused_with_the_range(wrong: str) -> None:
    with pytest.raises(InvalidArgument, match="allows 125 to 2000 MiB/s"):
        made(1000, throughput=wrong, iops="80000")


def test_throughput_is_for_gp3_only() -> None:
    with pytest.raises(
        InvalidArgument, match="'throughput' does not apply to type gp2; leave it out, or choose type gp3"
    ):
        made(type="gp2", throughput="125")


def test_a_volume_attributes_class_wins_over_the_storage_class() -> None:
    assert made(mutable={"type": "io2", "iops": "200"}, type="gp3", iops="4000", throughput="500") == VolumeSpec(
        type="io2", size=10, iops=200
    )
    assert made(mutable={"iops": "4000"}, throughput="1000") == VolumeSpec(
        type="gp3", size=10, iops=4000, throughput=1000
    )
    assert made(mutable={"type": "gp2"}, iops="4000", throughput="500") == VolumeSpec(type="gp2", size=10)
    assert made(mutable={"iopsPerGB": "400"}, iops="3000").iops == 4000


@given(st.sampled_from(sorted(TYPE_LIMITS)), st.integers(1, 70000), st.integers(1, 10**6))
def test_whatever_is_not_refused_obeys_the_table(kind: Type, size: int, per_gb: int) -> None:
    try:
        found = new_spec(Parameters(type=kind, iops_per_gb=per_gb), None, SizeRange(required=size * GIB))
    except (InvalidArgument, OutOfRange):
        return
    rule = TYPE_LIMITS[kind]
    assert rule.iops
    assert found.iops
    assert rule.size[0] <= found.size <= rule.size[1]
    assert rule.iops[0] <= found.iops <= max(min(rule.iops[1], rule.per_gib * found.size), rule.iops[0])


def change(of: Ec2Volume, size: int | None = None, **mutable: str) -> VolumeSpec | None:
    return modified_spec(of, parse(MutableParameters, mutable, "mutable_parameters"), size)


def test_a_volume_that_is_like_that_needs_no_change() -> None:
    assert change(row(iops=4000, throughput=500), size=10, type="gp3", iops="4000", throughput="500") is None
    assert modified_spec(row(), None, None) is None


def test_a_volume_never_shrinks() -> None:
    assert change(row(size=10), size=5) is None
    assert change(row(size=10), size=5, iops="4000") == VolumeSpec(type="gp3", size=10, iops=4000)


def test_only_what_changes_is_told() -> None:
    assert change(row(iops=4000), size=20, iops="4000", throughput="250") == VolumeSpec(
        type="gp3", size=20, throughput=250
    )


def test_growing_makes_room_for_iops_in_the_same_change() -> None:
    with pytest.raises(InvalidArgument, match="request at least 20 GiB"):
        change(row(), iops="10000")
    assert change(row(), size=20, iops="10000") == VolumeSpec(type="gp3", size=20, iops=10000)


def test_throughput_is_measured_against_the_iops_the_volume_has() -> None:
    assert change(row(iops=4000), throughput="1000") == VolumeSpec(type="gp3", size=10, throughput=1000)
    with pytest.raises(InvalidArgument, match="set iops to at least 4000"):
        change(row(iops=3000), throughput="1000")


def test_another_type_tells_all_that_is_asked_for() -> None:
    assert change(row(), type="io2", iops="3000") == VolumeSpec(type="io2", size=10, iops=3000)
    assert change(row(type="gp2", iops=100, throughput=0), type="gp3") == VolumeSpec(type="gp3", size=10)


def test_another_type_that_does_not_suit_the_size_is_refused() -> None:
    with pytest.raises(
        InvalidArgument, match="'type' st1 does not fit this volume of 10 GiB: st1 volumes have 125 to 16384"
    ):
        change(row(), type="st1")
    with pytest.raises(InvalidArgument, match="'type' gp2 does not fit this volume of 20000 GiB"):
        change(row(size=20000), type="gp2")


def test_another_type_whose_default_does_not_suit_the_size_needs_iops() -> None:
    with pytest.raises(InvalidArgument, match=r"'iops' is required with type io1.*allows 100 to 500"):
        change(row(), type="io1")
    assert change(row(size=60), type="io1") == VolumeSpec(type="io1", size=60)


def test_growing_beyond_the_type_is_out_of_range() -> None:
    with pytest.raises(OutOfRange, match="20000 GiB is too large: gp2 volumes have 1 to 16384"):
        change(row(type="gp2"), size=20000)


def test_iops_per_gb_are_kept_up_when_the_volume_was_made_so() -> None:
    volume = row(type="io1", size=10, iops=500, throughput=0, tags={IOPS_PER_GB: "50"})

    assert change(volume, size=20) == VolumeSpec(type="io1", size=20, iops=1000)
    assert change(volume) is None
    assert change(volume, size=20, iops="600") == VolumeSpec(type="io1", size=20, iops=600)
    assert change(volume, size=20, allowAutoIOPSIncreaseOnModify="false") == VolumeSpec(type="io1", size=20)


def test_iops_never_fall_because_a_volume_grew() -> None:
    volume = row(size=10, iops=5000, tags={IOPS_PER_GB: "10"})

    assert change(volume, size=20) == VolumeSpec(type="gp3", size=20)


@pytest.mark.parametrize("text", ["", "many", "0", "-5", "²"])
def test_a_tag_that_was_edited_by_hand_is_not_kept_up(text: str) -> None:
    assert change(row(tags={IOPS_PER_GB: text}), size=20) == VolumeSpec(type="gp3", size=20)


def test_a_type_that_this_driver_does_not_know_can_grow_and_change() -> None:
    assert change(row(type="gp9", iops=1), size=70000) == VolumeSpec(type="gp9", size=70000)
    assert change(row(type="gp9", iops=1), iops="900000", throughput="9000") == VolumeSpec(
        type="gp9", size=10, iops=900000, throughput=9000
    )


def test_a_volume_beyond_the_table_can_still_grow() -> None:
    assert change(row(iops=90000), size=20) == VolumeSpec(type="gp3", size=20)


def test_what_is_reset_is_the_default_of_the_type() -> None:
    full = row(iops=6000, throughput=500, size=20)
    assert change(full, iops="default") == VolumeSpec(type="gp3", size=20, iops=3000)
    assert change(full, iops="default", throughput="default") == VolumeSpec(
        type="gp3", size=20, iops=3000, throughput=125
    )
    assert change(row(), iops="default", throughput="default") is None
    assert change(row(type="gp2", throughput=None), iops="default", throughput="default") is None
    assert change(row(type="io2", iops=500, throughput=None), type="gp3", iops="default") == VolumeSpec(
        type="gp3", size=10, iops=3000
    )


def test_a_reset_in_a_volume_attributes_class_wins_over_the_storage_class() -> None:
    given = {"iops": "4000", "throughput": "500"}
    assert made(mutable={"iops": "default"}, **given) == VolumeSpec(type="gp3", size=10, iops=3000, throughput=500)
    assert made(mutable={"throughput": "default"}, **given) == VolumeSpec(
        type="gp3", size=10, iops=4000, throughput=125
    )
    assert made(mutable={"iops": "default"}, iopsPerGB="400").iops == 3000


def test_a_type_without_default_iops_cannot_be_reset() -> None:
    for attempt in (
        lambda: change(row(type="io2", iops=500), iops="default"),
        lambda: made(mutable={"iops": "default"}, type="io1", iops="500"),
    ):
        with pytest.raises(InvalidArgument, match=r"'iops': the driver knows no default of type io[12]; set a number"):
            attempt()


@pytest.mark.parametrize("name", ["iops", "throughput"])
def test_the_default_of_a_type_that_the_driver_does_not_know_is_not_guessed(name: str) -> None:
    with pytest.raises(InvalidArgument, match=f"'{name}': the driver knows no default of type gp9"):
        change(row(type="gp9", iops=4000, throughput=500), **{name: "default"})


def test_a_ratio_is_not_kept_after_the_iops_were_reset() -> None:
    kept = row(size=10, iops=4000, tags={IOPS_PER_GB: "400"})
    assert change(kept, size=20) == VolumeSpec(type="gp3", size=20, iops=8000)
    assert change(kept, size=20, iops="default") == VolumeSpec(type="gp3", size=20, iops=3000)
