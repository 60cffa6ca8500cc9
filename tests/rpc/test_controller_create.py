"""CreateVolume and its kin over the wire: one name, one thing; a difference is named."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from csi_multi_testing.memory import MemoryBackend

from csi_multi._proto import csi_pb2 as pb
from csi_multi.contract import AlreadyExists, NotFound, OutOfRange, ResourceExhausted, Volume, VolumeRequest
from csi_multi.rpc.client import Client

Code = grpc.StatusCode
GIB = 1 << 30


def mounted(fs_type: str = "", mode: str = "SINGLE_NODE_WRITER") -> pb.VolumeCapability:
    return pb.VolumeCapability(mount={"fs_type": fs_type}, access_mode={"mode": mode})


BLOCK = pb.VolumeCapability(block={}, access_mode={"mode": "SINGLE_NODE_WRITER"})


def test_a_retry_finds_its_volume(create: Any, both: Any) -> None:
    first = create("v", capacity_range={"required_bytes": GIB})

    assert create("v", capacity_range={"required_bytes": GIB}) == first
    assert first.volume_id == "fast/v"
    assert len(both.storages["fast"].volumes) == 1


@pytest.mark.parametrize(
    "name", ["a" * 128, "é" * 64, "💾" * 32, "tab\tand\nbreak", "a/b", "../../etc", " ", "-", "x-", "'\"\\", "\u202e"]
)
def test_any_name_that_csi_allows_makes_one_volume(name: str, create: Any, both: Any) -> None:
    assert create(name) == create(name)
    assert len(both.storages["fast"].volumes) == 1


BASE = {"capacity_range": {"required_bytes": GIB}, "parameters": {"tier": "hdd"}, "mutable_parameters": {"iops": "5"}}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"capacity_range": {"required_bytes": 2 * GIB}}, ["1073741824 bytes"]),
        ({"capacity_range": {"limit_bytes": GIB - 1}}, ["1073741824 bytes"]),
        ({"parameters": {"tier": "ssd"}}, ["parameters"]),
        ({"parameters": {}}, ["parameters"]),
        ({"parameters": {"tier": "hdd", "blockSize": "4096"}}, ["parameters"]),
        ({"mutable_parameters": {"iops": "6"}}, ["parameters"]),
        ({"mutable_parameters": {}}, ["parameters"]),
        ({"volume_capabilities": [mounted("xfs")]}, ["ext4", "xfs"]),
        ({"volume_capabilities": [BLOCK]}, ["block"]),
        ({"volume_content_source": {"snapshot": {"snapshot_id": "fast/s"}}}, ["source"]),
        ({"volume_content_source": {"volume": {"volume_id": "fast/other"}}}, ["source"]),
    ],
)
def test_the_same_name_for_something_else_is_refused_with_the_difference(
    fields: Any, words: list[str], client: Client, creation: Any, create: Any, snap: Any, refused: Any
) -> None:
    create("v", **BASE)
    create("other", capacity_range={"required_bytes": GIB})
    snap("s", "fast/other")

    refusal = refused(client.CreateVolume, creation("v", **{**BASE, **fields}))

    assert refusal.code is Code.ALREADY_EXISTS
    assert all(word in refusal.text for word in ["'v'", *words]), refusal.text


@pytest.mark.parametrize(
    "fields",
    [
        {"capacity_range": {"required_bytes": GIB // 2, "limit_bytes": 2 * GIB}},
        {"capacity_range": None},
        {"parameters": {"tier": "hdd", "csi.storage.k8s.io/pvc/name": "other"}},
        {"volume_capabilities": [mounted("ext4")]},
        {"volume_capabilities": [mounted(mode="SINGLE_NODE_READER_ONLY")]},
        {"secrets": {"a": "b"}},
    ],
)
def test_the_same_name_for_something_compatible_is_the_same_volume(fields: Any, create: Any) -> None:
    first = create("v", **BASE)

    assert create("v", **{**BASE, **fields}) == first


def test_a_volume_for_block_is_not_one_for_a_filesystem(
    client: Client, creation: Any, create: Any, refused: Any
) -> None:
    create("v", volume_capabilities=[BLOCK])

    assert refused(client.CreateVolume, creation("v")).code is Code.ALREADY_EXISTS


def test_a_volume_cannot_have_two_filesystems(client: Client, creation: Any, refused: Any) -> None:
    refusal = refused(client.CreateVolume, creation(volume_capabilities=[mounted("ext4"), mounted("xfs")]))

    assert refusal.code is Code.INVALID_ARGUMENT
    assert "ext4" in refusal.text
    assert "xfs" in refusal.text


def test_a_changed_default_does_not_make_a_retry_another_volume(serve: Any, make: Any, creation: Any) -> None:
    before = make("fast")
    first = serve(before, default_fs_type="ext4").client.CreateVolume(creation("v"))

    after = serve(make("fast", storage=before.backend.storage), default_fs_type="xfs")

    assert after.client.CreateVolume(creation("v")) == first


@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ({"parameters": {"backend": "absent"}}, Code.INVALID_ARGUMENT, "absent"),
        ({"parameters": {"backend": "fats"}}, Code.INVALID_ARGUMENT, "did you mean 'fast'"),
        ({"backend": ""}, Code.INVALID_ARGUMENT, "'backend' is required"),
        ({"parameters": {"teir": "x"}}, Code.INVALID_ARGUMENT, "did you mean 'tier'"),
        ({"parameters": {"tier": "tape"}}, Code.INVALID_ARGUMENT, "hdd, ssd"),
        ({"mutable_parameters": {"iops": "0"}}, Code.INVALID_ARGUMENT, "iops"),
        ({"mutable_parameters": {"oips": "1"}}, Code.INVALID_ARGUMENT, "did you mean 'iops'"),
        ({"volume_capabilities": [mounted("ntfs")]}, Code.INVALID_ARGUMENT, "ntfs"),
        ({"volume_capabilities": [mounted(mode="MULTI_NODE_MULTI_WRITER")]}, Code.INVALID_ARGUMENT, "MULTI_NODE"),
        ({"volume_content_source": {"snapshot": {"snapshot_id": "fast/absent"}}}, Code.NOT_FOUND, "absent"),
        ({"volume_content_source": {"snapshot": {"snapshot_id": "odd"}}}, Code.NOT_FOUND, "odd"),
        ({"volume_content_source": {"volume": {"volume_id": "fast/absent"}}}, Code.NOT_FOUND, "absent"),
        ({"volume_content_source": {"volume": {"volume_id": "slow/v"}}}, Code.INVALID_ARGUMENT, "slow"),
        ({"capacity_range": {"required_bytes": 1, "limit_bytes": 4095}}, Code.OUT_OF_RANGE, "4095"),
        ({"capacity_range": {"required_bytes": 1 << 60}}, Code.RESOURCE_EXHAUSTED, "bytes free"),
    ],
)
def test_a_volume_that_cannot_be_is_refused(
    fields: Any, code: Any, words: str, client: Client, creation: Any, refused: Any, both: Any
) -> None:
    refusal = refused(client.CreateVolume, creation(**fields))

    assert (refusal.code, words in refusal.text) == (code, True), refusal.text
    assert not both.storages["fast"].volumes


def test_a_copy_names_its_source_and_is_never_smaller(
    client: Client, create: Any, creation: Any, snap: Any, refused: Any
) -> None:
    create("v", capacity_range={"required_bytes": GIB})
    snap("s", "fast/v")
    for source in ({"snapshot": {"snapshot_id": "fast/s"}}, {"volume": {"volume_id": "fast/v"}}):
        copy = create(f"copy-{next(iter(source))}", volume_content_source=source)

        assert copy.capacity_bytes == GIB
        assert copy.content_source == pb.VolumeContentSource(**source)
        small = creation("small", volume_content_source=source, capacity_range={"limit_bytes": GIB - 1})
        assert refused(client.CreateVolume, small).code is Code.OUT_OF_RANGE


def test_a_retry_finds_its_copy_although_the_source_is_gone(client: Client, create: Any, snap: Any) -> None:
    create("v")
    snap("s", "fast/v")
    sources = ({"snapshot": {"snapshot_id": "fast/s"}}, {"volume": {"volume_id": "fast/v"}})
    copies = [create(f"copy-{number}", volume_content_source=source) for number, source in enumerate(sources)]
    client.DeleteSnapshot(snapshot_id="fast/s")
    client.DeleteVolume(volume_id="fast/v")

    again = [create(f"copy-{number}", volume_content_source=source) for number, source in enumerate(sources)]

    assert again == copies


class Hasty(MemoryBackend):
    """Looks at everything else before it looks whether the name is taken."""

    error: Exception | None = None

    def create_volume(self, request: VolumeRequest) -> Volume:
        if self.error:
            raise self.error
        return super().create_volume(request)


@pytest.mark.parametrize("error", [ResourceExhausted("full"), OutOfRange("too big"), NotFound("gone")])
def test_a_retry_finds_its_volume_although_a_new_one_could_not_be_made(
    error: Exception, serve: Any, make: Any, creation: Any, refused: Any
) -> None:
    served = serve(make("fast", Hasty))
    first = served.client.CreateVolume(creation("v"))
    served.backend("fast").error = error

    assert served.client.CreateVolume(creation("v")) == first
    assert refused(served.client.CreateVolume, creation("other")).text == str(error)


def test_a_name_that_is_taken_by_nothing_that_can_be_found_is_tried_again(
    serve: Any, make: Any, creation: Any, refused: Any
) -> None:
    served = serve(make("fast", Hasty))
    served.backend("fast").error = AlreadyExists("half-made")

    refusal = refused(served.client.CreateVolume, creation("v"))

    assert refusal.code is Code.ABORTED
    assert "being created or deleted" in refusal.text


def test_two_hundred_requests_for_one_name_make_one_volume(serve: Any, make: Any, creation: Any) -> None:
    served = serve(make("fast"), workers=32)
    codes: Counter[str] = Counter()
    ids, proxy = set(), threading.Lock()

    def one(_number: int) -> None:
        try:
            volume = served.client.CreateVolume(creation("v")).volume
            code = "OK"
        except grpc.RpcError as error:
            volume, code = None, error.code().name
        with proxy:
            codes[code] += 1
            ids.update({volume.volume_id} if volume else ())

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, range(200)))

    assert set(codes) <= {"OK", "ABORTED"}
    assert codes["OK"]
    assert ids == {"fast/v"}
    assert list(served.storages["fast"].volumes) == ["v"]


def test_deletion_is_done_when_nothing_is_there(client: Client, create: Any, both: Any) -> None:
    create("v")
    for volume_id in ("fast/v", "fast/v", "fast/absent", "none-exist-id", "/b/c", "💾"):
        client.DeleteVolume(volume_id=volume_id)

    assert not both.storages["fast"].volumes


@pytest.mark.parametrize(
    ("rpc", "fields"),
    [
        ("DeleteVolume", {"volume_id": "gone/v"}),
        ("DeleteSnapshot", {"snapshot_id": "gone/s"}),
        ("DeleteVolumeGroupSnapshot", {"group_snapshot_id": "gone/g", "snapshot_ids": ["gone/g-0"]}),
        ("ControllerUnpublishVolume", {"volume_id": "gone/v", "node_id": "node-1"}),
        ("ControllerUnpublishVolume", {"volume_id": "gone/v"}),
    ],
)
def test_what_an_instance_made_that_is_no_longer_configured_is_not_forgotten(
    client: Client, refused: Any, rpc: str, fields: Any
) -> None:
    answer = refused(getattr(client, rpc), **fields)

    assert answer.code is grpc.StatusCode.FAILED_PRECONDITION
    assert "no backend 'gone' is configured here" in answer.text


def test_the_provisioners_own_parameters_are_for_the_backend_to_read_and_not_a_difference(
    serve: Any, make: Any, creation: Any
) -> None:
    seen = []

    class Curious(MemoryBackend):
        def create_volume(self, request: VolumeRequest) -> Volume:
            seen.append(dict(request.metadata))
            return super().create_volume(request)

    served = serve(make("fast", Curious), default="fast")
    served.client.CreateVolume(creation(backend="", parameters={"csi.storage.k8s.io/pvc/name": "claim"}))

    assert seen == [{"pvc/name": "claim"}]
