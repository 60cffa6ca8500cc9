"""Backends whose volumes are reachable from some places only: right ones, and broken ones that the checks see."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from csi_multi_testing import memory
from csi_multi_testing.check import CHECKS, Outcome, State, run
from csi_multi_testing.checks import capacity, node_local, topology
from csi_multi_testing.context import CheckContext, features_of
from csi_multi_testing.csi_wire import CsiClient
from csi_multi_testing.fault_injection import Call, FaultInjector
from csi_multi_testing.memory import MemoryBackend
from csi_multi_testing.protocol import Target
from csi_multi_testing.storage import Storage, setting

from csi_multi.contract import (
    AlreadyExists,
    CapacityReport,
    CapacityRequest,
    Device,
    Host,
    InvalidArgument,
    NotFound,
    OpenRequest,
    ResourceExhausted,
    Segments,
    Strings,
    Volume,
    VolumeRequest,
    WrongNode,
    leaf,
    missing,
)
from csi_multi.contract import backend as b

ZONES = ("a", "b")
OUT = "out-of-reach"
ROOM = 1 << 40  # bytes of the largest volume on one node


class Zonal(b.Topology, MemoryBackend):
    """Volumes live in one of two zones."""

    def node_segments(self) -> Segments:
        return {"zone": ZONES[0]}

    def _put(self, request: VolumeRequest, default: int) -> Volume:
        zone = self.choose(request)
        made = super()._put(request, default)
        self.storage.volumes[made.handle] = replace(made, topology=({"zone": zone},))
        return self.get_volume(made.handle)

    def choose(self, request: VolumeRequest) -> str:
        """Return the best zone. Raises ResourceExhausted."""
        wanted = request.topology
        required = [place.get("zone") for place in wanted.requisite] if wanted else []
        preferred = [place.get("zone") for place in wanted.preferred] if wanted else []
        for zone in (*preferred, *required, *(() if required else ZONES)):
            if zone in ZONES and zone in (required or ZONES):
                return str(zone)
        raise ResourceExhausted(f"no volume can be made in {required}")

    def capacity(self, request: CapacityRequest) -> CapacityReport:
        if request.segments is not None and request.segments.get("zone") not in ZONES:
            return CapacityReport(available=0)
        return super().capacity(request)


def zonal(kind: type[MemoryBackend] = Zonal, **given: Any) -> Callable[[], Storage]:
    def storage() -> Storage:
        places = {"reachable": tuple({"zone": zone} for zone in ZONES), "unreachable": ({"zone": OUT},)}
        return memory.storage(kind, **(places | given))

    storage.__name__ = kind.__name__
    return storage


class Clinging(Zonal):
    """Copies beside the source, wherever it was asked for."""

    def choose(self, request: VolumeRequest) -> str:
        return ZONES[0] if request.source else super().choose(request)


class Sourced(Zonal):
    """Knows places of empty volumes only."""

    def choose(self, request: VolumeRequest) -> str:
        if request.source:
            raise ResourceExhausted("no copy there")
        return super().choose(request)


class Silent(Zonal):
    def node_segments(self) -> Segments:
        return {}


class Shouting(Zonal):
    def node_segments(self) -> Segments:
        return {"Zone": ZONES[0]}


class Addressed(Zonal):
    """Has a place whose name CSI cannot carry."""

    def node_segments(self) -> Segments:
        return {"zone": ZONES[0], "rack": "10.0.0.1/24"}


class Renamed(Zonal):
    """Calls the node's place otherwise than the volume's."""

    def node_segments(self) -> Segments:
        return {"region": "r", "datacenter": "d"}


class Nodal(Zonal):
    def node_segments(self) -> Segments:
        return {"zone": ZONES[0], "node": "10.0.0.1"}


class Homebound(Zonal):
    """Makes all volumes in one zone."""

    def choose(self, request: VolumeRequest) -> str:
        return ZONES[0]


class Elsewhere(Zonal):
    """Takes the last place that it knows for one that it does not understand."""

    def choose(self, request: VolumeRequest) -> str:
        return ZONES[1]


class Unwishing(Zonal):
    """Looks at what is required only."""

    def choose(self, request: VolumeRequest) -> str:
        wanted = request.topology
        return super().choose(replace(request, topology=wanted and replace(wanted, preferred=())))


class Literal(Zonal):
    """Takes a place for its own only when it is described by nothing else."""

    def choose(self, request: VolumeRequest) -> str:
        if request.topology and any(set(place) != {"zone"} for place in request.topology.requisite):
            raise ResourceExhausted("no such place")
        return super().choose(request)


class Hasty(Zonal):
    """Looks at the first place only."""

    def choose(self, request: VolumeRequest) -> str:
        wanted = request.topology
        if wanted and wanted.candidates[0].get("zone") not in ZONES:
            raise ResourceExhausted("no volume can be made there")
        return super().choose(request)


class Binding(Zonal):
    """Takes a wish for a condition."""

    def choose(self, request: VolumeRequest) -> str:
        wanted = request.topology
        if wanted and not wanted.requisite:
            return super().choose(replace(request, topology=replace(wanted, requisite=wanted.preferred)))
        return super().choose(request)


class Strict(Zonal):
    """Calls a place that cannot be served a mistake."""

    def choose(self, request: VolumeRequest) -> str:
        try:
            return super().choose(request)
        except ResourceExhausted as error:
            raise InvalidArgument(str(error)) from None


class Late(Zonal):
    """Finds out about the place when the bytes are there already."""

    def _put(self, request: VolumeRequest, default: int) -> Volume:
        self.storage.data[leaf(request.name)] = {}
        return super()._put(request, default)


class Moving(Zonal):
    """Moves a volume to where it is asked for."""

    def _put(self, request: VolumeRequest, default: int) -> Volume:
        try:
            return super()._put(request, default)
        except ResourceExhausted:
            found = self.storage.volumes.get(leaf(request.name))
            if found is None or request.topology is None:
                raise
            self.storage.volumes[found.handle] = replace(found, topology=request.topology.requisite)
            raise AlreadyExists("moved") from None


class Everywhere(Zonal):
    """Tells the same capacity for any place."""

    def capacity(self, request: CapacityRequest) -> CapacityReport:
        return MemoryBackend.capacity(self, request)


class Narrow(Zonal):
    """Has capacity where the place is described by nothing else."""

    def capacity(self, request: CapacityRequest) -> CapacityReport:
        odd = request.segments is not None and set(request.segments) != {"zone"}
        return CapacityReport(available=0) if odd else super().capacity(request)


Rows = dict[str, Volume]


class Local(b.NodeLocal, b.Capacity):
    """Volumes on this node, in memory: <node>/<leaf>."""

    contract = (1, 0)

    def __init__(self, config: Any, setting: b.Setting, rows: Rows) -> None:
        super().__init__(config, setting)
        self.rows = rows

    def node_of(self, handle: str) -> str:
        node, slash, rest = handle.partition("/")
        if not (node and slash and rest and node.replace("-", "").isalnum()):
            raise missing("volume", handle)
        return node

    def create_volume(self, request: VolumeRequest) -> Volume:
        handle = f"{self.setting.node}/{leaf(request.name)}"
        if handle in self.rows:
            raise AlreadyExists(f"volume {request.name!r} exists")
        size = request.size.choose()
        if size > ROOM:
            raise ResourceExhausted(f"{size} bytes do not fit")
        self.rows[handle] = Volume(handle=handle, size=size, stamp=request.stamp)
        return self.rows[handle]

    def find_volume(self, name: str) -> Volume:
        return self.get_volume(f"{self.setting.node}/{leaf(name)}")

    def get_volume(self, handle: str) -> Volume:
        if self.node_of(handle) != self.setting.node:
            raise WrongNode(f"volume {handle!r} lives on another node than {self.setting.node!r}")
        return self.look(handle)

    def look(self, handle: str) -> Volume:
        if handle not in self.rows:
            raise missing("volume", handle)
        return self.rows[handle]

    def delete_volume(self, handle: str, secrets: Strings) -> None:
        del self.rows[self.get_volume(handle).handle]

    def open_device(self, request: OpenRequest) -> Device:
        raise NotImplementedError

    def find_device(self, handle: str) -> Device | None:
        return None

    def close_device(self, handle: str) -> None:
        """Nothing is ever open."""

    def capacity(self, request: CapacityRequest) -> CapacityReport:
        return CapacityReport(available=ROOM, maximum=ROOM)


def local(kind: type[Local] = Local, **given: Any) -> Callable[[], Storage]:
    def storage() -> Storage:
        rows: Rows = {}

        def connect(host: Host) -> b.Backend:
            return kind(None, setting(host), rows)

        calls = (Call(owner=kind, name="look"),)
        return Storage(connect=connect, resources=lambda: list(rows), calls=calls, **given)

    storage.__name__ = kind.__name__
    return storage


class Looking(Local):
    """Asks the storage where a volume is."""

    def node_of(self, handle: str) -> str:
        node = super().node_of(handle)
        if node == self.setting.node:
            self.look(handle)
        return node


class Anywhere(Local):
    """Says that everything is here."""

    def node_of(self, handle: str) -> str:
        super().node_of(handle)
        return self.setting.node


class Splitting(Local):
    """Takes what stands before a slash, there or not."""

    def node_of(self, handle: str) -> str:
        return handle.split("/")[0]


class Nameless(Local):
    """Does not put the node first."""

    def __init__(self, *words: Any) -> None:
        super().__init__(*words)
        self.setting = replace(self.setting, node=f"{self.setting.node}.example")

    def create_volume(self, request: VolumeRequest) -> Volume:
        node, self.setting = self.setting, replace(self.setting, node="node-1")
        try:
            return super().create_volume(request)
        finally:
            self.setting = node


class Lax(Local):
    """Looks at the end of a handle only: nobody would ask for another node's volumes here."""

    def get_volume(self, handle: str) -> Volume:
        return super().get_volume(f"{self.setting.node}/{handle.rpartition('/')[2]}")


