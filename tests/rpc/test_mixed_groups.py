"""Groups of snapshots over several backends, over the wire: all or none, found by name and id."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import grpc
import pytest
from csi_multi_testing.memory import MemoryBackend

from csi_multi.contract import InUse, NodeLocal, Snapshot, SnapshotRequest, Timeout, Unavailable
from csi_multi.rpc.capabilities import Mode
from csi_multi.rpc.client import Client
from tests.conftest import NODE

Code = grpc.StatusCode


class LocalBackend(MemoryBackend, NodeLocal):
    """Volumes that belong to this node. `failing`: what the snapshot with this ending raises once."""

    failing: tuple[str, Exception] | None = None

    def node_of(self, handle: str) -> str:
        return "node-9" if handle == "elsewhere" else NODE

    def create_snapshot(self, request: SnapshotRequest) -> Snapshot:
        if self.failing and request.name.endswith(self.failing[0]):
            error, self.failing = self.failing[1], None
            raise error
        return super().create_snapshot(request)


@pytest.fixture
def world(serve: Any, make: Any) -> Any:
    return serve(make("one", LocalBackend), make("two", LocalBackend), make("far"))


@pytest.fixture
def client(world: Any) -> Client:
    found: Client = world.client
    return found


@pytest.fixture
def volumes(client: Client, creation: Any) -> list[str]:
    return [client.CreateVolume(creation("v", backend=name)).volume.volume_id for name in ("one", "two")]


@pytest.fixture
def cut(client: Client, volumes: list[str]) -> Callable[..., Any]:
    def cut(name: str | None = None, sources: Any = None, **parameters: str) -> Any:
        return client.CreateVolumeGroupSnapshot(
            name=name or "g", source_volume_ids=sources or volumes, parameters=parameters
        ).group_snapshot

    return cut


@pytest.fixture
def kept(world: Any) -> Callable[[], list[str]]:
    """Return the handles of all snapshots that exist."""
    return lambda: sorted(handle for storage in world.storages.values() for handle in storage.snapshots)


def members(group: Any) -> list[str]:
    return [one.snapshot_id for one in group.snapshots]


def test_the_order_of_the_volumes_makes_no_other_group(cut: Any, volumes: list[str]) -> None:
    group = cut()

    assert group.ready_to_use
    assert cut(sources=volumes[::-1]) == group
    assert cut(freezeSeconds="5", crashConsistency="best-effort") == group


def test_the_same_name_for_other_volumes_is_refused(
    cut: Any, client: Client, creation: Any, volumes: list[str], refused: Any
) -> None:
    cut()
    third = client.CreateVolume(creation("w", backend="two")).volume.volume_id

    refusal = refused(cut, sources=[*volumes, third])

    assert (refusal.code, "other volumes" in refusal.text) == (Code.ALREADY_EXISTS, True)


@pytest.mark.parametrize("error", [InUse("made to fail"), Unavailable("made to fail"), Timeout("made to fail")])
def test_when_a_member_fails_the_others_go(error: Exception, cut: Any, world: Any, kept: Any, refused: Any) -> None:
    world.backend("two").failing = ("-1", error)

    assert "made to fail" in refused(cut).text
    assert [one for one in kept() if not one.endswith("-pending")] == []
    assert len(cut().snapshots) == 2
    assert len(kept()) == 2


def test_a_member_that_appears_after_its_failure_goes_with_the_next_try(
    cut: Any, world: Any, kept: Any, refused: Any
) -> None:
    world.backend("two").failing = ("-1", Timeout("no answer"))
    assert refused(cut).code is Code.DEADLINE_EXCEEDED
    (mark,) = kept()
    stamp = world.backend("one").find_snapshot(mark).stamp
    late = SnapshotRequest(stamp=replace(stamp, name=mark.replace("pending", "1")), source="v")
    world.backend("two").create_snapshot(late)

    assert len(cut().snapshots) == 2
    assert len(kept()) == 2


def test_a_group_of_which_a_member_was_deleted_by_hand_is_neither_shown_nor_made_again(
    cut: Any, client: Client, world: Any, kept: Any, refused: Any
) -> None:
    group = cut()
    world.backend("two").delete_snapshot(group.snapshots[1].snapshot_id.partition("/")[2], {})

    refusal = refused(cut)
    assert (refusal.code, group.group_snapshot_id in refusal.text) == (Code.FAILED_PRECONDITION, True)
    found = refused(client.GetVolumeGroupSnapshot, group_snapshot_id=group.group_snapshot_id, snapshot_ids=[])
    assert found.code is Code.NOT_FOUND
    client.DeleteVolumeGroupSnapshot(group_snapshot_id=group.group_snapshot_id, snapshot_ids=members(group))
    assert kept() == []


def test_a_snapshot_of_somebody_does_not_count_as_a_member_and_is_not_deleted(
    cut: Any, client: Client, world: Any, volumes: list[str], kept: Any, refused: Any
) -> None:
    group = cut()
    member = group.snapshots[1].snapshot_id.partition("/")[2]
    world.backend("two").delete_snapshot(member, {})
    client.CreateSnapshot(name=member, source_volume_id=volumes[1])
    known = {"group_snapshot_id": group.group_snapshot_id, "snapshot_ids": members(group)}

    assert refused(client.GetVolumeGroupSnapshot, **known).code is Code.NOT_FOUND
    assert refused(client.DeleteVolumeGroupSnapshot, **known).code is Code.FAILED_PRECONDITION
    assert member in kept()


@pytest.mark.parametrize("rpc", ["GetVolumeGroupSnapshot", "DeleteVolumeGroupSnapshot"])
def test_the_members_given_must_be_the_groups(rpc: str, cut: Any, client: Client, kept: Any, refused: Any) -> None:
    group = cut()
    for given in ([], members(group)[:1], [*members(group), "one/x"]):
        refusal = refused(getattr(client, rpc), group_snapshot_id=group.group_snapshot_id, snapshot_ids=given)
        assert refusal.code is Code.INVALID_ARGUMENT
    assert len(kept()) == 2


def test_a_member_cannot_go_alone_but_can_be_restored(
    cut: Any, client: Client, creation: Any, kept: Any, refused: Any
) -> None:
    for member in members(cut()):
        refusal = refused(client.DeleteSnapshot, snapshot_id=member)
        assert (refusal.code, "delete the group" in refusal.text) == (Code.INVALID_ARGUMENT, True)
        source = {"snapshot": {"snapshot_id": member}}
        client.CreateVolume(creation("r", backend=member.partition("/")[0], volume_content_source=source))
    assert len(kept()) == 2


def test_a_snapshot_of_somebody_with_the_name_of_a_member_is_left(
    cut: Any, client: Client, volumes: list[str], kept: Any, refused: Any
) -> None:
    group = cut()
    client.DeleteVolumeGroupSnapshot(group_snapshot_id=group.group_snapshot_id, snapshot_ids=members(group))
    name = members(group)[1].partition("/")[2]
    client.CreateSnapshot(name=name, source_volume_id=volumes[1])

    assert refused(cut).code is Code.ALREADY_EXISTS
    assert kept() == [name]
    client.DeleteSnapshot(snapshot_id=f"two/{name}")


@pytest.mark.parametrize(
    ("volume", "code", "words"),
    [
        ("far/v", Code.INVALID_ARGUMENT, "one backend"),
        ("one/elsewhere", Code.FAILED_PRECONDITION, "is on node 'node-9'"),
    ],
)
def test_volumes_that_may_be_in_use_on_another_node_are_refused(
    volume: str, code: Any, words: str, cut: Any, volumes: list[str], kept: Any, refused: Any
) -> None:
    refusal = refused(cut, sources=[*volumes, volume])

    assert (refusal.code, words in refusal.text) == (code, True), refusal.text
    assert kept() == []


@pytest.mark.parametrize(
    ("key", "value"), [("freezeSeconds", "0"), ("freezeSeconds", "900"), ("crashConsistency", "no"), ("tier", "ssd")]
)
def test_parameters_are_checked(key: str, value: str, cut: Any, kept: Any, refused: Any) -> None:
    refusal = refused(cut, **{key: value})

    assert (refusal.code, key in refusal.text) == (Code.INVALID_ARGUMENT, True)
    assert kept() == []


def test_one_class_is_good_for_groups_of_both_kinds(
    cut: Any, volumes: list[str], creation: Any, client: Client
) -> None:
    second = client.CreateVolume(creation("w", backend="one")).volume.volume_id

    assert cut("native", [volumes[0], second], freezeSeconds="5").group_snapshot_id == "one/native"


def test_a_driver_whose_nodes_are_elsewhere_refuses_it(serve: Any, make: Any, creation: Any, refused: Any) -> None:
    client = serve(make("one", LocalBackend), make("two", LocalBackend), mode=Mode.CONTROLLER).client
    made = [client.CreateVolume(creation("v", backend=name)).volume.volume_id for name in ("one", "two")]

    refusal = refused(client.CreateVolumeGroupSnapshot, name="g", source_volume_ids=made)
    assert (refusal.code, "one backend" in refusal.text) == (Code.INVALID_ARGUMENT, True)
    unknown = f"~one/{NODE}/group-{'a' * 26}"
    refusal = refused(client.DeleteVolumeGroupSnapshot, group_snapshot_id=unknown, snapshot_ids=[])
    assert (refusal.code, "mode all" in refusal.text) == (Code.FAILED_PRECONDITION, True)
