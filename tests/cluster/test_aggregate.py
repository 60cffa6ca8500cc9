"""Lists over all nodes are complete or refused; capacity is what can be had now."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from csi_multi_testing.memory import MemoryBackend

from csi_multi._proto import csi_pb2 as pb
from csi_multi.cluster.aggregate import AggregatedPage
from csi_multi.contract import UNLIMITED, CapacityReport, CapacityRequest, Health, HealthEntry
from csi_multi.contract import backend as b
from csi_multi.rpc.listing import MAX_BYTES

Code = grpc.StatusCode
GIB = 1 << 30
DRIVER = "multi.csi.example.com"


def at(node: str) -> dict[str, Any]:
    return {"accessible_topology": {"segments": {f"{DRIVER}/node": node}}}


def walk(method: Any, step: int, **fields: Any) -> list[list[Any]]:
    """Return all pages of a list, `step` entries each at most."""
    pages, token = [], ""
    while True:
        page = method(max_entries=step, starting_token=token, **fields)
        pages.append(list(page.entries))
        token = page.next_token
        if not token:
            return pages


@pytest.fixture
def filled(cluster: Any) -> Any:
    """Two volumes on the first node, none on the second, three on the third."""
    for name, node in (("a", 1), ("b", 1), ("c", 3), ("d", 3), ("e", 3)):
        cluster.create(name, nodes=[f"node-{node}"])
    return cluster


ALL = ["disk/node-1/a", "disk/node-1/b", "disk/node-3/c", "disk/node-3/d", "disk/node-3/e"]


def test_all_volumes_of_all_nodes_are_listed(filled: Any) -> None:
    entries = filled.client.ListVolumes().entries

    assert [entry.volume.volume_id for entry in entries] == ALL
    assert entries[4].volume.accessible_topology[0].segments == {f"{DRIVER}/node": "node-3"}


@pytest.mark.parametrize("step", [1, 2, 3, 4, 5, 6])
def test_pages_go_over_nodes_and_lose_and_repeat_nothing(filled: Any, step: int) -> None:
    pages = walk(filled.client.ListVolumes, step)

    assert [entry.volume.volume_id for page in pages for entry in page] == ALL
    assert all(len(page) <= step for page in pages)


def test_volumes_of_other_instances_stand_before_those_of_nodes(rig: Any, make: Any) -> None:
    rig.start_node("node-1")
    rig.start_controller(make("far"))
    for name, backend in (("x", "far"), ("y", "far"), ("z", "disk")):
        rig.create(name, parameters={"backend": backend}, nodes=["node-1"])

    for step in (0, 1, 2, 3):
        pages = walk(rig.client.ListVolumes, step)
        assert [one.volume.volume_id for page in pages for one in page] == ["far/x", "far/y", "disk/node-1/z"]


def test_a_list_goes_on_where_it_was_although_volumes_come_and_go(filled: Any) -> None:
    page = filled.client.ListVolumes(max_entries=3)
    filled.client.DeleteVolume(volume_id="disk/node-3/c")
    filled.create("b2", nodes=["node-1"])

    rest = filled.client.ListVolumes(starting_token=page.next_token)

    assert [entry.volume.volume_id for entry in rest.entries] == ALL[3:]


@pytest.mark.parametrize("token", ["nonsense", "@nonsense", "@00000000/x", "@", "@/", "disk/x"])
def test_a_token_of_somebody_else_is_refused(filled: Any, refused: Any, token: str) -> None:
    assert refused(filled.client.ListVolumes, starting_token=token).code is Code.ABORTED


def test_no_list_is_given_while_a_node_is_down_because_its_volumes_would_count_as_deleted(
    filled: Any, refused: Any
) -> None:
    filled.client.CreateSnapshot(name="s", source_volume_id="disk/node-1/a")
    filled.stop_node("node-3")

    for rpc in ("ListVolumes", "ListSnapshots", "ControllerListVolumeHealth"):
        refusal = refused(getattr(filled.client, rpc))
        assert (refusal.code, "'node-3'" in refusal.text) == (Code.UNAVAILABLE, True)
    assert filled.client.ListSnapshots(source_volume_id="disk/node-1/a").entries, "this asks one node only"


def test_snapshots_are_listed_by_volume_by_id_and_all_together(filled: Any) -> None:
    for name, volume in (("s1", ALL[0]), ("s2", ALL[4]), ("s3", ALL[4])):
        filled.client.CreateSnapshot(name=name, source_volume_id=volume)

    def listed(**fields: Any) -> list[str]:
        return [one.snapshot.snapshot_id for page in walk(filled.client.ListSnapshots, 2, **fields) for one in page]

    assert listed() == ["disk/node-1/s1", "disk/node-3/s2", "disk/node-3/s3"]
    assert listed(source_volume_id=ALL[4]) == ["disk/node-3/s2", "disk/node-3/s3"]
    assert listed(snapshot_id="disk/node-3/s3") == ["disk/node-3/s3"]
    assert listed(snapshot_id="disk/node-2/s3") == []


def test_what_is_wrong_with_volumes_is_gathered_too(filled: Any) -> None:
    bad = HealthEntry(status=Health.DATA_LOSS, reason="Torn", message="half of it is gone")
    filled.machines["node-3"].storage.health["node-3/d"] = (bad,)

    entries = filled.client.ControllerListVolumeHealth().entries

    assert [(one.volume_id, one.health_statuses[0].reason) for one in entries] == [("disk/node-3/d", "Torn")]


def test_capacity_of_a_node_is_what_that_node_has(rig: Any) -> None:
    for number, name in enumerate(rig.machines):
        rig.machines[name].capacity = (number + 1) * GIB
        rig.start_node(name)
    rig.start_controller()

    found = [rig.client.GetCapacity(**at(name)).available_capacity for name in (*rig.machines, "node-9")]

    assert found == [GIB, 2 * GIB, 3 * GIB, 0]


def test_capacity_of_all_nodes_is_their_sum_and_one_volume_must_fit_on_one(rig: Any) -> None:
    for name in rig.machines:
        rig.machines[name].capacity = GIB
        rig.start_node(name)
    rig.start_controller()

    answer = rig.client.GetCapacity()

    assert (answer.available_capacity, answer.maximum_volume_size.value) == (3 * GIB, GIB)


def test_without_a_class_and_a_default_all_instances_count(rig: Any, make: Any) -> None:
    rig.machines["node-1"].capacity = GIB
    rig.start_node("node-1")
    rig.start_controller(make("far", capacity=4 * GIB), default="")

    answer = rig.client.GetCapacity()

    assert (answer.available_capacity, answer.maximum_volume_size.value) == (5 * GIB, 4 * GIB)


class Endless(MemoryBackend):
    def capacity(self, request: CapacityRequest) -> CapacityReport:
        return CapacityReport(available=GIB)


def test_with_an_instance_without_a_limit_there_is_no_largest_volume(rig: Any, make: Any) -> None:
    rig.start_node("node-1")
    rig.start_controller(make("far", Endless), default="")

    assert not rig.client.GetCapacity().HasField("maximum_volume_size")


class Unknowing(b.NodeLocal):
    """Volumes on one node, which does not know how many more it takes."""

    contract = (1, 0)
    Config, Parameters = MemoryBackend.Config, MemoryBackend.Parameters
    create_volume, find_volume = MemoryBackend.create_volume, MemoryBackend.find_volume
    get_volume, delete_volume = MemoryBackend.get_volume, MemoryBackend.delete_volume
    open_device, find_device = MemoryBackend.open_device, MemoryBackend.find_device
    close_device = MemoryBackend.close_device

    def __init__(self, config: Any, setting: b.Setting, storage: Any) -> None:
        super().__init__(config, setting)

    def node_of(self, handle: str) -> str:
        return self.setting.node


def test_where_nodes_do_not_know_their_capacity_no_limit_is_known_and_there_is_no_largest_volume(rig: Any) -> None:
    rig.kind = Unknowing
    for name in rig.machines:
        rig.start_node(name)
    rig.start_controller()

    for where, available in (({}, UNLIMITED), (at("node-1"), UNLIMITED), (at("node-9"), 0)):
        answer = rig.client.GetCapacity(**where)
        assert (answer.available_capacity, answer.HasField("maximum_volume_size")) == (available, False), where


def test_nodes_that_do_not_know_their_capacity_count_without_a_class_too(rig: Any, make: Any) -> None:
    rig.kind = Unknowing
    rig.start_node("node-1")
    rig.start_controller(make("far", capacity=4 * GIB), default="")

    answer = rig.client.GetCapacity()

    assert (answer.available_capacity, answer.HasField("maximum_volume_size")) == (UNLIMITED, False)


def test_a_node_that_is_down_has_no_capacity_and_hides_nobody_elses(cluster: Any, refused: Any) -> None:
    before = cluster.client.GetCapacity().available_capacity
    cluster.stop_node("node-2")

    assert cluster.client.GetCapacity().available_capacity == before * 2 // 3
    assert refused(cluster.client.GetCapacity, **at("node-2")).code is Code.UNAVAILABLE
    assert cluster.client.GetCapacity(**at("node-1")).available_capacity == before // 3


def test_when_no_node_can_be_reached_there_is_no_figure(cluster: Any, refused: Any) -> None:
    for name in cluster.machines:
        cluster.stop_node(name)

    assert refused(cluster.client.GetCapacity).code is Code.UNAVAILABLE


def _page(*names: str, token: str = "") -> pb.ListVolumesResponse:
    return pb.ListVolumesResponse(entries=[{"volume": {"volume_id": name}} for name in names], next_token=token)


def test_a_nodes_page_that_does_not_fit_is_left_for_the_next_answer() -> None:
    page = AggregatedPage(_page("a", "b"), 3)

    assert not page.add("node-1", _page("c", "d"), "inner")
    assert [entry.volume.volume_id for entry in page.response.entries] == ["a", "b"]
    assert page.response.next_token.endswith("/inner")


def test_an_answer_stays_below_what_a_client_takes() -> None:
    page = AggregatedPage(_page("a" * (MAX_BYTES - 100)), 0)

    assert not page.add("node-1", _page("b" * 200), "")
    assert page.add("node-2", _page("c"), "")


def test_bad_parameters_are_refused_by_the_nodes(cluster: Any, refused: Any) -> None:
    refusal = refused(cluster.client.GetCapacity, parameters={"tear": "ssd"})

    assert (refusal.code, "'tier'" in refusal.text) == (Code.INVALID_ARGUMENT, True)


def test_a_place_without_a_node_has_no_capacity(cluster: Any) -> None:
    where = {"accessible_topology": pb.Topology(segments={f"{DRIVER}/zone": "a"})}

    assert cluster.client.GetCapacity(**where).available_capacity == 0
