"""Hostile requests over all 36 RPCs, to a real driver with real devices and mounts: 8,000, or 20,000 with MATRIX=1."""

from __future__ import annotations

import hashlib
import os
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
from csi_multi_testing import requests
from hypothesis import HealthCheck, given, settings

from csi_multi.host import loopdev
from csi_multi.process.driver_process import DriverProcess
from csi_multi.rpc.client import Client

pytestmark = [pytest.mark.root, pytest.mark.slow]

REQUESTS = 20_000 if os.environ.get("MATRIX") else 8_000
RPCS = sorted(requests.methods())
EACH = REQUESTS * 36 // 1000  # hypothesis stops early for the seven RPCs that have no fields to vary
BUGS = {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.DEADLINE_EXCEEDED}
LIMIT = 30.0  # seconds; an RPC that takes longer hangs
CONFIG = """\
driver: {{name: multi.csi.example.com, node: node-1, default_backend: scratch, alpha: true, log_level: error}}
backends:
  scratch: {{kind: loop, directory: {directory}/scratch, reserve_percent: 0}}
"""


@dataclass
class Attacked:
    driver: DriverProcess
    client: Client
    known: dict[str, tuple[str, ...]]
    outside: Path
    codes: Counter[str] = field(default_factory=Counter)


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    """A driver in a mount namespace of its own, and a tree of files that it must not change."""
    directory = tmp_path_factory.mktemp("fuzz")
    outside = strangers(directory / "outside")
    for name in ("staging", "targets"):
        (directory / name).mkdir()
        (directory / name / "a").mkdir()
    wrapper = ("unshare", "--mount", "--propagation", "private")
    driver = DriverProcess(directory, CONFIG.format(directory=directory), wrapper=wrapper)
    client = driver.start()
    volumes = tuple(make(client, f"v{number}") for number in range(3))
    snapshot = client.CreateSnapshot(name="s", source_volume_id=volumes[0]).snapshot.snapshot_id
    targets = (
        *(f"{directory}/targets/{name}" for name in "abc"),
        *(f"{outside}/{name}" for name in os.listdir(outside)),
    )
    staging = (f"{directory}/staging/a", *targets)
    known = dict(requests.KNOWN) | {
        "volume_id": (*volumes, "scratch/node-1/absent", "scratch/node-2/v0", "scratch/v0"),
        "source_volume_id": volumes,
        "snapshot_id": (snapshot, "scratch/node-1/absent"),
        "name": ("v0", "v1", "s", "new"),
        "parameters": ("backend", "sectorSize", "blockSize"),
        "staging_target_path": staging,
        "target_path": targets,
        "volume_path": (*targets, *staging),
        "volume_publish_path": targets,
        "fs_type": ("", "ext4", "ext4", "xfs", "btrfs", "ntfs"),
    }
    yield Attacked(driver, client, known, outside)
    client.close()
    driver.stop()
    for device, file in loopdev.bound_devices().items():
        if file.startswith(f"{directory}/"):
            os.system(f"losetup --detach {device}")


def make(client: Client, name: str) -> str:
    mount = {"mount": {}, "access_mode": {"mode": "SINGLE_NODE_WRITER"}}
    size = {"required_bytes": 32 << 20}
    return str(client.CreateVolume(name=name, volume_capabilities=[mount], capacity_range=size).volume.volume_id)


def strangers(place: Path) -> Path:
    """Create files of all kinds that the driver must not change."""
    place.mkdir()
    (place / "file").write_text("precious")
    (place / "full").mkdir()
    (place / "full" / "file").write_text("precious")
    (place / "link").symlink_to("full")
    (place / "to-file").symlink_to("file")
    (place / "dangling").symlink_to("nowhere")
    os.mkfifo(place / "fifo")
    return place


def state(place: Path) -> dict[str, tuple[Any, ...]]:
    """Return everything about a tree that an intruder could change."""
    found = {}
    for path in sorted([place, *place.rglob("*")]):
        status = path.lstat()
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        link = str(path.readlink()) if path.is_symlink() else ""
        found[str(path)] = (
            status.st_mode,
            status.st_uid,
            status.st_gid,
            status.st_mtime_ns,
            status.st_ino,
            content,
            link,
        )
    return found


@pytest.mark.parametrize("rpc", RPCS)
def test_a_hostile_request_gets_a_clear_answer_and_touches_nothing_else(rpc: str, attacked: Attacked) -> None:
    before = state(attacked.outside)
    call = getattr(attacked.client, rpc)

    @settings(max_examples=EACH, database=None, suppress_health_check=list(HealthCheck))
    @given(requests.request(rpc, attacked.known))
    def attack(message: Any) -> None:
        began = time.monotonic()
        code, text = outcome(call, message)
        attacked.codes[code.name] += 1
        assert code not in BUGS, text
        assert "internal error" not in text
        assert code is grpc.StatusCode.OK or text
        assert time.monotonic() - began < LIMIT

    attack()
    assert state(attacked.outside) == before


def test_the_attack_reached_every_layer(attacked: Attacked) -> None:
    print(dict(attacked.codes))
    assert sum(attacked.codes.values()) >= REQUESTS
    assert {"OK", "INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION", "UNIMPLEMENTED"} <= set(attacked.codes)
    attacked.client.Probe()


def outcome(call: Any, message: Any) -> tuple[grpc.StatusCode, str]:
    try:
        answer = call(message, timeout=LIMIT)
        if hasattr(answer, "__next__"):
            list(answer)
    except grpc.RpcError as error:
        return error.code(), error.details() or ""
    return grpc.StatusCode.OK, ""
