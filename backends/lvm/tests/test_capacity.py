"""The reported capacity can be created, and no more; a refusal gives the reason and a remedy."""

from dataclasses import replace

import pytest
from csi_multi_lvm import capacity
from csi_multi_lvm import layout as layouts
from csi_multi_lvm.config import Config, Parameters
from csi_multi_lvm.layout import MIB, TYPES
from csi_multi_lvm.report import Group, LogicalVolume, PhysicalVolume, Report
from hypothesis import given
from hypothesis import strategies as st

from csi_multi.contract import (
    FailedPrecondition,
    InvalidArgument,
    OutOfRange,
    ResourceExhausted,
    StorageError,
    Unavailable,
)

EXTENT = 4 * MIB
PLENTY = 2**18  # bytes of metadata
THICK = [kind for kind in TYPES if kind != "thin"]


def config(**more):
    return Config(volume_group="vg0", **{"thin_pool": "pool0", "reserve_percent": 0, "min_size": EXTENT, **more})


def of(kind, **parameters):
    return layouts.requested(Parameters(type=kind, **parameters), config())


def disk(free, extents=None, **more):
    return PhysicalVolume(name=f"/dev/sd{free}", extents=free if extents is None else extents, free=free, **more)


def pool(size, **more):
    layout = frozenset({"thin", "pool"})
    return LogicalVolume(name="pool0", uuid="", size=size, layout=layout, **{"zeroing": True, **more})


def thin(name, size, pool="pool0", **more):
    return LogicalVolume(name=name, uuid="", size=size, layout=frozenset({"thin", "sparse"}), pool=pool, **more)


def thick(size):
    return LogicalVolume(name="v1", uuid="", size=size, layout=frozenset({"linear"}))


def group(*disks, volumes=(), extent_size=EXTENT, metadata_free=PLENTY, missing=0):
    disks = tuple(disk(one) if isinstance(one, int) else one for one in disks)
    return Report(
        group=Group(
            name="vg0",
            extent_size=extent_size,
            extents=sum(one.extents for one in disks),
            free=sum(one.free for one in disks),
            missing=missing,
            metadata_free=metadata_free,
        ),
        volumes={one.name: one for one in volumes},
        disks=disks,
    )


def extents(report, layout, cfg=None):
    return capacity.capacity(report, layout, cfg or config()).available // EXTENT


# Thick volumes


@pytest.mark.parametrize(  # each measured with lvcreate: so many extents could be created, one stripe more was refused
    ("disks", "kind", "parameters", "most"),
    [
        ((10, 10, 10, 10), "linear", {}, 40),
        ((10, 10, 10, 10), "striped", {}, 40),
        ((10, 10, 10, 10), "striped", {"stripes": 3}, 30),
        ((10, 10, 10, 10), "raid1", {}, 19),
        ((10, 10, 10, 10), "raid1", {"mirrors": 2}, 9),
        ((10, 10, 10, 10), "raid5", {}, 18),
        ((10, 10, 10, 10), "raid10", {}, 18),
        ((10, 7, 5, 3), "linear", {}, 25),
        ((10, 7, 5, 3), "striped", {}, 24),
        ((10, 7, 5, 3), "striped", {"stripes": 3}, 21),
        ((10, 7, 5, 3), "raid1", {}, 11),
        ((10, 7, 5, 3), "raid1", {"mirrors": 2}, 6),
        ((10, 7, 5, 3), "raid5", {}, 12),
        ((10, 7, 5, 3), "raid10", {}, 4),
        ((10, 10, 5, 5), "striped", {}, 30),
        ((10, 10, 5, 5), "striped", {"stripes": 3}, 30),
        ((10, 10, 5, 5), "raid1", {}, 14),
        ((10, 10, 5, 5), "raid1", {"mirrors": 2}, 9),
        ((10, 10, 5, 5), "raid5", {}, 18),
        ((10, 10, 5, 5), "raid10", {}, 8),
        ((20, 3, 3, 3), "striped", {}, 18),
        ((20, 3, 3, 3), "raid1", {}, 8),
        ((20, 3, 3, 3), "raid10", {}, 4),
        ((9, 8, 7, 6, 5), "striped", {}, 30),
        ((9, 8, 7, 6, 5), "striped", {"stripes": 3}, 30),
        ((9, 8, 7, 6, 5), "raid1", {}, 14),
        ((9, 8, 7, 6, 5), "raid10", {}, 12),
        ((9, 8, 7, 6, 5, 4), "striped", {}, 38),
        ((9, 8, 7, 6, 5, 4), "striped", {"stripes": 3}, 39),
        ((9, 8, 7, 6, 5, 4), "raid1", {}, 18),
        ((12, 9, 9, 7, 4, 2), "striped", {}, 42),
        ((12, 9, 9, 7, 4, 2), "striped", {"stripes": 3}, 39),
        ((12, 9, 9, 7, 4, 2), "raid1", {}, 20),
        ((13, 11, 6, 5, 3), "striped", {}, 36),
        ((13, 11, 6, 5, 3), "striped", {"stripes": 3}, 33),
        ((13, 11, 6, 5, 3), "raid1", {}, 17),
    ],
)
def test_the_capacity_of_a_group_is_what_lvcreate_can_allocate(disks, kind, parameters, most):
    assert extents(group(*disks), of(kind, **parameters)) == most


