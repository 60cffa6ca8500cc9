"""Backends with wrong topology, and the checks that find it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from csi_multi_testing.check import CHECKS, CheckState, Outcome, run
from csi_multi_testing.checks import topology
from csi_multi_testing.context import CheckContext, features_of
from csi_multi_testing.csi_wire import CsiClient
from csi_multi_testing.fault_injection import FaultInjector
from csi_multi_testing.protocol import Target

from csi_multi.contract import (
    AlreadyExists,
    InvalidArgument,
    ResourceExhausted,
    Segments,
    Volume,
    VolumeRequest,
    leaf,
)
from csi_multi.contract import backend as b

from .placed import ZONES, Zonal, about, local, zonal


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


BROKEN = [
    (topology.nodes_and_volumes_have_the_same_segment_keys, zonal(Silent), "this node has no segments"),
    (topology.nodes_and_volumes_have_the_same_segment_keys, zonal(Shouting), "keys must be lower case"),
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
        "create_volume for {'zone': 'b'}: the volume is reachable",
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
        "a refused creation: remaining: ",
    ),
    (topology.the_reachable_one_of_many_segments_is_used, zonal(Hasty), "no volume can be made there"),
    (
        topology.unreachable_preferred_segments_do_not_prevent_a_creation,
        zonal(Binding),
        "the contract requires a volume in any segments",
    ),
    (topology.a_volume_in_other_segments_is_a_conflict, zonal(Moving), "succeeded"),
    (topology.a_volume_is_reachable_from_the_node_it_was_created_for, zonal(Elsewhere), "create_volume for this node"),
    (
        topology.a_copy_is_in_its_requisite_segments_or_refused,
        zonal(Clinging),
        "clone_volume for {'zone': 'b'}: the volume is reachable",
    ),
    (
        topology.a_copy_is_in_its_requisite_segments_or_refused,
        zonal(Sourced),
        "the segments of its source: no copy there",
    ),
]


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)


@pytest.mark.parametrize("one", about(b.Topology))
def test_a_backend_with_zones_passes(judged: Callable[..., Outcome], one: Any) -> None:
    outcome = judged(one.body, zonal())

    assert outcome.state is CheckState.PASSED, outcome.text


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
    assert {one.check.name: one.text for one in outcomes if one.state is not CheckState.PASSED} == {}
