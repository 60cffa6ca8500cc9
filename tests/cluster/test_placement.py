"""On which node a volume is made, and that one name never stands for two."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from csi_multi.contract import InvalidArgument, ResourceExhausted, Unavailable

Code = grpc.StatusCode
GIB = 1 << 30


def where(cluster: Any, name: str) -> list[str]:
    """Return the nodes that have a volume of this name."""
    return [node for node, machine in cluster.machines.items() if name in machine.volumes]


@pytest.fixture
def uneven(rig: Any) -> Any:
    """Three nodes, of which the second has most room, and the first none."""
    for name, capacity in (("node-1", 0), ("node-2", 8 * GIB), ("node-3", 4 * GIB)):
        rig.machines[name].capacity = capacity
        rig.start_node(name)
    rig.start_controller()
    return rig


def test_without_a_topology_the_node_with_most_room_is_taken(uneven: Any) -> None:
    for number in range(6):
        uneven.create(f"v{number}", capacity_range={"required_bytes": GIB})

    assert len(uneven.machines["node-2"].volumes) == 5
    assert len(uneven.machines["node-3"].volumes) == 1


def test_preferred_nodes_come_first_in_their_order(uneven: Any) -> None:
    uneven.create("v", preferred=["node-3", "node-2"], nodes=["node-2", "node-3"])

    assert where(uneven, "v") == ["node-3"]


def test_a_full_node_passes_a_volume_on_to_the_next(uneven: Any) -> None:
    uneven.create("v", preferred=["node-1", "node-3"], nodes=["node-1", "node-2", "node-3"])
    uneven.create("w", preferred=["node-1"], nodes=["node-1", "node-2", "node-3"])

    assert (where(uneven, "v"), where(uneven, "w")) == (["node-3"], ["node-2"])


def test_a_node_that_is_only_preferred_may_be_passed_over_for_any_other(uneven: Any) -> None:
    uneven.create("v", preferred=["node-1"])

    assert where(uneven, "v") == ["node-2"]


def test_no_node_outside_of_the_requisite_ones_is_taken(uneven: Any, refused: Any) -> None:
    refusal = refused(uneven.attempt, name="v", nodes=["node-1"])
    several = refused(uneven.attempt, name="v", nodes=["node-1", "node-3"], capacity_range={"required_bytes": 6 * GIB})

    assert (refusal.code, several.code) == (Code.RESOURCE_EXHAUSTED, Code.RESOURCE_EXHAUSTED)
    assert "node-1: " in several.text
    assert "node-3: " in several.text
    assert where(uneven, "v") == []


def test_a_topology_without_a_node_cannot_be_served(cluster: Any, refused: Any) -> None:
    topology = {"requisite": [{"segments": {"multi.csi.example.com/zone": "a"}}]}

    refusal = refused(cluster.attempt, name="v", accessibility_requirements=topology)

    assert (refusal.code, "multi.csi.example.com/node" in refusal.text) == (Code.RESOURCE_EXHAUSTED, True)


def test_a_volume_for_a_node_that_the_cluster_does_not_have_is_scheduled_again(cluster: Any, refused: Any) -> None:
    refusal = refused(cluster.attempt, name="v", nodes=["node-9"])

    assert (refusal.code, "'node-9'" in refusal.text) == (Code.RESOURCE_EXHAUSTED, True)


@pytest.mark.parametrize("preferred", [["node-9"], ["node-9", "node-3"]])
def test_a_node_that_the_cluster_does_not_have_may_be_preferred(uneven: Any, preferred: list[str]) -> None:
    uneven.create("v", preferred=preferred)

    assert where(uneven, "v") == ["node-3" if "node-3" in preferred else "node-2"]


def test_no_second_volume_is_made_while_an_unknown_node_may_have_the_first(cluster: Any, refused: Any) -> None:
    assert refused(cluster.attempt, name="v", nodes=["node-1", "node-9"]).code is Code.UNAVAILABLE
    assert where(cluster, "v") == []


@pytest.mark.parametrize("again", [{}, {"preferred": ["node-1"], "nodes": ["node-1", "node-2", "node-3"]}])
def test_a_retry_finds_the_volume_that_an_earlier_try_made_elsewhere(uneven: Any, again: Any) -> None:
    first = uneven.create("v", preferred=["node-3"], capacity_range={"required_bytes": GIB})
    uneven.machines["node-1"].backend.config = type(uneven.machines["node-1"].backend.config)(capacity=1 << 50)

    second = uneven.create("v", capacity_range={"required_bytes": GIB}, **again)

    assert (second, where(uneven, "v")) == (first, ["node-3"])


def test_the_same_name_with_another_size_is_refused_wherever_the_first_is(uneven: Any, refused: Any) -> None:
    uneven.create("v", nodes=["node-3"], capacity_range={"required_bytes": GIB, "limit_bytes": GIB})

    refusal = refused(uneven.attempt, name="v", capacity_range={"required_bytes": 2 * GIB})

    assert (refusal.code, where(uneven, "v")) == (Code.ALREADY_EXISTS, ["node-3"])


def test_no_second_volume_is_made_while_a_node_that_may_have_the_first_is_down(cluster: Any, refused: Any) -> None:
    first = cluster.create("v", preferred=["node-2"])
    cluster.stop_node("node-2")

    refusal = refused(cluster.attempt, name="v")

    assert (refusal.code, where(cluster, "v")) == (Code.UNAVAILABLE, ["node-2"])
    assert "an earlier try may have created volume 'v'" in refusal.text
    assert "'node-2'" in refusal.text
    cluster.start_node("node-2")
    cluster.nodes.get("node-2").breaker.record_success()  # or wait for the pause to end
    cluster.start_controller()
    assert cluster.create("v") == first


def test_a_refusal_by_one_node_is_not_final_while_another_one_may_have_the_volume(cluster: Any, refused: Any) -> None:
    """The answer was lost; then one node was configured anew, and the one that has the volume does not answer."""
    cluster.create("v", preferred=["node-2"])
    cluster.machines["node-1"].backend.find_volume = refuse
    cluster.stop_node("node-2")

    assert refused(cluster.attempt, name="v").code is Code.UNAVAILABLE
    assert where(cluster, "v") == ["node-2"]


def test_a_refusal_by_one_node_does_not_hide_the_volume_of_another(cluster: Any) -> None:
    first = cluster.create("v", preferred=["node-2"])
    cluster.machines["node-1"].backend.find_volume = refuse

    assert cluster.create("v") == first


def refuse(_name: str) -> Any:
    raise InvalidArgument("this node knows no such parameter")


def test_one_node_that_is_asked_for_is_enough(cluster: Any) -> None:
    cluster.stop_node("node-2")

    assert cluster.create("v", nodes=["node-1"]).volume_id == "disk/node-1/v"


def test_after_an_answer_that_is_not_final_no_other_node_is_tried(cluster: Any, refused: Any) -> None:
    def fail(_request: Any) -> Any:
        raise Unavailable("the disk does not answer")

    cluster.machines["node-1"].backend.create_volume = fail
    refusal = refused(cluster.attempt, name="v", preferred=["node-1", "node-2"], nodes=["node-1", "node-2"])

    assert (refusal.code, where(cluster, "v")) == (Code.UNAVAILABLE, [])


def test_a_volume_that_is_still_being_made_elsewhere_is_not_made_again(cluster: Any, refused: Any) -> None:
    import threading

    began, go = threading.Event(), threading.Event()
    backend = cluster.machines["node-1"].backend
    make = backend.create_volume

    def slow(request: Any) -> Any:
        began.set()
        assert go.wait(20)
        return make(request)

    backend.create_volume = slow
    cluster.start_controller()
    early = cluster.client
    first = threading.Thread(target=lambda: cluster.create("v", nodes=["node-1"]))
    first.start()
    assert began.wait(20)
    cluster.start_controller()  # it replaces the first, whose RPC still runs
    assert cluster.client is not early
    try:
        refusal = refused(cluster.attempt, name="v", preferred=["node-2"])
    finally:
        go.set()
        first.join(20)

    assert (refusal.code, where(cluster, "v")) == (Code.ABORTED, ["node-1"])


def test_the_question_makes_nothing_and_a_full_pool_does_not_hide_a_volume(uneven: Any) -> None:
    first = uneven.create("v", nodes=["node-3"], capacity_range={"required_bytes": 4 * GIB, "limit_bytes": 4 * GIB})

    def full(_request: Any) -> Any:
        raise ResourceExhausted("full")

    uneven.machines["node-3"].backend.create_volume = full

    assert uneven.create("v", capacity_range={"required_bytes": 4 * GIB, "limit_bytes": 4 * GIB}) == first
    assert sum(len(machine.volumes) for machine in uneven.machines.values()) == 1