def test_a_layout_that_needs_more_disks_than_there_are_has_no_capacity():
    assert extents(group(10, 10), of("raid5")) == 0
    with pytest.raises(ResourceExhausted, match=r"never fit into volume group vg0.*each volume needs 3 at once"):
        capacity.admit(group(10, 10), of("raid5"), EXTENT, config())


def test_disks_that_lvm_allocates_nothing_on_do_not_count():
    assert extents(group(10, disk(10, allocatable=False)), of("linear")) == 10
    assert extents(group(10, disk(10, allocatable=False)), of("raid1")) == 0


@pytest.mark.parametrize(("kind", "most"), [("linear", 35), ("striped", 34), ("raid1", 16)])
def test_the_reserve_stays_free_whatever_the_layout(kind, most):
    assert extents(group(10, 10, 10, 10), of(kind), config(reserve_percent=11)) == most


def test_a_reserve_that_is_used_up_leaves_no_capacity():
    assert extents(group(disk(1, extents=100)), of("linear"), config(reserve_percent=5)) == 0


def test_creations_that_the_disks_do_not_show_yet_count():
    report = group(10, 10)
    newer = replace(report, group=replace(report.group, free=5))

    assert extents(newer, of("linear")) == 5


def test_an_image_that_must_stay_together_gets_one_disk():
    report = group(10, 8, 6)

    assert extents(report, of("linear")) == 24
    assert extents(report, of("linear", lvcreate_options="--alloc contiguous")) == 10
    assert extents(report, of("striped", lvcreate_options="--alloc cling")) == 16


def test_integrity_metadata_takes_space_of_each_image():
    report = group(200, 200)

    assert extents(report, of("raid1")) == 199
    assert extents(report, of("raid1", integrity=True)) == 195  # 780 MiB: 4 MiB of rmeta, 8 + 8 MiB of integrity


@pytest.mark.parametrize("kind", list(TYPES))
def test_a_group_with_a_missing_disk_has_no_capacity_and_the_error_has_the_remedy(kind):
    volumes = [pool(100 * EXTENT)]
    for report in (
        group(10, 10, 10, 10, 10, volumes=volumes, missing=1),
        group(10, disk(10, missing=True), volumes=volumes),
    ):
        assert extents(report, of(kind)) == 0
        with pytest.raises(ResourceExhausted, match=r"missing.*vgreduce --removemissing vg0"):
            capacity.admit(report, of(kind), EXTENT, config())


