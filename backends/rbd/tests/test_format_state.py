"""Nodes without a keyring, as the chart deploys them: with the controller's configuration, without the file.

The cluster is real, and so is every command but the mapping itself: this machine's kernel need not know rbd.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from csi_multi_rbd import devices
from csi_multi_rbd.backend import RbdBackend
from csi_multi_rbd.command import CommandRunner
from csi_multi_rbd.config import Config

from csi_multi.contract import (
    Blank,
    Device,
    FailedPrecondition,
    OpenRequest,
    Result,
    Setting,
    Strings,
    Unavailable,
    Volume,
)

from .ceph import Cluster
from .ceph_commands import Commands
from .commands import watched
from .fake_node import FakeKernel
from .volumes import MIB, copy, create, image, info, spec, write

MANIFEST = Path(__file__).parents[3] / "config/kubernetes/rbd.yaml"
NONE: Strings = {}


class Mapping(CommandRunner):
    """Maps on a kernel that is none, if the key in the words may look at the image; all else is the real thing."""

    def __init__(self, kernel: FakeKernel, config: Config) -> None:
        super().__init__()
        self._kernel, self._config = kernel, config

    def run(self, program: str, *words: str, timeout: float, **more: Any) -> Result:
        if "device" not in words:
            return super().run(program, *words, timeout=timeout, **more)
        at = words.index("device")
        verb, spec = words[at + 1 : at + 3]
        if verb == "unmap":
            self._kernel.unplug(Path(spec).name)
            return Result(0, "", "")
        found = super().run(program, *words[:at], "info", "--format", "json", spec, timeout=timeout)
        image_id = json.loads(found.stdout)["id"]
        config, name = self._config, spec.rpartition("/")[2]
        place = f"{config.pool}/{config.namespace}"
        return Result(0, f"/dev/{self._kernel.krbd(name, image_id, place=place, fsid=config.fsid)}", "")


@pytest.fixture
def given(cluster: Commands) -> Strings:
    return {"userID": cluster.user, "userKey": cluster.key}


@pytest.fixture
def rendered(config: Config) -> Config:
    """The configuration that the chart gives to controller and nodes alike, for this cluster."""
    objects = yaml.safe_load_all(MANIFEST.read_text())
    (text,) = [found["data"]["config.yaml"] for found in objects if found and found["kind"] == "ConfigMap"]
    facts = yaml.safe_load(text)["backends"]["ceph"]
    del facts["kind"]
    here = {name: getattr(config, name) for name in ("monitors", "fsid", "pool", "namespace", "user")}
    return msgspec.convert({**facts, **here}, Config)


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeKernel:
    kernel = FakeKernel(tmp_path / "node")
    monkeypatch.setattr(devices, "BlockDevices", lambda: kernel)
    return kernel


@pytest.fixture
def start(kernel: FakeKernel, rendered: Config, setting: Setting) -> Iterator[Callable[[], RbdBackend]]:
    """Start the node's driver (again)."""
    made: list[RbdBackend] = []

    def start() -> RbdBackend:
        made.append(RbdBackend(rendered, replace(setting, controller=False), Mapping(kernel, rendered)))
        return made[-1]

    yield start
    for backend in made:
        backend.close()


@pytest.fixture
def node(start: Callable[[], RbdBackend]) -> RbdBackend:
    return start()


@pytest.fixture
def volume(backend: RbdBackend) -> Volume:
    """Made by the controller."""
    return create(backend, "v")


def opened(node: RbdBackend, volume: Volume, secrets: Strings, **more: Any) -> Device:
    return node.open_device(OpenRequest(handle=volume.handle, read_only=False, secrets=secrets, **more))


def blank(node: RbdBackend, volume: Volume) -> Blank | None:
    device = node.find_device(volume.handle)
    return device.blank if device else None


def noted(cluster: Commands, backend: RbdBackend, volume: Volume) -> str:
    """What the image itself says."""
    texts = cluster.rbd("image-meta", "list", "--format", "json", backend.main.client.spec(image(backend, volume)))
    return str(json.loads(texts or "{}").get("csi-multi-format", ""))


def test_the_key_of_a_request_is_enough_from_the_first_stage_to_the_last_unstage(
    cluster: Commands, backend: RbdBackend, node: RbdBackend, volume: Volume, given: Strings
) -> None:
    node.check()
    node.resume()
    assert opened(node, volume, given).blank is Blank.ZEROED
    node.formatting(volume.handle)
    assert noted(cluster, backend, volume) == "began"
    node.formatted(volume.handle)
    assert noted(cluster, backend, volume) == "done"
    node.formatted(volume.handle)
    node.refresh_device(volume.handle)
    assert node.node_volume_health(volume.handle) == ()
    assert node.node_storage_health(NONE) == ()
    node.close_device(volume.handle)

    assert node.find_device(volume.handle) is None
    assert node.node_volume_health(volume.handle) == ()
    assert opened(node, volume, given).blank is Blank.NEVER


def test_a_mkfs_that_was_killed_is_taken_up_again_by_the_next_stage(
    start: Callable[[], RbdBackend], volume: Volume, given: Strings
) -> None:
    killed = start()
    opened(killed, volume, given)
    killed.formatting(volume.handle)

    again = start()
    assert opened(again, volume, given).blank is Blank.INTERRUPTED
    again.formatting(volume.handle)
    again.formatted(volume.handle)
    assert opened(start(), volume, given).blank is Blank.NEVER


