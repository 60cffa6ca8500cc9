"""Health as callers see it: one entry per status and reason, and texts that fit into their fields."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from csi_multi_testing.memory import MemoryBackend

from csi_multi._proto import csi_pb2 as pb
from csi_multi.contract import (
    NO_SECRETS,
    Health,
    HealthEntry,
    NodeHealthReporter,
    Page,
    PageRequest,
    StorageHealth,
    StorageHealthEntry,
    Strings,
    VolumeHealth,
)

MOUNT = pb.VolumeCapability(mount={}, access_mode={"mode": "SINGLE_NODE_WRITER"})
LIMIT = 128  # bytes: csi-spec, size limits


class Sick(MemoryBackend, NodeHealthReporter):
    """Reports the same two problems from everywhere, one of them twice."""

    text = "disk {} is slow"

    def entries(self) -> tuple[HealthEntry, ...]:
        slow = [HealthEntry(status=Health.DEGRADED, reason="Slow", message=self.text.format(one)) for one in "ab"]
        return (*slow, HealthEntry(status=Health.DATA_LOSS, reason="Slow", message="and gone"))

    def volume_health(self, handle: str, secrets: Strings) -> tuple[HealthEntry, ...]:
        return self.entries()

    def list_volume_health(self, page: PageRequest, secrets: Strings) -> Page[VolumeHealth]:
        return Page(items=tuple(VolumeHealth(handle=one, entries=self.entries()) for one in self.storage.volumes))

    def node_volume_health(self, handle: str) -> tuple[HealthEntry, ...]:
        return self.entries()

    def find_device(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        return None

    def node_storage_health(self, secrets: Strings) -> tuple[StorageHealthEntry, ...]:
        return (
            StorageHealthEntry(status=StorageHealth.STORAGE_UNREACHABLE, reason="NoAnswer", message="no monitor"),
            StorageHealthEntry(status=StorageHealth.STORAGE_DEGRADED, reason="NoAnswer", message="one path lost"),
        )


def volume(client: Any, backend: str = "fast") -> str:
    made = client.CreateVolume(name="v", parameters={"backend": backend}, volume_capabilities=[MOUNT])
    return str(made.volume.volume_id)


def test_two_instances_that_are_down_make_one_entry_that_names_both(serve: Any, make: Any) -> None:
    answer = serve(make("fast", Sick), make("slow", Sick)).client.NodeGetStorageHealth()

    assert [(one.status, one.reason) for one in answer.backend_health] == [
        (pb.STORAGE_UNREACHABLE, "NoAnswer"),
        (pb.STORAGE_DEGRADED, "NoAnswer"),
    ]
    assert answer.backend_health[0].message == "backends fast, slow: no monitor"


@pytest.mark.parametrize("rpc", ["ControllerGetVolumeHealth", "NodeGetVolumeHealth", "ControllerListVolumeHealth"])
def test_a_volume_has_one_entry_per_status_and_reason(rpc: str, serve: Any, make: Any) -> None:
    client = serve(make("fast", Sick)).client
    made = volume(client)

    if rpc == "ControllerListVolumeHealth":
        (health,) = client.ControllerListVolumeHealth().entries
    else:
        health = getattr(client, rpc)(volume_id=made).volume_health
    assert [(one.status, one.reason) for one in health.health_statuses] == [
        (pb.VolumeHealthErrorType.DEGRADED, "Slow"),
        (pb.VolumeHealthErrorType.DATA_LOSS, "Slow"),
    ]


class Wordy(Sick):
    """Explains itself at length, with letters of two bytes."""

    text = "é" * 300 + "{}"

    def node_storage_health(self, secrets: Strings) -> tuple[StorageHealthEntry, ...]:
        return (StorageHealthEntry(status=StorageHealth.STORAGE_DEGRADED, reason="Wordy", message=self.text),)


def test_every_instance_that_is_down_is_named_however_long_the_texts_are(serve: Any, make: Any) -> None:
    (entry,) = serve(make("fast", Wordy), make("slow", Wordy)).client.NodeGetStorageHealth().backend_health

    assert entry.message.startswith("backends fast, slow: é")
    assert len(entry.message.encode()) <= LIMIT


def test_an_instance_that_could_not_be_loaded_is_not_healthy(serve: Any, make: Any) -> None:
    found = serve(make("fast", Sick), broken={"bad": "no library"}).client.NodeGetStorageHealth().backend_health

    assert [(one.status, one.reason, one.message) for one in found][-1] == (
        *(pb.STORAGE_UNREACHABLE, "BackendBroken"),
        "backend bad: no library",
    )


@pytest.mark.parametrize("rpc", ["ControllerGetVolumeHealth", "NodeGetVolumeHealth", "NodeGetStorageHealth"])
def test_a_long_text_is_cut_to_its_field_and_complete_in_the_log(
    rpc: str, serve: Any, make: Any, caplog: pytest.LogCaptureFixture
) -> None:
    client = serve(make("fast", Wordy)).client
    made = volume(client)
    caplog.set_level(logging.INFO)

    if rpc == "NodeGetStorageHealth":
        (first, *_) = client.NodeGetStorageHealth().backend_health
    else:
        (first, *_) = getattr(client, rpc)(volume_id=made).volume_health.health_statuses
    assert LIMIT - 4 < len(first.message.encode()) <= LIMIT
    assert first.message.endswith("é...")
    assert any("é" * 300 in one.fields.get("text", "") for one in caplog.records if hasattr(one, "fields"))


def test_the_reason_that_a_capability_is_not_confirmed_fits_into_its_field(serve: Any, make: Any) -> None:
    client = serve(make("fast")).client
    parameters = {"backend": "fast", "x" * 500: "y"}

    answer = client.ValidateVolumeCapabilities(
        volume_id=volume(client), volume_capabilities=[MOUNT], parameters=parameters
    )

    assert not answer.HasField("confirmed")
    assert LIMIT - 4 < len(answer.message.encode()) <= LIMIT
