"""Classes whose keys may have any capitals, where a backend says so: over the wire, with the core's own keys."""

from __future__ import annotations

from typing import Any, ClassVar

import grpc
import pytest
from csi_multi_testing import memory

from csi_multi.contract import model
from csi_multi.rpc.client import Client

Code = grpc.StatusCode


class Parameters(memory.Parameters, frozen=True):
    loose: ClassVar[bool] = True


class MutableParameters(memory.MutableParameters, frozen=True):
    loose: ClassVar[bool] = True


class Loose(memory.MemoryBackend):
    Parameters = Parameters
    MutableParameters = MutableParameters
    SnapshotParameters = Parameters
    GroupSnapshotParameters = Parameters


@pytest.fixture
def both(serve: Any, make: Any) -> Any:
    return serve(make("fast", Loose), make("slow"))


AS_DOCUMENTED = {"tier": "ssd", "blockSize": "4096"}
OTHERWISE = {"Tier": "ssd", "BLOCKSIZE": "4096", "inodesize": ""}


def stamp(both: Any) -> model.Stamp:
    (volume,) = both.storages["fast"].volumes.values()
    found: model.Stamp = volume.stamp
    return found


def test_the_core_and_the_backend_know_their_keys_in_any_capitals(both: Any, create: Any) -> None:
    volume = create("v", parameters=OTHERWISE, mutable_parameters={"IOPS": "5"})

    context = dict(volume.volume_context)
    assert context["fs.blockSize"] == "4096"
    assert "fs.inodeSize" not in context


def test_another_spelling_of_a_class_is_the_same_class(both: Any, create: Any) -> None:
    first = create("v", parameters=AS_DOCUMENTED, mutable_parameters={"iops": "5"})

    assert create("v", parameters=OTHERWISE, mutable_parameters={"IOPS": "5"}) == first


def test_a_backend_that_does_not_ask_for_it_makes_no_difference_to_a_volume(both: Any, create: Any, serve: Any) -> None:
    create("v", parameters=AS_DOCUMENTED, mutable_parameters={"iops": "5"})
    loose = stamp(both).digest
    create("v", backend="slow", parameters=AS_DOCUMENTED, mutable_parameters={"iops": "5"})
    (strict,) = both.storages["slow"].volumes.values()

    assert loose == strict.stamp.digest


def test_snapshots_and_groups_are_the_same_in_another_spelling(client: Client, create: Any, snap: Any) -> None:
    create("v")
    first = snap("s", "fast/v", parameters={"tier": "ssd"})
    group = {"name": "g", "source_volume_ids": ["fast/v"]}
    cut = client.CreateVolumeGroupSnapshot(**group, parameters={"tier": "ssd"})

    assert snap("s", "fast/v", parameters={"TIER": "ssd"}) == first
    assert client.CreateVolumeGroupSnapshot(**group, parameters={"Tier": "ssd"}) == cut


def test_a_volume_is_changed_by_keys_in_any_capitals(client: Client, create: Any) -> None:
    create("v")

    client.ControllerModifyVolume(volume_id="fast/v", mutable_parameters={"Iops": "7"})


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"parameters": {"tier": "ssd", "Tier": "ssd"}}, "mean the same"),
        ({"parameters": {"blockSize": "4096", "blocksize": "4096"}}, "mean the same"),
        ({"mutable_parameters": {"iops": "5", "IOPS": "5"}}, "mean the same"),
        ({"parameters": {"Teir": "ssd"}}, "did you mean 'tier'"),
        ({"parameters": {"Backend": "fast"}}, "did you mean 'backend'"),
    ],
)
def test_what_is_ambiguous_or_unknown_is_refused(
    client: Client, creation: Any, refused: Any, fields: Any, words: str
) -> None:
    refusal = refused(client.CreateVolume, creation("v", **fields))

    assert refusal.code is Code.INVALID_ARGUMENT
    assert words in refusal.text


@pytest.mark.parametrize("fields", [{"parameters": {"Tier": "ssd"}}, {"parameters": {"BlockSize": "4096"}}])
def test_other_backends_keep_to_the_spelling(client: Client, creation: Any, refused: Any, fields: Any) -> None:
    assert refused(client.CreateVolume, creation("v", backend="slow", **fields)).code is Code.INVALID_ARGUMENT
