"""A StorageClass's parameters become lvcreate's arguments, or are refused with the key, the rule and the remedy."""

import pytest
from csi_multi_lvm import layout as layouts
from csi_multi_lvm.config import Config, Parameters
from csi_multi_lvm.layout import MIB, TYPES, Layout

from csi_multi.contract import FailedPrecondition, InvalidArgument

THICK = Config(volume_group="vg0")
THIN = Config(volume_group="vg0", thin_pool="pool0")
EXTENT = 4 * MIB


def of(config=THICK, **parameters):
    return layouts.requested(Parameters(**parameters), config)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"type": "linear"}, "--type linear"),
        ({"type": "striped"}, "--type striped --stripes 2"),
        ({"type": "striped", "stripes": 3, "stripe_size": 65536}, "--type striped --stripes 3 --stripesize 65536b"),
        ({"type": "raid1"}, "--type raid1 --mirrors 1"),
        ({"type": "raid1", "mirrors": 2}, "--type raid1 --mirrors 2"),
        ({"type": "raid5"}, "--type raid5 --stripes 2"),
        ({"type": "raid6"}, "--type raid6 --stripes 3"),
        ({"type": "raid10"}, "--type raid10 --stripes 2 --mirrors 1"),
        ({"type": "raid1", "integrity": True}, "--type raid1 --mirrors 1"),
        ({"type": "linear", "lvcreate_options": "--alloc=cling"}, "--type linear --alloc cling"),
    ],
)
def test_a_type_becomes_arguments_for_lvcreate(parameters, words):
    assert " ".join(of(**parameters).arguments()) == words


def test_a_thin_volume_has_no_arguments_except_its_options():
    assert of(THIN, type="thin").arguments() == ()
    assert of(THIN, lvcreate_options="--readahead 256").arguments() == ("--readahead", "256")


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        (THICK, "linear"),
        (THIN, "thin"),
        (Config(volume_group="vg0", thin_pool="pool0", type="raid1"), "raid1"),
    ],
)
def test_without_a_type_the_instance_decides(config, kind):
    assert of(config).type == kind


@pytest.mark.parametrize(
    ("kind", "images"),
    [("thin", 1), ("linear", 1), ("striped", 2), ("raid1", 2), ("raid5", 3), ("raid6", 5), ("raid10", 4)],
)
def test_a_layout_knows_how_many_disks_it_needs_and_whether_one_may_fail(kind, images):
    layout = of(THIN, type=kind)

    assert layout.images == images
    assert layout.redundant == kind.startswith("raid")


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"type": "raid1", "stripes": 2}, "'stripes': type raid1 is not striped; remove it"),
        ({"type": "linear", "stripes": 2}, "'stripes': type linear is not striped"),
        ({"type": "raid6", "stripes": 2}, "'stripes': type raid6 allows 3 to 62, not 2"),
        ({"type": "raid5", "stripes": 64}, "'stripes': type raid5 allows 2 to 63, not 64"),
        ({"type": "raid10", "stripes": 33}, "'stripes': type raid10 allows 2 to 32"),
        ({"type": "raid5", "mirrors": 1}, "'mirrors': type raid5 has no mirrors; .* raid1, raid10"),
        ({"type": "raid10", "mirrors": 2}, "'mirrors': type raid10 allows 1 to 1, not 2"),
        ({"type": "linear", "integrity": True}, "'integrity': type linear has no second copy .* RAID"),
        ({"type": "raid1", "stripe_size": 65536}, "'stripeSize': type raid1 is not striped"),
        ({"type": "striped", "stripe_size": 6144}, "'stripeSize': 6144 is not a power of two .* choose 4096 or 8192"),
        ({"type": "thin"}, "'type': thin needs a thin pool.* set thin_pool"),
        (
            {"type": "linear", "lvcreate_options": "--regionsize 2m"},
            "'lvcreateOptions': --regionsize is not valid for type linear",
        ),
    ],
)
def test_contradicting_parameters_are_refused(parameters, message):
    with pytest.raises(InvalidArgument, match=message):
        of(**parameters)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"wipe": "zero"}, "'wipe': type thin never shows old data"),
        ({"wipe": "none"}, "'wipe'"),
        ({"lvcreate_options": "--alloc cling"}, "--alloc is not valid for type thin"),
        ({"stripes": 2}, "'stripes': type thin"),
        ({"mirrors": 1}, "'mirrors': type thin"),
        ({"integrity": True}, "'integrity': type thin"),
    ],
)
def test_parameters_of_thick_volumes_are_refused_for_thin_ones(parameters, message):
    with pytest.raises(InvalidArgument, match=message):
        of(THIN, **parameters)