def test_an_image_whose_mkfs_has_begun_takes_no_data_before_that_is_unsaid(
    cluster: Commands, backend: RbdBackend, start: Callable[[], RbdBackend], volume: Volume, given: Strings
) -> None:
    """Else the next node would take the data for the rest of a mkfs that was killed, and format."""
    killed = start()
    opened(killed, volume, given)
    killed.formatting(volume.handle)

    again = start()
    with pytest.raises(Unavailable, match="unpublish and unstage"):
        again.formatted(volume.handle)
    again.close_device(volume.handle)
    opened(again, volume, given)
    again.formatted(volume.handle)
    assert noted(cluster, backend, volume) == "done"


def test_what_the_restarted_driver_cannot_note_is_noted_when_it_is_staged_again(
    cluster: Commands, backend: RbdBackend, start: Callable[[], RbdBackend], volume: Volume, given: Strings
) -> None:
    """Nothing says that mkfs has begun, so that the filesystem itself is proof enough for as long."""
    opened(start(), volume, given)
    again = start()
    again.formatted(volume.handle)
    assert blank(again, volume) is Blank.NEVER
    assert noted(cluster, backend, volume) == ""
    again.close_device(volume.handle)
    opened(again, volume, given)
    again.formatted(volume.handle)
    assert noted(cluster, backend, volume) == "done"


def test_what_was_formatted_before_is_not_formatted_again_nor_taken_for_torn(
    node: RbdBackend, volume: Volume, given: Strings
) -> None:
    opened(node, volume, given)
    node.formatted(volume.handle)
    node.close_device(volume.handle)
    stale = OpenRequest(handle=volume.handle, read_only=False, secrets=given)
    node.main.format_state.remember_key(stale, Blank.ZEROED)  # as a request would that was delayed on its way
    with pytest.raises(FailedPrecondition, match="may hold data and must not be formatted"):
        node.formatting(volume.handle)


def test_no_key_is_kept_once_it_has_done_its_work(node: RbdBackend, volume: Volume, given: Strings) -> None:
    for last in (node.close_device, node.formatted):
        opened(node, volume, given)
        last(volume.handle)
        assert given["userKey"] not in repr(vars(node.main.format_state))
    opened(node, volume, given)
    assert given["userKey"] not in repr(vars(node.main.format_state))  # nothing is left to be noted


def test_a_request_without_a_key_is_told_what_is_missing_and_keeps_none_with_a_key_waiting(
    node: RbdBackend, volume: Volume, given: Strings, rendered: Config
) -> None:
    with pytest.raises(Unavailable, match=rf"keyring {rendered.keyring} does not exist here.*node-stage-secret"):
        opened(node, volume, NONE)
    assert opened(node, volume, given).blank is Blank.ZEROED


def test_a_keyring_that_comes_later_is_used(
    cluster: Commands, backend: RbdBackend, node: RbdBackend, volume: Volume, tmp_path: Path
) -> None:
    keyring = tmp_path / "keyring"
    late = RbdBackend(
        msgspec.structs.replace(node.config, keyring=str(keyring)), node.setting, node.main.client.connection.runner
    )
    with pytest.raises(Unavailable):
        opened(late, volume, NONE)
    keyring.write_bytes(cluster.keyring.read_bytes())
    opened(late, volume, NONE)
    late.formatting(volume.handle)
    late.formatted(volume.handle)
    assert noted(cluster, backend, volume) == "done"
    late.close()


def test_a_controller_whose_keyring_is_not_there_says_so(rendered: Config, setting: Setting) -> None:
    controller = RbdBackend(rendered, setting)
    for act in (controller.check, lambda: create(controller, "v"), lambda: controller.formatting("v")):
        with pytest.raises(Unavailable, match=rf"keyring {rendered.keyring} does not exist here"):
            act()
    controller.close()


FAST = "layering,exclusive-lock,object-map,fast-diff"
SPARSE = 64 * 1024 * MIB  # of objects of 4 MiB, more than are looked at one by one


@pytest.mark.parametrize(
    ("features", "size"), [(FAST, SPARSE), ("layering", 64 * MIB)], ids=["with fast-diff", "without it, small"]
)
@pytest.mark.parametrize("at", [0, 17 * MIB + 3, 64 * MIB - 1])
def test_bytes_put_in_from_outside_are_known_to_the_cluster(
    cluster: Cluster, backend: RbdBackend, features: str, size: int, at: int
) -> None:
    volume = create(backend, "v", size, image_features=features)
    assert backend.has_data(volume.handle) is False

    write(cluster, backend, volume, b"x", at)

    assert backend.has_data(volume.handle) is True


def test_nobody_counts_the_objects_of_a_large_image_without_fast_diff(cluster: Cluster, backend: RbdBackend) -> None:
    volume = create(backend, "v", SPARSE, image_features="layering")

    with watched() as seen:
        assert backend.has_data(volume.handle) is None
    assert [one for one in seen if "rbd du" in one] == []


def test_an_object_map_that_the_cluster_calls_invalid_proves_nothing(cluster: Cluster, backend: RbdBackend) -> None:
    volume = create(backend, "v", SPARSE, image_features="layering,exclusive-lock")
    write(cluster, backend, volume, b"x", 5 * MIB)
    cluster.rbd("feature", "enable", spec(backend, volume), "object-map", "fast-diff")

    assert "object map invalid" in info(cluster, backend, volume)["flags"]
    assert backend.has_data(volume.handle) is None


def test_a_copy_has_the_data_of_its_source(backend: RbdBackend) -> None:
    source = create(backend, "v")

    assert backend.has_data(copy(backend, "c", source).handle) is True


def test_a_node_knows_of_data_with_the_key_of_the_request(
    cluster: Cluster, backend: RbdBackend, node: RbdBackend, volume: Volume, given: Strings
) -> None:
    assert node.has_data(volume.handle) is None
    opened(node, volume, given)
    assert node.has_data(volume.handle) is False
    write(cluster, backend, volume, b"x", 9 * MIB)
    assert node.has_data(volume.handle) is True
