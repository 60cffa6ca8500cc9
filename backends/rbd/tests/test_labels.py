"""Names in the pool, and the handles for them."""

from __future__ import annotations

import json

import pytest
from csi_multi_rbd import labels
from csi_multi_rbd.images import OwnedImages
from csi_multi_rbd.labels import Label

from csi_multi.contract import Blank, FailedPrecondition, NotFound, Setting, Source, SourceKind, Stamp
from csi_multi.host.command import LocalHost

NAMES = ["pvc-0a1b2c3d", "Pvc", "a/b", "v\t\N{ROCKET}", "x" * 128, "-", "x-looks-hashed"]


def shelf(driver: str = "d.example", cluster: str = "c", kind: str = labels.VOLUME) -> OwnedImages:
    return OwnedImages(kind, Setting(instance="i", driver=driver, cluster=cluster, node="n", host=LocalHost()))


@pytest.mark.parametrize("name", NAMES)
def test_an_image_has_a_name_that_rbd_takes_and_leads_back_to_its_handle(name: str) -> None:
    leaf = labels.leaf_for(name)

    image = shelf().name(leaf)
    assert not set(image) & set("/@ \t")
    assert image.isascii()
    assert len(image) <= 64
    assert shelf().leaf_of(image) == labels.checked_leaf("volume", leaf) == leaf


def test_names_of_different_requests_differ() -> None:
    assert len({labels.leaf_for(name) for name in NAMES}) == len(NAMES)


def test_drivers_and_clusters_that_share_a_pool_have_names_of_their_own() -> None:
    found = {shelf(*who).name("v") for who in (("d", "c"), ("d", "e"), ("f", "c"), ("dc", ""))}
    found.add(shelf("d", "c", labels.SNAPSHOT).name("v"))

    assert len(found) == 5


@pytest.mark.parametrize("image", ["", "csi-vol-", "v", "csi-vol-v", "csi-snap-00000000-v"])
def test_an_image_of_others_has_no_handle(image: str) -> None:
    assert shelf().leaf_of(image) == ""
    assert shelf().leaf_of(shelf().prefix + image.upper() + "/") == ""


@pytest.mark.parametrize("handle", ["", "a/b", "a@b", "UPPER", "-a", "a" * 44, "../x"])
def test_a_handle_of_another_shape_is_not_found(handle: str) -> None:
    with pytest.raises(NotFound):
        labels.checked_leaf("volume", handle)


def test_cuts_of_one_volume_for_copies_of_one_name_differ() -> None:
    both = {labels.temporary_snapshot(kind, "a") for kind in (labels.VOLUME, labels.SNAPSHOT)}

    assert len(both) == 2
    assert all(map(labels.is_temporary, both))
    assert not labels.is_temporary(labels.BASE_SNAPSHOT)


SIZE = 2**20
STAMP = Stamp(
    driver="d",
    cluster="c",
    name='v "\N{ROCKET}"',
    digest="0123",
    source=Source(kind=SourceKind.SNAPSHOT, handle="s"),
    context={"fsType": "ext4", "empty": ""},
)
LABEL = Label(
    image="csi-vol-1-v", stamp=STAMP, depth=3, mounter="rbd-nbd", map_options="nbd:a", annotations={"pvc": "x"}
)


def written(label: Label) -> dict[str, str]:
    return {labels.KEY: labels.encode(label)}


def test_a_label_is_read_as_it_was_written() -> None:
    assert labels.decode("csi-vol-1-v", written(LABEL), SIZE) == LABEL


def test_a_label_that_a_clone_inherited_is_not_its_own() -> None:
    assert labels.decode("csi-vol-1-clone", written(LABEL), SIZE) is None
    assert labels.decode("csi-vol-1-v", {"other": "x"}, SIZE) is None


def test_an_image_that_is_smaller_than_any_volume_is_not_finished() -> None:
    assert labels.decode("csi-vol-1-v", written(LABEL), SIZE - 1) is None


@pytest.mark.parametrize("text", ["", "{}", '{"image": "i"}', "[]", "nonsense"])
def test_a_damaged_label_is_nobodys_to_touch(text: str) -> None:
    with pytest.raises(FailedPrecondition, match=r"csi-multi of image i .*damaged"):
        labels.decode("i", {labels.KEY: text}, SIZE)


def test_a_label_of_a_newer_driver_is_not_guessed_at() -> None:
    text = labels.encode(LABEL)[:-1] + ',"version":2}'

    with pytest.raises(FailedPrecondition, match="upgrade the driver"):
        labels.decode("csi-vol-1-v", {labels.KEY: text}, SIZE)


@pytest.mark.parametrize(
    ("source", "how_far", "blank"),
    [
        (None, "", Blank.ZEROED),
        (None, labels.FORMATTING, Blank.INTERRUPTED),
        (None, labels.FORMATTED, Blank.NEVER),
        (STAMP.source, "", Blank.NEVER),
        (STAMP.source, labels.FORMATTING, Blank.NEVER),  # inherited from what it was copied of
    ],
)
def test_only_an_empty_volume_can_be_blank(source: Source | None, how_far: str, blank: Blank) -> None:
    label = Label(image="i", stamp=Stamp(driver="d", cluster="c", name="n", digest="", source=source))

    assert labels.blank_state(label, {labels.FORMAT: how_far} if how_far else {}) is blank


def test_the_keys_of_the_json_text_never_change() -> None:
    """Labels on existing images have them."""
    label = Label(image="csi-snap-1-s", stamp=STAMP, created=1.5, original_name="data", annotations={"pvc": "x"})

    assert json.loads(labels.encode(label)).keys() == {"image", "stamp", "cut", "was", "people"}


@pytest.mark.parametrize(
    "text",
    [
        '{"image": "i", "stamp": {"driver": "d", "cluster": "c", "name": "n", "digest": ""}, ' + field + "}"
        for field in ('"cut": 1e300', '"cut": -1', '"source": "a\\u0000"', f'"source": "{"x" * 300}"')
    ]
    + ['{"a":' * 50_000],
)
def test_a_value_that_no_label_can_hold_is_damage(text: str) -> None:
    with pytest.raises(FailedPrecondition, match=r"csi-multi of image i .*damaged"):
        labels.decode("i", {labels.KEY: text}, SIZE)
