"""A node that is out of service is cut off from the volume that another node needs, and no other node ever is."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
from csi_multi_rbd import labels
from csi_multi_rbd.backend import RbdBackend
from csi_multi_rbd.config import Config
from csi_multi_rbd.fencing import Fence

from csi_multi.contract import FailedPrecondition, PermissionDenied, Setting, Unavailable

from .ceph import Cluster
from .fake_node import OURS, FakeRbd, Node
from .volumes import BACKGROUND_SECONDS, create, held, image, spec

THEIRS = "192.0.2.7:0/7"
RECORD = json.dumps({"node": "node-2", "client": THEIRS})


class FencedRbd(FakeRbd):
    """One whose image-meta and blocklist can be looked at."""

    def __init__(self, *words: Any) -> None:
        super().__init__(*words)
        self.recorded: dict[str, str] = {}
        self.blocked: list[str] = []

    def set_metadata(self, image: str, key: str, value: str) -> None:
        self._at("image-meta set")
        self.recorded[key] = value

    def blocklist(self, address: str, seconds: int) -> None:
        self._at("blocklist")
        self.blocked.append(address)
        self.strangers = [one for one in self.strangers if one != address]


@pytest.fixture
def rbd(kernel: Any) -> FencedRbd:
    return FencedRbd(kernel)


def fenced(rbd: FencedRbd, setting: Setting, gone: Callable[[str], bool] | None = None, **values: Any) -> Node:
    rbd.image("v")
    told = dataclasses.replace(setting, out_of_service=gone or (lambda node: node == "node-2"))
    return Node(rbd, told, **{"fencing": True, **values})


def unreachable(node: str) -> bool:
    raise Unavailable(f"the API does not tell of {node}")


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("mounter", ["rbd", "rbd-nbd"])
def test_a_volume_moves_from_a_node_that_is_out_of_service(rbd: FencedRbd, setting: Setting, mounter: str) -> None:
    rbd.strangers = [THEIRS]
    node = fenced(rbd, setting)
    node.open(mounter=mounter, holder=RECORD)

    assert rbd.blocked == [THEIRS]
    assert json.loads(rbd.recorded[labels.HOLDER]) == {"node": "node-1", "client": OURS}


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("recorded", "gone", "values"),
    [
        (RECORD, lambda _: False, {}),
        (RECORD, unreachable, {}),
        (RECORD, None, {"fencing": False}),
        (RECORD.replace("node-2", "node-3"), None, {}),
        (RECORD.replace("node-2", "node-1"), lambda _: True, {}),
        (RECORD.replace("/7", "/8"), None, {}),
        ("", lambda _: True, {}),
        ("{}", lambda _: True, {}),
        ("damaged", lambda _: True, {}),
    ],
    ids=["serves", "not known", "off", "another node", "this node", "another client", "none", "empty", "damaged"],
)
def test_no_other_client_is_cut_off(
    rbd: FencedRbd, setting: Setting, recorded: str, gone: Any, values: dict[str, Any]
) -> None:
    rbd.strangers = [THEIRS]
    node = fenced(rbd, setting, gone, **values)

    with pytest.raises(FailedPrecondition, match="in use elsewhere"):
        node.open(holder=recorded)
    assert rbd.blocked == []


@pytest.mark.usefixtures("impatient")
def test_a_volume_that_many_nodes_use_is_taken_from_none(rbd: FencedRbd, setting: Setting) -> None:
    rbd.strangers = [THEIRS]
    for _ in range(2):
        fenced(rbd, setting).open(exclusive=False, holder=RECORD)

    assert (rbd.blocked, rbd.recorded) == ([], {})


@pytest.mark.usefixtures("impatient")
def test_a_node_records_its_client_once(rbd: FencedRbd, setting: Setting) -> None:
    node = fenced(rbd, setting)
    node.open()
    rbd.asked.clear()
    node.open(holder=rbd.recorded[labels.HOLDER])

    assert rbd.asked == ["watchers"]


@pytest.mark.usefixtures("impatient")
def test_without_fencing_nothing_is_recorded(rbd: FencedRbd, setting: Setting) -> None:
    fenced(rbd, setting, fencing=False).open()

    assert rbd.recorded == {}


# On a real cluster.


@contextmanager
def writing(cluster: Cluster, image: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Let a client write to an image without end; yield it and its address."""
    conf = ("--conf", str(cluster.directory / "ceph.conf"))
    words = ("--io-type", "write", "--io-size", "4K", "--io-total", "1T", "--io-threads", "1", "--io-pattern", "rand")
    process = subprocess.Popen(
        ("rbd", *conf, "bench", image, *words), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        cluster.wait(lambda: watchers(cluster, image) != [], "be written to")
        yield process, watchers(cluster, image)[0]
    finally:
        process.kill()
        process.wait()


def watchers(cluster: Cluster, image: str) -> list[str]:
    return [one["address"] for one in json.loads(cluster.rbd("status", "--format", "json", image))["watchers"]]


def test_a_client_that_is_cut_off_writes_no_more_and_is_forgotten_at_once(
    cluster: Cluster, backend: RbdBackend, config: Config, setting: Setting
) -> None:
    volume, other = create(backend, "v"), create(backend, "w")
    fence = Fence(
        msgspec.structs.replace(config, fencing=True), dataclasses.replace(setting, out_of_service=lambda _: True)
    )
    with (
        held(cluster, backend, other) as healthy,
        writing(cluster, spec(backend, volume)) as (writer, address),
    ):
        started = time.monotonic()
        fence.cut_off(backend.main.client, image(backend, volume), (address,), RECORD.replace(THEIRS, address))

        assert writer.wait(BACKGROUND_SECONDS) != 0
        cluster.wait(lambda: watchers(cluster, spec(backend, volume)) == [], "forget the client")
        assert time.monotonic() - started < 20  # its watch alone would last for 30 s
        assert watchers(cluster, spec(backend, other)) == [healthy]
    cluster.ceph("osd", "blocklist", "rm", address)  # fails for one that is not on the list


def test_a_user_that_may_not_cut_off_is_told_so(
    cluster: Cluster, backend: RbdBackend, config: Config, setting: Setting
) -> None:
    create(backend, "v")
    cluster.ceph("auth", "caps", f"client.{cluster.user}", "mon", "allow r", "osd", f"profile rbd pool={cluster.pool}")
    fence = Fence(
        msgspec.structs.replace(config, fencing=True), dataclasses.replace(setting, out_of_service=lambda _: True)
    )
    try:
        with pytest.raises(PermissionDenied):
            fence.cut_off(backend.main.client, "v", (THEIRS,), RECORD)
    finally:
        profile = f"profile rbd pool={cluster.pool}"
        cluster.ceph("auth", "caps", f"client.{cluster.user}", "mon", "profile rbd", "osd", profile, "mgr", profile)
