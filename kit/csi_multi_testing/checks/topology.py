"""Topology: volumes are created in the requested segments, and report where they are reachable (csi-spec 2.4)."""

from __future__ import annotations

from dataclasses import replace

from csi_multi.contract import AlreadyExists, InvalidArgument, ResourceExhausted, Segments, TopologyRequirement, Volume
from csi_multi.contract import backend as b
from csi_multi.contract.ids import NODE
from csi_multi.core.topology import is_inside, satisfies

from ..assertions import CheckSkipped, expect, same
from ..check import check
from ..context import CheckContext
from ..counting import expect_nothing_left
from ..protocol import Target


def required(*places: Segments, preferred: tuple[Segments, ...] = ()) -> TopologyRequirement:
    return TopologyRequirement(requisite=places, preferred=preferred)


def expect_satisfied(t: CheckContext, volume: Volume, *places: Segments, what: str) -> None:
    found = t.client.places(volume)
    expect(satisfies(found, required(*places)), f"{what}: the volume is reachable only from {list(found)}")


def expect_valid_segments(segments: Segments, what: str) -> None:
    """Require segments that CSI allows and returns unchanged."""
    for key, value in segments.items():
        expect(isinstance(key, str) and NODE.fullmatch(key), f"{what}: key {key!r} is not 1 to 63 of A-Za-z0-9-_.")
        expect(
            isinstance(value, str) and NODE.fullmatch(value), f"{what}: {key}={value!r} is not 1 to 63 of A-Za-z0-9-_."
        )
        expect(key == key.lower(), f"{what}: key {key!r} is returned as {key.lower()!r}; keys must be lower case")


def expect_same_segments(t: CheckContext) -> None:
    """Require that a node and a volume have the same segment keys, also after a restart."""
    offered = t.client.segments()
    volume = t.volume()
    places = t.client.places(volume)
    expect(offered, "this node has no segments, so it cannot use any volume of this backend")
    expect_valid_segments(offered, "node_segments")
    for place in places:
        expect_valid_segments(place, "Volume.topology")
        odd = sorted(set(place) - set(offered))
        expect(
            not odd, f"Volume.topology names {odd}, which this node does not have: the volume is reachable from nowhere"
        )
    t.client.restart()
    same(t.client.segments(), offered, "node_segments of the next process")
    same(t.client.places(t.client.get(volume.handle)), places, "Volume.topology after a restart")
    if b.ListVolumes in t.features:
        found = [one for one in t.client.list_volumes().items if one.handle == volume.handle]
        if found:
            same(t.client.places(found[0]), places, "Volume.topology in list_volumes")


@check(b.Topology)
def nodes_and_volumes_have_the_same_segment_keys(t: CheckContext) -> None:
    expect_same_segments(t)


@check(b.Topology, target=Target.BACKEND)
def the_node_segment_is_the_name_of_the_node(t: CheckContext) -> None:
    found = t.backend.node_segments().get("node", t.backend.setting.node)
    same(found, t.backend.setting.node, "node_segments()['node'], which node-local backends in the same driver use too")


@check(b.Topology, needs=("reachable",))
def a_volume_is_created_in_its_requisite_segments(t: CheckContext) -> None:
    for place in t.storage.reachable:
        for wanted in (place, {**place, "of-another-instance": "here"}):
            made = t.volume(topology=required(wanted))
            expect_satisfied(t, made, wanted, what=f"create_volume for {wanted}")


def two_places(t: CheckContext) -> tuple[Segments, Segments]:
    if len(t.storage.reachable) < 2:
        raise CheckSkipped("Storage.reachable has one entry; the preferred one can be tested only with two")
    return t.storage.reachable[0], t.storage.reachable[1]


@check(b.Topology, needs=("reachable",))
def a_volume_is_created_in_its_preferred_segments(t: CheckContext) -> None:
    places = two_places(t)
    for preferred in (places, places[::-1]):
        made = t.volume(topology=required(*places, preferred=preferred))
        expect_satisfied(t, made, preferred[0], what=f"create_volume, anywhere of {places}, {preferred[0]} preferred")


@check(b.Topology, needs=("reachable", "unreachable"))
def unreachable_segments_are_refused_and_nothing_is_created(t: CheckContext) -> None:
    spec = t.spec(topology=required(*t.storage.unreachable))
    before = t.resources()
    with t.refused(ResourceExhausted, what=f"create_volume, only for {list(t.storage.unreachable)}"):
        t.create(spec)
    expect_nothing_left(t, before, "a refused creation")
    place = t.storage.reachable[0]
    made = t.create(replace(spec, topology=required(place)))
    expect_satisfied(t, made, place, what=f"create_volume again, for {place}")


@check(b.Topology, needs=("reachable", "unreachable"))
def the_reachable_one_of_many_segments_is_used(t: CheckContext) -> None:
    there = t.storage.reachable[0]
    places = (*t.storage.unreachable, there)
    for preferred in ((), places):
        made = t.volume(topology=required(*places, preferred=preferred))
        expect_satisfied(t, made, there, what=f"create_volume, anywhere of {list(places)}, preferred {list(preferred)}")


@check(b.Topology, needs=("unreachable",))
def unreachable_preferred_segments_do_not_prevent_a_creation(t: CheckContext) -> None:
    try:
        t.volume(topology=required(preferred=t.storage.unreachable))
    except (ResourceExhausted, InvalidArgument) as error:
        what = f"create_volume with nothing required and {list(t.storage.unreachable)} preferred"
        expect(False, f"{what}: {error}; the contract requires a volume in any segments")


@check(b.Topology, needs=("reachable", "unreachable"))
def a_volume_in_other_segments_is_a_conflict(t: CheckContext) -> None:
    spec = t.spec(topology=required(t.storage.reachable[0]))
    made = t.create(spec)

    same(t.create(spec), made, "create_volume, repeated for the same segments")
    other = replace(spec, topology=required(*t.storage.unreachable))
    if satisfies(t.client.places(made), other.topology):
        raise CheckSkipped(f"the volume is reachable from {list(t.storage.unreachable)}, too")
    with t.refused(AlreadyExists, what="create_volume, repeated for segments from which the volume is not reachable"):
        t.create(other)
    same(t.client.get(made.handle), made, "get_volume after a request for its name in other segments")


@check(b.Topology, needs=("reachable",))
def a_volume_is_reachable_from_the_node_it_was_created_for(t: CheckContext) -> None:
    here = t.client.segments()
    if not any(is_inside(here, place) for place in t.storage.reachable):
        raise CheckSkipped("Storage.reachable has no segments of this node")
    made = t.volume(topology=required(here))
    expect_satisfied(t, made, here, what=f"create_volume for this node, {here}")


@check(b.Topology, b.Clone, needs=("reachable",))
def a_copy_is_in_its_requisite_segments_or_refused(t: CheckContext) -> None:
    """A storage need not copy between segments, but it must not create the copy in other segments."""
    source_volume = t.volume(topology=required(t.storage.reachable[0]))
    for place in t.storage.reachable:
        try:
            made = t.copy(source_volume, topology=required(place))
        except ResourceExhausted as error:
            what = f"clone_volume for {place}, the segments of its source: {error}"
            expect(not satisfies(t.client.places(source_volume), required(place)), what)
        else:
            expect_satisfied(t, made, place, what=f"clone_volume for {place}")
