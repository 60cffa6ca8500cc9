"""The ids of groups across backends, and the names and notes of their snapshots."""

from __future__ import annotations

import pytest

from csi_multi.contract import InvalidArgument, NotFound, ids
from csi_multi.core import mixed_groups
from csi_multi.core.mixed_groups import MemberPlace, MixedGroup

ONE, TWO = MemberPlace("one", "n1"), MemberPlace("two", "n1")


def group(*places: MemberPlace, name: str = "g") -> MixedGroup:
    return MixedGroup(mixed_groups.key_of(name), places)


def test_the_longest_id_is_short_enough_for_csi() -> None:
    longest = group(MemberPlace("i" * ids.MAX_INSTANCE, "n" * ids.MAX_NODE), TWO, name="g" * 500)

    assert len(longest.id) <= ids.MAX_ID
    assert mixed_groups.parse(longest.id) == (longest.places[0], longest.key)


def test_no_backend_can_have_such_an_id() -> None:
    with pytest.raises(NotFound):
        ids.split("group snapshot", group(ONE, TWO).id)
    assert not mixed_groups.is_mixed("one/n1/g")


@pytest.mark.parametrize(
    "text", ["~", "~one", "~one/n1", "~one/n1/g", "~one/n 1/{key}", "~One/n1/{key}", "one/n1/{key}"]
)
def test_an_id_of_another_form_does_not_exist(text: str) -> None:
    with pytest.raises(NotFound, match="does not exist"):
        mixed_groups.parse(text.format(key=mixed_groups.key_of("g")))


@pytest.mark.parametrize("places", [(ONE, TWO), (ONE, ONE, TWO), (ONE,) * 300, (ONE, MemberPlace("one", "n2"), TWO)])
def test_every_snapshot_notes_where_all_members_are(places: tuple[MemberPlace, ...]) -> None:
    made = group(*places)

    assert mixed_groups.noted(made.key, made.notes()) == made
    assert mixed_groups.group_of(made.notes()) == made.id


def test_what_others_have_noted_is_no_group() -> None:
    made = group(ONE, TWO)

    assert mixed_groups.noted(made.key, {}) is None
    assert mixed_groups.noted(made.key, {**made.notes(), mixed_groups.MEMBERS: "one/n1"}) is None
    assert mixed_groups.noted(made.key, {**made.notes(), mixed_groups.MEMBERS: "two/n1=2"}) is None
    assert mixed_groups.noted(mixed_groups.key_of("other"), made.notes()) is None


def test_a_group_in_too_many_places_to_note_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="too many"):
        group(*(MemberPlace("one", f"node-{number}-{'n' * 40}") for number in range(30))).notes()


def test_the_names_of_its_snapshots_are_recognised_in_handles() -> None:
    made = group(ONE, TWO)

    for name in (made.member(0), made.member(12), made.mark):
        assert ids.leaf(name) == name, "a backend keeps the name as it is"
        assert mixed_groups.may_be_member(f"n1/{name}")
        assert mixed_groups.is_named(f"n1/{name}", name)
    assert not mixed_groups.may_be_member("n1/snapshot-5")
    assert not mixed_groups.may_be_member("snap-0abc")