@pytest.mark.parametrize("kind", list(TYPES))
def test_nothing_is_admitted_when_the_metadata_may_not_suffice(kind):
    report = group(10, 10, 10, 10, 10, volumes=[pool(100 * EXTENT)], metadata_free=16 * 2**10)

    assert extents(report, of(kind)) == 0
    with pytest.raises(ResourceExhausted, match="the metadata of volume group vg0 has 16384 bytes left"):
        capacity.admit(report, of(kind), EXTENT, config())


def test_a_stripe_size_that_lvm_would_reduce_is_refused():
    layout = of("striped", stripe_size=2 * EXTENT)

    assert extents(group(10, 10), layout) == 0
    with pytest.raises(InvalidArgument, match=f"'stripeSize'.*choose at most {EXTENT}"):
        capacity.admit(group(10, 10), layout, EXTENT, config())
    capacity.admit(group(10, 10), of("striped", stripe_size=EXTENT), EXTENT, config())


def test_what_does_not_fit_now_and_what_never_fits_have_different_messages():
    report = group(disk(4, extents=10), disk(4, extents=10))

    with pytest.raises(
        ResourceExhausted, match=rf"vg0 has {8 * EXTENT} bytes left .* for a linear volume, {9 * EXTENT} were requested"
    ):
        capacity.admit(report, of("linear"), 9 * EXTENT, config())
    capacity.admit(report, of("linear"), 8 * EXTENT, config())
    capacity.admit(group(10, 10), of("linear"), 20 * EXTENT, config())
    with pytest.raises(ResourceExhausted, match=rf"never fit.*at most {20 * EXTENT} bytes"):
        capacity.admit(report, of("linear"), 21 * EXTENT, config())


# Thin volumes


def test_the_capacity_of_a_pool_is_its_size_times_overprovision():
    report = group(1, volumes=[pool(100 * EXTENT)])

    assert extents(report, of("thin")) == 100
    assert extents(report, of("thin"), config(overprovision=1.1)) == 110
    assert extents(report, of("thin"), config(overprovision=1.005)) == 100


def test_all_volumes_and_snapshots_of_the_pool_count_whoever_created_them():
    volumes = [thin("ours", 10 * EXTENT), thin("foreign", 20 * EXTENT), thin("snap", 10 * EXTENT, origin="ours")]
    others = [thin("elsewhere", 50 * EXTENT, pool="pool1"), thick(50 * EXTENT)]

    assert extents(group(1, volumes=[pool(100 * EXTENT), *volumes, *others]), of("thin")) == 60


def test_an_overcommitted_pool_has_nothing_left():
    report = group(1, volumes=[pool(10 * EXTENT), thin("v1", 50 * EXTENT)])

    assert extents(report, of("thin")) == 0
    with pytest.raises(
        ResourceExhausted,
        match=r"thin pool vg0/pool0 has 0 bytes left within its overprovisioning.*raise overprovision",
    ):
        capacity.admit(report, of("thin"), EXTENT, config())


@pytest.mark.parametrize(
    ("full", "option"), [({"data_percent": 90.0}, "-L"), ({"metadata_percent": 91.5}, "--poolmetadatasize")]
)
def test_a_pool_that_is_nearly_full_refuses_new_volumes(full, option):
    report = group(1, volumes=[pool(100 * EXTENT, **full)])

    assert extents(report, of("thin")) == 0
    with pytest.raises(ResourceExhausted, match=rf"is 9[01.5]+ % full.*lvextend {option} \+SIZE vg0/pool0"):
        capacity.admit(report, of("thin"), EXTENT, config())
    assert extents(report, of("thin"), config(pool_full_percent=95)) == 100


def test_a_pool_below_its_limit_is_used():
    assert extents(group(1, volumes=[pool(100 * EXTENT, data_percent=89.99, metadata_percent=10.0)]), of("thin")) == 100


