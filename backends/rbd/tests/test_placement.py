"""Which of an instance's pools a volume may be in, and which of them a node reaches."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from csi_multi_rbd import placement
from csi_multi_rbd.config import Config, Parameters
from csi_multi_rbd.pool_rules import OtherPool

from csi_multi.contract import FailedPrecondition, InvalidArgument, ResourceExhausted, TopologyRequirement
from csi_multi.contract.params import parse

A, B, C, NOWHERE = {"zone": "a"}, {"zone": "b"}, {"zone": "c"}, {"zone": "x"}


def configs() -> tuple[Config, ...]:
    return Config(
        monitors=("10.0.0.1",),
        fsid="5f1c9a52-6d0e-4a4b-9f61-2f1d7c0e8b11",
        user="csi",
        pool="k8s",
        data_pool="k8s-ec",
        topology=A,
        nodes=("a-*",),
        pools={
            "b": OtherPool(topology=B, nodes=("b-*",)),
            "c": OtherPool(topology=C, nodes=("c-*", "far-*"), data_pool="c-ec"),
            "all": OtherPool(),
        },
    ).pool_configs()


def parameters(**values: str) -> Parameters:
    return parse(Parameters, values, "parameters")


def listed(*pools: str, **more: Any) -> str:
    """Return pools of an instance as ceph-csi's classes name them."""
    places = {"k8s": "a", "b": "b", "c": "c"}
    return json.dumps(
        [
            {
                "poolName": one,
                "domainSegments": [{"domainLabel": "topology.kubernetes.io/zone", "value": places[one]}],
                **more,
            }
            for one in pools
        ]
    )


def names(found: list[Config]) -> list[str]:
    return [one.pool for one in found]


def test_another_pool_has_what_the_instance_has_but_its_place_and_data_pool() -> None:
    found = {one.pool: (one.topology, one.nodes, one.data_pool, one.user, dict(one.pools)) for one in configs()}

    assert found == {
        "k8s": (A, ("a-*",), "k8s-ec", "csi", {}),
        "b": (B, ("b-*",), "", "csi", {}),
        "c": (C, ("c-*", "far-*"), "c-ec", "csi", {}),
        "all": ({}, ("*",), "", "csi", {}),
    }


@pytest.mark.parametrize(
    ("requisite", "preferred", "wanted"),
    [
        ((), (), ["k8s", "b", "c", "all"]),
        ((B,), (), ["b", "all"]),
        ((C, B), (), ["c", "all", "b"]),
        ((A, B, C), (C, A), ["c", "all", "k8s", "b"]),
        ((), (B,), ["b", "all", "k8s", "c"]),
        ((NOWHERE,), (), ["all"]),
        ((A, {**B, "node": "n"}), ({**B, "node": "n"},), ["b", "all", "k8s"]),
    ],
)
def test_the_first_preferred_pool_that_a_requisite_place_reaches_comes_first(
    requisite: tuple[dict[str, str], ...], preferred: tuple[dict[str, str], ...], wanted: list[str]
) -> None:
    topology = TopologyRequirement(requisite=requisite, preferred=preferred)

    assert names(placement.by_topology([*configs()], topology)) == wanted


def test_without_a_pool_for_a_requisite_place_the_next_node_is_tried() -> None:
    with pytest.raises(ResourceExhausted, match="no requisite topology matches that; set allowedTopologies"):
        placement.by_topology([*configs()[:2]], TopologyRequirement(requisite=(C,)))


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, ["k8s", "b", "c", "all"]),
        ({"pool": "b"}, ["b"]),
        ({"topologyConstrainedPools": listed("c", "k8s")}, ["k8s", "c"]),
        ({"topologyConstrainedPools": listed("c"), "pool": "k8s"}, ["c"]),
        ({"topologyConstrainedPools": listed("c", dataPool="c-ec")}, ["c"]),
        ({"topologyConstrainedPools": "[]"}, ["k8s", "b", "c", "all"]),
    ],
)
def test_a_class_may_name_some_of_the_pools(given: dict[str, str], wanted: list[str]) -> None:
    assert names(placement.allowed(configs(), parameters(**given))) == wanted


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"pool": "d"}, "'pool' 'd' is not a pool of this instance, which has 'k8s', 'b', 'c', 'all'; leave it out"),
        (
            {"topologyConstrainedPools": listed("b").replace('"b"', '"d"', 1)},
            "'topologyConstrainedPools' 'd' is not a pool of this instance",
        ),
        (
            {"topologyConstrainedPools": listed("b").replace('"value": "b"', '"value": "a"')},
            "pool 'b' has the segments {'zone': 'a'}, and the instance's `topology` for it is {'zone': 'b'}",
        ),
        ({"topologyConstrainedPools": listed("b", dataPool="ec")}, "the instance's `data_pool` for it is ''"),
    ],
)
def test_a_class_that_contradicts_the_instance_is_refused(given: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        placement.allowed(configs(), parameters(**given))

    assert says in str(refused.value)


@pytest.mark.parametrize(("node", "segments"), [("a-1", A), ("b-1", B), ("far-1", C), ("d-1", {})])
def test_a_node_has_the_segments_of_the_pools_that_it_reaches(node: str, segments: dict[str, str]) -> None:
    assert placement.node_segments(configs(), node) == segments


def test_a_node_that_reaches_no_pool_has_no_segments_to_tell() -> None:
    with pytest.raises(FailedPrecondition, match=r"none of `nodes`, a-\*, b-\*; add it there if it does"):
        placement.node_segments(configs()[:2], "c-1")


def test_a_node_is_in_one_place_only() -> None:
    with pytest.raises(FailedPrecondition, match=r"zone=a and zone=b \(pool 'b'\); a node has one value"):
        placement.node_segments([msgspec.structs.replace(one, nodes=("*",)) for one in configs()], "a-1")
