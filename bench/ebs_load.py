"""Volumes made and attached through a driver by many threads, as the sidecars of a large cluster do it.

Called with: the driver's endpoint, a backend, volumes, threads, a name, instances. A call that the driver
refuses because all its threads are taken is sent again. Prints a JSON object: the seconds that creating and
attaching took, and how often it was refused.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from csi_multi.rpc.client import Client

AGAIN = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.ABORTED)
PAUSE = 0.1  # seconds; the sidecars wait longer
WRITER = {"mount": {"fs_type": "ext4"}, "access_mode": {"mode": "SINGLE_NODE_WRITER"}}
ZONE = {"segments": {"bench.csi-multi.example/zone": "eu-west-1a"}}


class Load:
    def __init__(self, endpoint: str, backend: str, threads: int) -> None:
        self._backend = backend
        self._client = Client(endpoint, timeout=600)
        self._client.wait()
        self._pool = ThreadPoolExecutor(threads)
        self._lock = threading.Lock()
        self.refused = 0

    def all(self, work: Callable[[int], Any], volumes: int) -> tuple[list[Any], float]:
        began = time.perf_counter()
        return list(self._pool.map(work, range(volumes))), time.perf_counter() - began

    def close(self) -> None:
        self._pool.shutdown()
        self._client.close()

    def create(self, name: str) -> str:
        made = self._call(
            "CreateVolume",
            name=name,
            parameters={"backend": self._backend},
            capacity_range={"required_bytes": 1 << 30},
            volume_capabilities=[WRITER],
            accessibility_requirements={"requisite": [ZONE], "preferred": [ZONE]},
        )
        return str(made.volume.volume_id)

    def attach(self, volume: str, instance: str) -> None:
        node = f"node-{instance};{self._backend}={instance}"
        self._call("ControllerPublishVolume", volume_id=volume, node_id=node, volume_capability=WRITER)

    def _call(self, rpc: str, **fields: Any) -> Any:
        while True:
            try:
                return getattr(self._client, rpc)(**fields)
            except grpc.RpcError as error:
                if error.code() not in AGAIN:
                    raise
            with self._lock:
                self.refused += 1
            time.sleep(PAUSE)


def main(endpoint: str, backend: str, volumes: str, threads: str, name: str, *instances: str) -> None:
    load = Load(endpoint, backend, int(threads))
    ids, created = load.all(lambda number: load.create(f"{name}-{number}"), int(volumes))
    _, attached = load.all(lambda at: load.attach(ids[at], instances[at % len(instances)]), int(volumes))
    print(json.dumps({"create": created, "attach": attached, "refused": load.refused}))
    load.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