class Roaming(Local):
    """Says on every second start that the node is called otherwise."""

    starts = 0

    def __init__(self, config: Any, setting: b.Setting, rows: Rows) -> None:
        type(self).starts += 1
        super().__init__(config, replace(setting, node=f"{setting.node}{self.starts}"), rows)


class Wandering(Local):
    """Gives a volume to a node that was preferred, wherever this is."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        here = self.setting
        for place in (*(request.topology.preferred if request.topology else ()),):
            self.setting = replace(here, node=place["node"])
        try:
            return super().create_volume(request)
        finally:
            self.setting = here


class Adrift(Local):
    """Says that a place out of its reach is not found."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        if request.topology and any(place["node"] != self.setting.node for place in request.topology.requisite):
            raise NotFound("no such node")
        return super().create_volume(request)


class Nowhere(Local):
    """Has capacity only where no place is asked for."""

    def capacity(self, request: CapacityRequest) -> CapacityReport:
        return CapacityReport(available=0 if request.segments else ROOM)


BROKEN = [
    (topology.nodes_and_volumes_have_the_same_segment_keys, zonal(Silent), "this node has no segments"),
    (topology.nodes_and_volumes_have_the_same_segment_keys, zonal(Shouting), "keys are lower case"),
    (topology.nodes_and_volumes_have_the_same_segment_keys, zonal(Addressed), "rack='10.0.0.1/24' is not"),
    (
        topology.nodes_and_volumes_have_the_same_segment_keys,
        zonal(Renamed),
        "names ['zone'], which this node does not have",
    ),
    (topology.the_node_segment_is_the_name_of_the_node, zonal(Nodal), "node_segments()['node']"),
    (
        topology.a_volume_is_created_in_its_requisite_segments,
        zonal(Homebound),
        "create_volume for {'zone': 'b'}: it is",
    ),
    (topology.a_volume_is_created_in_its_requisite_segments, zonal(Literal), "no such place"),
    (
        topology.a_volume_is_created_in_its_preferred_segments,
        zonal(Unwishing),
        "{'zone': 'b'} preferred: the volume is reachable",
    ),
    (
        topology.unreachable_segments_are_refused_and_nothing_is_created,
        zonal(Strict),
        "the contract requires ResourceExhausted",
    ),
    (topology.unreachable_segments_are_refused_and_nothing_is_created, zonal(Homebound), "succeeded"),
    (
        topology.unreachable_segments_are_refused_and_nothing_is_created,
        zonal(Late),
        "resources remaining after a refused creation",
    ),
    (topology.the_reachable_one_of_many_segments_is_used, zonal(Hasty), "no volume can be made there"),
    (
        topology.unreachable_preferred_segments_do_not_prevent_a_creation,
        zonal(Binding),
        "the contract requires a volume in any segments",
    ),
    (topology.a_volume_in_other_segments_is_a_conflict, zonal(Moving), "succeeded"),
    (topology.a_volume_is_reachable_from_the_node_it_was_created_for, zonal(Elsewhere), "create_volume for this node"),
    (topology.a_copy_is_in_its_requisite_segments_or_refused, zonal(Clinging), "clone_volume for {'zone': 'b'}: it is"),
    (
        topology.a_copy_is_in_its_requisite_segments_or_refused,
        zonal(Sourced),
        "the segments of its source: no copy there",
    ),
    (capacity.unreachable_segments_have_no_capacity, zonal(Everywhere), "where no volume can be created"),
    (capacity.reachable_segments_have_capacity, zonal(Narrow), "where volumes can be created, is 0 bytes"),
    (node_local.the_node_and_its_volumes_have_the_same_segments, local(Roaming), "of the next process"),
    (node_local.a_handle_starts_with_the_name_of_its_node, local(Nameless), "does not start with the node's name"),
    (node_local.the_node_of_a_handle_is_known_without_a_call_to_the_storage, local(Looking), "node_of made calls"),
    (
        node_local.the_node_of_a_handle_is_known_without_a_call_to_the_storage,
        local(Anywhere),
        "the contract requires 'node-10'",
    ),
    (node_local.a_handle_without_a_node_is_not_found, local(Splitting), "node_of('?'): succeeded"),
    (
        node_local.a_volume_is_created_on_this_node_or_not_at_all,
        local(Wandering),
        "the node of a volume for this or another node",
    ),
    (node_local.a_volume_is_created_on_this_node_or_not_at_all, local(Adrift), "no such node"),
    (node_local.a_handle_of_another_node_is_refused, local(Lax), "a handle of another node"),
    (capacity.other_nodes_have_no_capacity, local(Nowhere), "the segments of this node, is 0 bytes"),
]


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)