def test_a_pool_that_shows_old_data_is_refused_with_the_remedy():
    report = group(1, volumes=[pool(100 * EXTENT, zeroing=False)])

    assert extents(report, of("thin")) == 0
    with pytest.raises(FailedPrecondition, match="lvchange --zero y vg0/pool0"):
        capacity.admit(report, of("thin"), EXTENT, config())


@pytest.mark.parametrize("volumes", [[], [replace(thick(EXTENT), name="pool0")]])
def test_a_pool_that_does_not_exist_makes_capacity_unavailable(volumes):
    report = group(10, volumes=volumes)

    with pytest.raises(Unavailable, match=r"vg0/pool0"):
        capacity.capacity(report, of("thin"), config())
    with pytest.raises(Unavailable, match=r"vg0/pool0"):
        capacity.admit(report, of("thin"), EXTENT, config())


def test_a_thin_volume_that_never_fits_into_the_pool_is_refused_as_such():
    report = group(1, volumes=[pool(10 * EXTENT), thin("v1", 5 * EXTENT)])

    with pytest.raises(ResourceExhausted):
        capacity.admit(report, of("thin"), 10 * EXTENT, config())
    with pytest.raises(ResourceExhausted, match="never fit into thin pool vg0/pool0"):
        capacity.admit(report, of("thin"), 11 * EXTENT, config())


# Bounds


def test_a_volume_is_no_larger_than_the_instance_allows():
    report, bounded = group(100), config(max_size=10 * EXTENT + 1)

    found = capacity.capacity(report, of("linear"), bounded)
    assert (found.available, found.maximum, found.minimum) == (100 * EXTENT, 10 * EXTENT, EXTENT)
    capacity.admit(report, of("linear"), 10 * EXTENT, bounded)
    with pytest.raises(OutOfRange, match="max_size"):
        capacity.admit(report, of("linear"), 11 * EXTENT, bounded)


def test_less_space_than_the_smallest_volume_is_no_capacity():
    found = capacity.capacity(group(3, 3), of("striped"), config(min_size=7 * EXTENT))

    assert (found.available, found.maximum, found.minimum) == (0, 0, 8 * EXTENT)


# Growth


def test_a_thin_volume_grows_while_the_pool_has_capacity():
    volume = thin("v1", 10 * EXTENT)
    report = group(1, volumes=[pool(20 * EXTENT), volume])

    capacity.admit_growth(report, volume, of("thin"), 20 * EXTENT, config())
    with pytest.raises(ResourceExhausted):
        capacity.admit_growth(report, volume, of("thin"), 21 * EXTENT, config())
    full = group(1, volumes=[pool(20 * EXTENT, data_percent=95.0), volume])
    with pytest.raises(ResourceExhausted, match="full"):
        capacity.admit_growth(full, volume, of("thin"), 11 * EXTENT, config())


@pytest.mark.parametrize(
    ("kind", "more"), [("linear", 40), ("striped", 40), ("raid1", 20), ("raid5", 20), ("raid10", 20)]
)
def test_a_thick_volume_grows_by_what_its_layout_can_use_of_the_free_extents(kind, more):
    report, volume = group(10, 10, 10, 10), thick(10 * EXTENT)

    capacity.admit_growth(report, volume, of(kind), (10 + more) * EXTENT, config())
    with pytest.raises(ResourceExhausted, match=r"cannot grow by .* bytes in volume group vg0.*extents"):
        capacity.admit_growth(report, volume, of(kind), (10 + more) * EXTENT + 1, config())


def test_growth_keeps_the_reserve_the_bounds_and_needs_all_disks():
    report, volume = group(100), thick(10 * EXTENT)

    with pytest.raises(ResourceExhausted):
        capacity.admit_growth(report, volume, of("linear"), 106 * EXTENT, config(reserve_percent=5))
    with pytest.raises(OutOfRange):
        capacity.admit_growth(report, volume, of("linear"), 21 * EXTENT, config(max_size=20 * EXTENT))
    with pytest.raises(ResourceExhausted, match="missing"):
        capacity.admit_growth(group(100, missing=1), volume, of("linear"), 11 * EXTENT, config())


