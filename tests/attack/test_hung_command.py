"""A host command that hangs holds one thread and one lock; other calls are served, or refused with its name."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from csi_multi.config.settings import load_config
from csi_multi.contract import Result
from csi_multi.host.command import LocalHost
from csi_multi.loading.loader import load_instances
from csi_multi.rpc.capabilities import Mode
from csi_multi.rpc.client import Client
from csi_multi.rpc.server import build_server

pytestmark = [pytest.mark.root, pytest.mark.slow]

MIB = 1 << 20
MOUNT = {"mount": {"fs_type": "ext4"}, "access_mode": {"mode": "SINGLE_NODE_WRITER"}}
WORKERS = 8
CONFIG = """\
driver: {{name: hung.csi-multi.example, node: n1, default_backend: scratch, workers: {workers}}}
backends:
  scratch: {{kind: loop, directory: {directory}/scratch, reserve_percent: 0}}
"""


class HungHost(LocalHost):
    """The real machine, on which mkfs does not return until the test releases it."""

    def __init__(self) -> None:
        self.hanging = 0
        self.released = threading.Event()

    def run(self, *argv: str, **options: Any) -> Result:
        if argv[0] == "mkfs.ext4" and not self.released.is_set():
            self.hanging += 1
            self.released.wait(60)
        return super().run(*argv, **options)


@dataclass
class Served:
    client: Client
    host: HungHost
    directory: Path

    def staging(self, name: str) -> dict[str, Any]:
        wanted = {"capacity_range": {"required_bytes": 32 * MIB}, "volume_capabilities": [MOUNT]}
        volume = self.client.CreateVolume(name=name, **wanted).volume.volume_id
        place = self.directory / name
        place.mkdir()
        return {"volume_id": volume, "staging_target_path": str(place)}

    def stage(self, fields: dict[str, Any]) -> threading.Thread:
        call = self.client.NodeStageVolume
        thread = threading.Thread(target=lambda: call(**fields, volume_capability=MOUNT))
        before = self.host.hanging
        thread.start()
        while self.host.hanging == before:
            time.sleep(0.01)
        return thread


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    file = tmp_path / "config.yaml"
    file.write_text(CONFIG.format(directory=tmp_path, workers=WORKERS))
    settings, host = load_config(file), HungHost()
    instances = load_instances(settings, host)
    server = build_server(settings.driver, instances, host, Mode.ALL)
    server.add_insecure_port(f"unix:{tmp_path}/csi.sock")
    server.start()
    client = Client(f"unix:{tmp_path}/csi.sock")
    yield Served(client, host, tmp_path)
    client.close()
    server.stop(5).wait()
    instances.close()


def cleanup(served: Served, *staged: dict[str, Any]) -> None:
    for fields in staged:
        served.client.NodeUnstageVolume(**fields)
        served.client.DeleteVolume(volume_id=fields["volume_id"])


def test_probe_answers_and_the_retry_is_told_who_holds_the_volume(served: Served) -> None:
    fields = served.staging("v")
    hung = served.stage(fields)
    times = []
    for _ in range(50):
        began = time.monotonic()
        served.client.Probe()
        times.append(time.monotonic() - began)
    with pytest.raises(grpc.RpcError) as refused:
        served.client.NodeStageVolume(**fields, volume_capability=MOUNT)

    assert statistics.median(times) < 2  # what hangs does so until the test ends it
    assert refused.value.code() is grpc.StatusCode.ABORTED
    assert "NodeStageVolume has held volume on this node 'scratch/n1/v' for" in refused.value.details()
    served.host.released.set()
    hung.join()
    served.client.NodeStageVolume(**fields, volume_capability=MOUNT)
    cleanup(served, fields)


def test_probe_answers_and_new_work_is_refused_when_every_working_thread_hangs(served: Served) -> None:
    rooms = WORKERS * 5 // 8
    staged = [served.staging(f"v{number}") for number in range(rooms)]
    one_more = served.staging("one-more")
    hung = [served.stage(fields) for fields in staged]
    began = time.monotonic()
    served.client.Probe()
    took = time.monotonic() - began
    with pytest.raises(grpc.RpcError) as refused:
        served.client.NodeStageVolume(**one_more, volume_capability=MOUNT)

    assert took < 10
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    served.host.released.set()
    for thread in hung:
        thread.join()
    cleanup(served, *staged, one_more)
