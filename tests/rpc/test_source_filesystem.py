"""The filesystem of a copy is that of its source, whatever the class and the driver's default say."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from csi_multi_testing.memory import MemoryBackend

from csi_multi._proto import csi_pb2 as pb
from csi_multi.contract.params import Schema

Code = grpc.StatusCode
GIB = 1 << 30
WRITER = {"mode": "SINGLE_NODE_WRITER"}
KINDS = ["snapshot", "volume"]


def mounted(*fs_types: str) -> list[pb.VolumeCapability]:
    return [pb.VolumeCapability(mount={"fs_type": one}, access_mode=WRITER) for one in fs_types]


BLOCK = [pb.VolumeCapability(block={}, access_mode=WRITER)]


@pytest.fixture
def source(create: Any, snap: Any) -> Any:
    """Make a volume with this capability, and a snapshot; return the content source of this kind."""

    def made(kind: str, capabilities: Any, parameters: Any = ()) -> dict[str, Any]:
        volume = create("source", volume_capabilities=capabilities, capacity_range=SIZE, parameters=parameters)
        if kind == "volume":
            return {"volume": {"volume_id": volume.volume_id}}
        return {"snapshot": {"snapshot_id": snap("cut", volume.volume_id).snapshot_id}}

    return made


SIZE = {"required_bytes": GIB}


def fs_of(volume: Any) -> str:
    return str(volume.volume_context["fsType"])


@pytest.mark.parametrize("kind", KINDS)
def test_a_class_without_a_filesystem_takes_the_sources(kind: str, create: Any, source: Any) -> None:
    origin = source(kind, mounted("xfs"))

    copy = create("copy", volume_content_source=origin)
    assert fs_of(copy) == "xfs"
    assert create("copy", volume_content_source=origin) == copy


@pytest.mark.parametrize("kind", KINDS)
def test_a_filesystem_that_contradicts_the_source_is_refused(
    kind: str, client: Any, creation: Any, source: Any, refused: Any, both: Any
) -> None:
    origin = source(kind, mounted("xfs"))

    asked = creation("copy", volume_content_source=origin, volume_capabilities=mounted("ext4"))
    refusal = refused(client.CreateVolume, asked)
    assert refusal.code is Code.INVALID_ARGUMENT
    assert "holds xfs" in refusal.text
    assert "csi.storage.k8s.io/fstype: xfs" in refusal.text
    assert len(both.storages["fast"].volumes) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_the_sources_own_filesystem_may_be_named(kind: str, create: Any, source: Any) -> None:
    origin = source(kind, mounted("xfs"))

    assert fs_of(create("copy", volume_content_source=origin, volume_capabilities=mounted("xfs"))) == "xfs"


@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_default_does_not_change_copies(kind: str, serve: Any, make: Any, creation: Any) -> None:
    instance = make("fast")
    before, after = serve(instance).client, serve(instance, default_fs_type="btrfs").client
    volume = before.CreateVolume(creation("source", capacity_range=SIZE)).volume
    origin: dict[str, Any] = {"volume": {"volume_id": volume.volume_id}}
    if kind == "snapshot":
        cut = before.CreateSnapshot(name="cut", source_volume_id=volume.volume_id).snapshot
        origin = {"snapshot": {"snapshot_id": cut.snapshot_id}}

    assert fs_of(after.CreateVolume(creation("copy", volume_content_source=origin)).volume) == "ext4"
    assert fs_of(after.CreateVolume(creation("new", capacity_range=SIZE)).volume) == "btrfs"


def test_a_copy_of_a_copy_has_it_too_after_the_sources_are_gone(
    create: Any, source: Any, snap: Any, client: Any
) -> None:
    first = create("first", volume_content_source=source("snapshot", mounted("btrfs")))
    cut = snap("second cut", first.volume_id)
    client.DeleteVolume(volume_id=first.volume_id)

    copy = create("second", volume_content_source={"snapshot": {"snapshot_id": cut.snapshot_id}})
    assert fs_of(copy) == "btrfs"


@pytest.mark.parametrize("kind", KINDS)
def test_the_device_decides_where_the_source_records_nothing(
    kind: str, create: Any, source: Any, client: Any, creation: Any, refused: Any
) -> None:
    """A raw block volume that somebody made a filesystem on, and snapshots of earlier versions."""
    origin = source(kind, BLOCK)
    copy = create("copy", volume_content_source=origin)

    assert fs_of(copy) == "auto"
    assert create("copy", volume_content_source=origin) == copy
    named = create("named", volume_content_source=origin, volume_capabilities=mounted("xfs"))
    assert fs_of(named) == "xfs"
    valid = client.ValidateVolumeCapabilities(volume_id=copy.volume_id, volume_capabilities=mounted("xfs"))
    assert valid.HasField("confirmed")
    refusal = refused(client.CreateVolume, creation("copy", volume_content_source=origin, volume_capabilities=BLOCK))
    assert refusal.code is Code.ALREADY_EXISTS


def test_options_of_mkfs_do_not_matter_where_the_device_decides(create: Any, source: Any) -> None:
    copy = create("copy", volume_content_source=source("volume", BLOCK), parameters={"ext4BigAlloc": "true"})

    assert dict(copy.volume_context) == {"fsType": "auto"}


def test_options_that_the_sources_filesystem_does_not_have_are_refused(
    client: Any, creation: Any, source: Any, refused: Any
) -> None:
    origin = source("volume", mounted("xfs"))
    asked = creation("copy", volume_content_source=origin, parameters={"bytesPerInode": "8192"})

    assert refused(client.CreateVolume, asked).code is Code.INVALID_ARGUMENT


@pytest.mark.parametrize("kind", KINDS)
def test_a_retry_after_the_source_is_gone_finds_the_copy(kind: str, create: Any, source: Any, client: Any) -> None:
    origin = source(kind, mounted("xfs"))
    copy = create("copy", volume_content_source=origin)
    if kind == "snapshot":
        client.DeleteSnapshot(snapshot_id="fast/cut")
    client.DeleteVolume(volume_id="fast/source")

    assert create("copy", volume_content_source=origin) == copy


def test_a_snapshot_is_found_again_after_its_volume_is_gone(create: Any, snap: Any, client: Any) -> None:
    volume = create("v", volume_capabilities=mounted("xfs"))
    cut = snap("cut", volume.volume_id)
    client.DeleteVolume(volume_id=volume.volume_id)

    assert snap("cut", volume.volume_id) == cut


@pytest.mark.parametrize(
    "key", ["fsType", "fstype", "FSType", "csi.storage.k8s.io/fstype", "csi.storage.k8s.io/fsType"]
)
def test_the_key_of_the_filesystem_is_understood(key: str, create: Any) -> None:
    assert fs_of(create("v", capacity_range=SIZE, parameters={key: "xfs"})) == "xfs"
    assert fs_of(create("v", capacity_range=SIZE, parameters={key: "xfs"}, volume_capabilities=mounted("xfs"))) == "xfs"


@pytest.mark.parametrize(
    ("parameters", "fs_type", "words"),
    [
        ({"fsType": "xfs"}, "ext4", "one filesystem, but ['ext4', 'xfs']"),
        ({"fsType": "ntfs"}, "", "'ntfs' is not supported; supported: ext4, xfs, btrfs"),
        ({"fsType": "xfs", "fstype": "xfs"}, "", "keep only 'csi.storage.k8s.io/fstype'"),
        ({"fsType": "xfs", "csi.storage.k8s.io/fstype": "xfs"}, "", "keep only 'csi.storage.k8s.io/fstype'"),
        ({"csi.storage.k8s.io/fstype": "xfs"}, "ext4", "one filesystem, but ['ext4', 'xfs']"),
        ({"fsType": "auto"}, "", "'auto' is not supported; supported: ext4, xfs, btrfs"),
        ({}, "auto", "'auto' is not supported; supported: ext4, xfs, btrfs"),
    ],
)
def test_a_filesystem_that_does_not_fit_is_refused(
    parameters: Any, fs_type: str, words: str, client: Any, creation: Any, refused: Any
) -> None:
    asked = creation("v", capacity_range=SIZE, parameters=parameters, volume_capabilities=mounted(fs_type))
    refusal = refused(client.CreateVolume, asked)

    assert refusal.code is Code.INVALID_ARGUMENT
    assert words in refusal.text


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_of_an_unknown_filesystem_is_not_asked_for_by_that_word(
    kind: str, source: Any, client: Any, creation: Any, refused: Any
) -> None:
    asked = creation("copy", volume_content_source=source(kind, BLOCK), volume_capabilities=mounted("auto"))

    assert "'auto' is not supported" in refused(client.CreateVolume, asked).text


def test_a_repeated_request_with_another_filesystem_in_its_class_is_refused(
    create: Any, client: Any, creation: Any, refused: Any
) -> None:
    create("v", capacity_range=SIZE, parameters={"csi.storage.k8s.io/fstype": "xfs"})

    asked = creation("v", capacity_range=SIZE, parameters={"csi.storage.k8s.io/fstype": "ext4"})
    assert refused(client.CreateVolume, asked).code is Code.ALREADY_EXISTS


def test_the_old_key_does_not_matter_to_a_raw_block_volume(create: Any) -> None:
    assert not create("v", parameters={"fsType": "xfs"}, volume_capabilities=BLOCK).volume_context


class OwnKey(MemoryBackend):
    class Parameters(Schema, frozen=True):
        fs_type: str = "mine"


def test_a_backend_may_have_a_parameter_of_that_name(serve: Any, make: Any, creation: Any) -> None:
    client = serve(make("fast", OwnKey)).client

    assert fs_of(client.CreateVolume(creation("v", parameters={"fsType": "anything"})).volume) == "ext4"
