"""The client over CSI: what passes in process passes over CSI, and failures keep their class."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import grpc
import pytest
from csi_multi_testing import memory, messages
from csi_multi_testing.assertions import CheckFailed
from csi_multi_testing.check import CheckState, run
from csi_multi_testing.checks import CHECKS
from csi_multi_testing.context import CheckContext, features_of
from csi_multi_testing.csi_wire import CsiClient
from csi_multi_testing.fault_injection import FaultInjector
from csi_multi_testing.memory import MemoryBackend
from csi_multi_testing.protocol import Target, VolumeSpec
from csi_multi_testing.storage import DRIVER, NODE, Storage

from csi_multi._proto import csi_pb2 as pb
from csi_multi.contract import AccessMode, Capability, Mount, errors
from csi_multi.rpc import convert

WIRED = [name for name, one in CHECKS.items() if one.target is not Target.BACKEND]


@pytest.fixture(scope="module")
def door_to(tmp_path_factory: pytest.TempPathFactory, driver_of: Any) -> Iterator[Callable[..., CsiClient]]:
    """Return a function that connects a client to a storage."""
    clients: list[CsiClient] = []

    def door_to(storage: Storage) -> CsiClient:
        clients.append(CsiClient(storage, "kit", driver_of(storage, tmp_path_factory.mktemp("w"))))
        return clients[-1]

    yield door_to
    for client in clients:
        client.close()


@pytest.fixture(scope="module")
def client(door_to: Callable[..., CsiClient]) -> CsiClient:
    return door_to(memory.storage())


@pytest.mark.parametrize("name", WIRED)
def test_the_backend_in_memory_passes_over_the_wire(client: CsiClient, name: str) -> None:
    outcome = run(CHECKS[name], CheckContext(client.storage, client, features_of(MemoryBackend), FaultInjector()))

    assert outcome.state is not CheckState.FAILED, outcome.text


def test_a_volume_is_the_same_in_every_answer(client: CsiClient) -> None:
    spec = VolumeSpec(name="answers", capabilities=(Capability(mode=AccessMode.SINGLE_NODE_WRITER, mount=Mount()),))

    made = client.create(spec)

    assert made.stamp.context == {"fsType": "ext4"}
    assert client.get(made.handle) == made
    assert [one for one in client.list_volumes().items if one.handle == made.handle] == [made]
    client.delete(made.handle)


def test_groups_are_found_and_deleted_without_naming_their_members(client: CsiClient) -> None:
    volume = client.create(VolumeSpec(name="grouped"))
    group = client.group("members", [volume.handle])

    assert client.get_group(group.handle) == group
    assert [one.group for one in group.snapshots] == [group.handle]
    client.delete_group(group.handle)
    with pytest.raises(errors.NotFound):
        client.get_group(group.handle)
    client.delete(volume.handle)


def test_what_was_made_survives_a_restart(client: CsiClient) -> None:
    made = client.create(VolumeSpec(name="survivor"))

    client.restart()

    assert client.get(made.handle) == made
    client.delete(made.handle)


def test_detaching_forgets_the_attachment(client: CsiClient) -> None:
    volume, node = client.create(VolumeSpec(name="attached")), client.node()

    client.attach(volume.handle, node)
    held = set(client.attached)
    client.detach(volume.handle, None)
    client.delete(volume.handle)

    assert (held, client.attached) == ({(volume.handle, NODE)}, set())


class Failing(MemoryBackend):
    """Answers every question for a volume with the error whose name the handle is."""

    def get_volume(self, handle: str) -> Any:
        kind = getattr(errors, handle, None)
        raise kind("on purpose") if kind else ValueError("on purpose")


@pytest.fixture(scope="module")
def failing(door_to: Callable[..., CsiClient]) -> CsiClient:
    return door_to(memory.storage(Failing))


TREE = [kind for kind in vars(errors).values() if isinstance(kind, type)]


@pytest.mark.parametrize("kind", TREE)
def test_a_failure_arrives_as_the_class_that_the_door_names(
    failing: CsiClient, kind: type[errors.StorageError]
) -> None:
    with pytest.raises(errors.StorageError, match="on purpose") as found:
        failing.get(kind.__name__)

    assert isinstance(found.value, failing.kind_of(kind))


def test_the_classes_are_told_apart_as_far_as_codes_can() -> None:
    told = {kind.__name__: messages.kind_of(kind).__name__ for kind in TREE}

    assert {name: other for name, other in told.items() if name != other} == {
        "InUse": "FailedPrecondition",
        "WrongNode": "FailedPrecondition",
        "InvalidToken": "Busy",
    }


def test_a_bug_behind_the_wire_is_a_verdict(failing: CsiClient) -> None:
    with pytest.raises(
        CheckFailed, match=r"ControllerGetVolume answered INTERNAL .*only the errors of csi_multi.contract"
    ):
        failing.get("no-class")


def test_an_id_of_another_instance_is_a_verdict() -> None:
    with pytest.raises(CheckFailed, match="volume id 'other/v' does not have the form kit/<handle>"):
        messages.Messages(DRIVER, "kit").handle("volume", "other/v")


def test_topology_keys_lose_their_prefix_and_nothing_else() -> None:
    own = messages.Messages(DRIVER, "kit")
    segments = {"zone": "a", "Rack": "b"}

    assert own.segments(own.topology(segments)) == segments
    with pytest.raises(CheckFailed, match=r"topology key 'kit.csi-multi.example/zone' does not start with 'other/'"):
        messages.Messages("other", "kit").segments(own.topology({"zone": "a"}))


def test_well_known_topology_keys_are_the_segments_that_they_name() -> None:
    message = pb.Topology(segments={"topology.kubernetes.io/zone": "a", f"{DRIVER}/zone": "a"})

    assert messages.Messages(DRIVER, "kit").segments(message) == {"zone": "a"}


@pytest.mark.parametrize("mount", [None, Mount(), Mount(fs_type="xfs", flags=("noatime",), group="12")])
def test_capabilities_come_back_from_their_messages(mount: Mount | None) -> None:
    for mode in AccessMode:
        item = Capability(mode=mode, mount=mount)

        assert convert.capability(messages.capability(item)) == item


def test_secrets_are_sent_where_an_rpc_takes_them(door_to: Callable[..., CsiClient]) -> None:
    seen: list[Any] = []

    class Curious(MemoryBackend):
        def delete_volume(self, handle: str, secrets: Any) -> None:
            seen.append(dict(secrets))
            super().delete_volume(handle, secrets)

    client = door_to(replace(memory.storage(Curious), secrets={"key": "word"}))
    client.delete(client.create(VolumeSpec(name="secret")).handle)

    assert seen == [{"key": "word"}]


def test_a_driver_that_is_gone_is_unavailable(door_to: Callable[..., CsiClient]) -> None:
    client = door_to(memory.storage())
    client._driver.kill()

    with pytest.raises(errors.Unavailable):
        client.get("any")
    assert grpc.StatusCode.UNAVAILABLE in messages.KINDS