@pytest.mark.parametrize(
    ("kind", "extents"), [("linear", 10), ("striped", 10), ("raid1", 10), ("raid5", 10), ("raid6", 12), ("raid10", 10)]
)
def test_sizes_are_rounded_up_to_full_stripes(kind, extents):
    layout = of(type=kind)

    assert layout.extents(10 * EXTENT, EXTENT) == extents
    assert layout.extents(10 * EXTENT - 1, EXTENT) == extents


@pytest.mark.parametrize(  # measured with lvs -a: one rmeta extent per image, whatever the extent size
    ("kind", "extents", "physical"),
    [
        ("linear", 10, 10),
        ("striped", 12, 12),
        ("raid1", 10, 22),
        ("raid5", 12, 21),
        ("raid6", 12, 25),
        ("raid10", 12, 28),
    ],
)
def test_a_volume_takes_extents_for_copies_parity_and_raid_metadata(kind, extents, physical):
    assert of(type=kind).physical(extents, EXTENT) == physical


def test_a_thin_volume_takes_no_extents_of_the_group():
    assert of(THIN, type="thin").physical(1000, EXTENT) == 0


@pytest.mark.parametrize(
    ("image", "metadata"),
    [
        (4, 8),
        (496, 8),
        (500, 12),
        (512, 12),
        (516, 16),
        (1024, 20),
        (1028, 44),
        (4096, 68),
        (4100, 100),
        (10240, 148),
    ],
)
def test_integrity_takes_4_mib_per_500_and_a_journal_beside_each_image(image, metadata):
    layout = of(type="raid1", integrity=True)

    extents = image * MIB // EXTENT
    assert layout.physical(extents, EXTENT) == 2 * (extents + 1 + metadata * MIB // EXTENT)


def test_integrity_takes_whole_extents():
    assert of(type="raid1", integrity=True).physical(1, 128 * MIB) == 2 * (1 + 1 + 1)


@pytest.mark.parametrize(
    ("parameters", "whole"),
    [
        ({"type": "raid1"}, False),
        ({"type": "raid1", "integrity": True}, True),
        ({"type": "linear", "lvcreate_options": "--alloc cling"}, True),
        ({"type": "linear", "lvcreate_options": "--contiguous y"}, True),
        ({"type": "linear", "lvcreate_options": "--contiguous n"}, False),
        ({"type": "linear", "lvcreate_options": "--alloc normal"}, False),
    ],
)
def test_some_layouts_keep_an_image_on_one_disk(parameters, whole):
    assert of(**parameters).keeps_images_together == whole


@pytest.mark.parametrize("kind", TYPES)
def test_a_layout_can_be_read_from_its_tag(kind):
    layout = of(THIN, type=kind)

    assert layouts.from_tag(layouts.to_tag(layout)) == layout


@pytest.mark.parametrize(
    "parameters",
    [
        {"type": "raid10", "stripes": 3, "stripe_size": 65536, "integrity": True},
        {"type": "raid1", "mirrors": 2, "lvcreate_options": "--alloc cling_by_tags --regionsize 2m"},
    ],
)
def test_a_tag_contains_all_parameters_of_the_layout(parameters):
    layout = of(**parameters)
    text = layouts.to_tag(layout)

    assert layouts.from_tag(text) == layout
    assert set(text) <= set("abcdefghijklmnopqrstuvwxyz0123456789_=:")


def test_a_tag_can_be_read_by_people():
    assert layouts.to_tag(of(type="raid5", stripe_size=65536)) == "raid5:stripes=2:stripesize=65536"
    assert layouts.from_tag("linear") == Layout(type="linear")


@pytest.mark.parametrize(
    "text", ["", "raid7", "raid5:stripes=two", "linear:alloc=mine", "raid5:strips=3", "linear:nosync"]
)
def test_a_tag_that_cannot_be_read_is_an_error(text):
    with pytest.raises(FailedPrecondition, match="cannot be read"):
        layouts.from_tag(text)