def about(feature: type[b.Backend]) -> list[Any]:
    return [pytest.param(one, id=one.name) for one in CHECKS.values() if feature in one.features]


@pytest.mark.parametrize("one", about(b.Topology))
def test_a_backend_with_zones_passes(judged: Callable[..., Outcome], one: Any) -> None:
    outcome = judged(one.body, zonal())

    assert outcome.state is State.PASSED, outcome.text


@pytest.mark.parametrize("one", about(b.NodeLocal))
def test_a_backend_of_one_node_passes(judged: Callable[..., Outcome], one: Any) -> None:
    outcome = judged(one.body, local())

    assert outcome.state is State.PASSED, outcome.text


@pytest.mark.parametrize(
    ("feature", "make"), [(b.Topology, zonal()), (b.NodeLocal, local())], ids=["zones", "one node"]
)
def test_both_pass_over_the_wire(driver_of: Any, tmp_path: Path, feature: type[b.Backend], make: Any) -> None:
    storage = make()
    client = CsiClient(storage, "kit", driver_of(storage, tmp_path))
    wired = [one for one in CHECKS.values() if feature in one.features and one.target is not Target.BACKEND]

    features = features_of(type(storage.backend()))
    outcomes = [run(one, CheckContext(storage, client, features, FaultInjector())) for one in wired]

    client.close()
    assert {one.check.name: one.text for one in outcomes if one.state is not State.PASSED} == {}
