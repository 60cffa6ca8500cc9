"""What is written on images."""

from __future__ import annotations

import pytest
from csi_multi_rbd import stamps
from csi_multi_rbd.stamps import Label

from csi_multi.contract import Blank, FailedPrecondition, Source, SourceKind, Stamp

SIZE = 2**20
STAMP = Stamp(
    driver="d",
    cluster="c",
    name='v "\N{ROCKET}"',
    digest="0123",
    source=Source(kind=SourceKind.SNAPSHOT, handle="s"),
    context={"fsType": "ext4", "empty": ""},
)
LABEL = Label(image="csi-vol-1-v", stamp=STAMP, depth=3, mounter="rbd-nbd", map_options="nbd:a", people={"pvc": "x"})


def written(label: Label) -> dict[str, str]:
    return {stamps.KEY: stamps.text(label)}


def test_a_label_is_read_as_it_was_written() -> None:
    assert stamps.read("csi-vol-1-v", written(LABEL), SIZE) == LABEL


def test_a_label_that_a_clone_inherited_is_not_its_own() -> None:
    assert stamps.read("csi-vol-1-clone", written(LABEL), SIZE) is None
    assert stamps.read("csi-vol-1-v", {"other": "x"}, SIZE) is None


def test_an_image_that_is_smaller_than_any_volume_is_not_finished() -> None:
    assert stamps.read("csi-vol-1-v", written(LABEL), SIZE - 1) is None


@pytest.mark.parametrize("text", ["", "{}", '{"image": "i"}', "[]", "nonsense"])
def test_a_damaged_label_is_nobodys_to_touch(text: str) -> None:
    with pytest.raises(FailedPrecondition, match=r"csi-multi of image i .*damaged"):
        stamps.read("i", {stamps.KEY: text}, SIZE)


def test_a_label_of_a_newer_driver_is_not_guessed_at() -> None:
    text = stamps.text(LABEL)[:-1] + ',"version":2}'

    with pytest.raises(FailedPrecondition, match="upgrade the driver"):
        stamps.read("csi-vol-1-v", {stamps.KEY: text}, SIZE)


@pytest.mark.parametrize(
    ("source", "how_far", "blank"),
    [
        (None, "", Blank.ZEROED),
        (None, stamps.FORMATTING, Blank.INTERRUPTED),
        (None, stamps.FORMATTED, Blank.NEVER),
        (STAMP.source, "", Blank.NEVER),
        (STAMP.source, stamps.FORMATTING, Blank.NEVER),  # inherited from what it was copied of
    ],
)
def test_only_an_empty_volume_can_be_blank(source: Source | None, how_far: str, blank: Blank) -> None:
    label = Label(image="i", stamp=Stamp(driver="d", cluster="c", name="n", digest="", source=source))

    assert stamps.blank(label, {stamps.FORMAT: how_far} if how_far else {}) is blank