def test_a_volume_that_is_large_enough_needs_no_space():
    volume = thick(10 * EXTENT)

    capacity.admit_growth(group(disk(0, extents=10), missing=1), volume, of("linear"), 10 * EXTENT, config())


# For all


@st.composite
def storages(draw):
    """A group with a pool, a layout and a configuration, all of any kind."""
    kind = draw(st.sampled_from(list(TYPES)))
    more = {"integrity": draw(st.booleans())} if TYPES[kind].redundant else {}
    if kind != "thin":
        more["lvcreate_options"] = draw(st.sampled_from(["", "--alloc cling"]))
    size = draw(st.sampled_from([MIB, EXTENT, 32 * MIB]))
    used = draw(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300)), max_size=8))
    volumes = [pool(draw(st.integers(1, 300)) * size), thin("v1", draw(st.integers(0, 400)) * size)]
    report = group(*(disk(free, extents=free + more) for free, more in used), volumes=volumes, extent_size=size)
    cfg = config(
        reserve_percent=draw(st.integers(0, 90)),
        overprovision=draw(st.floats(1, 10)),
        min_size=draw(st.integers(512, 20 * EXTENT)),
        max_size=draw(st.sampled_from([0, 100 * EXTENT])),
    )
    return report, of(kind, **more), cfg


def test_the_maximum_holds_for_the_rounded_size():
    bounded = config(max_size=11 * EXTENT)

    assert capacity.capacity(group(10, 10), of("striped"), bounded).maximum == 10 * EXTENT
    with pytest.raises(OutOfRange, match="max_size"):
        capacity.admit(group(10, 10), of("striped"), 10 * EXTENT + 1, bounded)


@given(storages())
def test_the_capacity_is_admitted_and_one_row_of_extents_more_is_not(storage):
    report, layout, cfg = storage
    found = capacity.capacity(report, layout, cfg)
    row = report.group.extent_size * layout.data

    assert found.maximum <= found.available
    assert found.maximum % row == 0
    if found.maximum:
        assert found.minimum <= found.maximum
        capacity.admit(report, layout, found.maximum, cfg)
        with pytest.raises((OutOfRange, ResourceExhausted)):
            capacity.admit(report, layout, found.maximum + 1, cfg)


@given(storages(), st.integers(1, 4000))
def test_what_is_admitted_leaves_the_reserve_free(storage, size):
    report, layout, cfg = storage
    try:
        capacity.admit(report, layout, size * MIB, cfg)
    except StorageError:
        return
    taken = layout.physical(layout.extents(size * MIB, report.group.extent_size), report.group.extent_size)
    reserve = report.group.extents * cfg.reserve_percent / 100 if not layout.thin else 0
    assert taken <= report.group.free - reserve or layout.thin


# By the cached report


class Reports:
    """A cache whose report is older than the fresh one."""

    def __init__(self, fresh):
        self._fresh = fresh
        self.read = 0

    def fresh(self):
        self.read += 1
        return self._fresh


def test_what_fits_by_an_old_report_is_admitted_without_a_fresh_one():
    reports = Reports(group(0))
    capacity.CapacityAccounting(config(), reports).admit(group(10), of("linear"), EXTENT)

    assert reports.read == 0


def test_nothing_is_refused_by_an_old_report():
    reports = Reports(group(10))
    capacity.CapacityAccounting(config(), reports).admit(group(0), of("linear"), EXTENT)

    assert reports.read == 1
    with pytest.raises(ResourceExhausted):
        capacity.CapacityAccounting(config(), Reports(group(0))).admit(group(0), of("linear"), EXTENT)


def test_the_reported_capacity_is_read_anew():
    accounting = capacity.CapacityAccounting(config(), Reports(group(7)))

    assert accounting.report(Parameters(type="linear")).available == 7 * EXTENT
