"""What users write is typed, and every refusal names the key, the rule and the remedy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal

import msgspec
import pytest
from csi_multi_testing.memory import MutableParameters

from csi_multi.contract import RESET, Doc, InvalidArgument, Keys, Reset, Schema
from csi_multi.contract.params import camel, describe, normalize_keys, parse, resettable


class Disk(Schema, frozen=True, kw_only=True):
    sector_size: Annotated[Literal[512, 4096], Doc("bytes per sector")] = 512
    medium: Annotated[Literal["hdd", "ssd"], Doc("what it is made of")] = "hdd"
    iops: Annotated[int, Doc("operations per second", ge=100, le=1000)] | None = None
    encrypted: Annotated[bool, Doc("whether it is unreadable without a key")] = False
    tag: Annotated[str, Doc("a label", pattern=r"^[a-z]+\Z")] = "none"
    tags: Annotated[dict[str, str], Keys(r"tagSpecification_\d+", "tags to set")] = msgspec.field(default_factory=dict)


class Loose(Disk, frozen=True, kw_only=True):
    loose: ClassVar[bool] = True

    more: Annotated[dict[str, str], Keys(r"\d+Drop_(A|B).*|keep", "others")] = msgspec.field(default_factory=dict)


class Pool(Schema, frozen=True):
    pool_name: Annotated[str, Doc("where volumes are made")]


@pytest.fixture
def refusal() -> Callable[..., str]:
    def text(schema: type[Schema], **values: str) -> str:
        with pytest.raises(InvalidArgument) as found:
            parse(schema, values, "parameters", also=("backend",))
        return str(found.value)

    return text


def test_text_becomes_typed_values() -> None:
    given = {"sectorSize": "4096", "medium": "ssd", "iops": "500", "encrypted": "true"}

    assert parse(Disk, given, "parameters") == Disk(sector_size=4096, medium="ssd", iops=500, encrypted=True)


def test_a_field_is_known_by_its_camel_case_name() -> None:
    assert camel("sector_size") == "sectorSize"
    assert camel("iops") == "iops"


def test_abbreviations_that_users_know_in_capitals_keep_them() -> None:
    assert camel("iops_per_gb") == "iopsPerGB"
    assert camel("allow_auto_iops_per_gb_increase") == "allowAutoIOPSPerGBIncrease"


@pytest.mark.parametrize(
    ("given", "nearest"),
    [("sector_size", "sectorSize"), ("sectorsize", "sectorSize"), ("Medium", "medium"), ("backand", "backend")],
)
def test_an_unknown_key_is_refused_with_the_nearest_valid_one(given: str, nearest: str, refusal: Any) -> None:
    assert refusal(Disk, **{given: "x"}) == f"parameters: unknown key {given!r}; did you mean {nearest!r}?"


def test_a_key_like_no_other_is_refused_with_all_valid_ones(refusal: Any) -> None:
    text = refusal(Pool, zzzz="x")

    assert text == "parameters: unknown key 'zzzz'; valid keys: backend, poolName"


def test_a_schema_without_fields_takes_no_key() -> None:
    with pytest.raises(InvalidArgument, match="valid keys: none"):
        parse(Schema, {"zzzz": "x"}, "parameters")


@pytest.mark.parametrize(
    ("key", "value", "rule"),
    [
        ("medium", "tape", "hdd, ssd"),
        ("sectorSize", "513", "512, 4096"),
        ("sectorSize", "many", "512, 4096"),
        ("iops", "99", "100"),
        ("iops", "1001", "1000"),
        ("iops", "fast", "integer"),
        ("iops", "", "integer"),
        ("encrypted", "perhaps", "boolean"),
        ("tag", "A", "[a-z]+"),
        ("tag", "a\n", "[a-z]+"),
    ],
)
def test_a_bad_value_is_refused_with_the_key_and_what_it_takes(key: str, value: str, rule: str, refusal: Any) -> None:
    text = refusal(Disk, **{key: value})

    assert text.startswith(f"parameters: {key!r}: ")
    assert rule in text


def test_a_missing_key_is_named_as_users_write_it(refusal: Any) -> None:
    assert refusal(Pool) == "parameters: 'poolName' is required"


def test_a_pattern_collects_its_keys() -> None:
    found = parse(Disk, {"tagSpecification_1": "a=b", "tagSpecification_22": "c=d"}, "parameters")

    assert found.tags == {"tagSpecification_1": "a=b", "tagSpecification_22": "c=d"}


@pytest.mark.parametrize("key", ["tagSpecification_", "tagSpecification_x", "xtagSpecification_1"])
def test_a_key_that_almost_fits_a_pattern_is_refused_with_the_pattern(key: str, refusal: Any) -> None:
    assert r"tagSpecification_\d+" in refusal(Disk, **{key: "x"})


def test_a_collecting_field_cannot_be_named_itself(refusal: Any) -> None:
    text = refusal(Disk, tags="x")

    assert "unknown key 'tags'" in text
    assert "did you mean 'tags'" not in text


def test_bounds_of_the_memory_backend_hold(refusal: Any) -> None:
    assert "'iops'" in refusal(MutableParameters, iops="0")
    assert parse(MutableParameters, {"iops": "5"}, "parameters").iops == 5


def test_a_schema_describes_itself() -> None:
    rows = {name: (kind, default, text) for name, kind, default, text in describe(Disk)}

    assert rows["sector_size"] == ("512, 4096", "512", "bytes per sector")
    assert rows["iops"][0] == "integer ≥ 100 ≤ 1000"
    assert rows["encrypted"][1] == "false"
    assert next(describe(Pool))[2] == "required"


def test_a_description_survives_an_optional_type() -> None:
    assert {name: text for name, *_, text in describe(Disk)}["iops"] == "operations per second"


# Schemas for classes of drivers that do not care about capitals.


@pytest.mark.parametrize("change", [str, str.lower, str.upper, str.title, str.swapcase])
def test_a_loose_schema_takes_keys_in_any_capitals(change: Callable[[str], str]) -> None:
    wanted = {"sectorSize": "4096", "iops": "500", "tagSpecification_1": "a=B", "blockSize": "1024"}
    given = {change(key): value for key, value in wanted.items()}

    assert normalize_keys(Loose, given, "parameters", also=["blockSize"]) == wanted
    del given[change("blockSize")]
    assert parse(Loose, given, "parameters") == Loose(sector_size=4096, iops=500, tags={"tagSpecification_1": "a=B"})


def test_what_a_pattern_collects_is_spelled_alike_as_far_as_the_pattern_says() -> None:
    assert normalize_keys(Loose, {"1DROP_axY": "", "KEEP": ""}, "parameters") == {"1drop_axy": "", "keep": ""}


def test_values_keep_their_capitals_and_empty_ones_mean_nothing_to_a_loose_schema(refusal: Any) -> None:
    assert parse(Loose, {"medium": "", "encrypted": "", "iops": "", "TAG": ""}, "parameters") == Loose()
    assert "invalid enum value 'SSD'" in refusal(Loose, medium="SSD")
    assert "'encrypted'" in refusal(Disk, encrypted="")


@pytest.mark.parametrize(
    ("first", "second"),
    [("iops", "Iops"), ("tagSpecification_1", "TagSpecification_1"), ("blockSize", "blocksize"), ("keep", "Keep")],
)
def test_one_key_in_two_spellings_is_refused(first: str, second: str) -> None:
    with pytest.raises(
        InvalidArgument, match=f"parameters: '{first}' and '{second}' mean the same.*remove one of them"
    ):
        normalize_keys(Loose, {first: "500", second: "500"}, "parameters", also=["blockSize"])


def test_a_loose_schema_still_refuses_unknown_keys_with_the_nearest_one(refusal: Any) -> None:
    assert refusal(Loose, SectorSiz="") == "parameters: unknown key 'SectorSiz'; did you mean 'sectorSize'?"


def test_a_schema_that_says_nothing_keeps_to_its_capitals() -> None:
    assert normalize_keys(Disk, {"IOPS": "", "iops": "5"}, "parameters") == {"IOPS": "", "iops": "5"}


class Resettable(Schema, frozen=True):
    iops: Annotated[int, Doc("operations per second", ge=1)] | Reset | None = None
    tier: Annotated[Literal["hdd", "ssd"], Doc("medium")] | Reset | None = None
    kind: Annotated[Literal["x"] | Reset | None, Doc("described as a whole")] = None
    name: Annotated[str, Doc("a text, which may be any word")] | None = None


def test_a_value_that_is_reset_is_neither_unset_nor_a_value() -> None:
    def of(**values: str) -> Resettable:
        return parse(Resettable, values, "mutable_parameters")

    assert (of().iops, of(iops="default").iops, of(iops="5").iops, of(tier="default").tier) == (None, RESET, 5, RESET)
    assert resettable(Resettable) == ["iops", "tier", "kind"]
    with pytest.raises(InvalidArgument, match="'defualt'; it takes: integer ≥ 1 or default"):
        of(iops="defualt")
