"""An instance in a process of its own: each line of its input is a call, and each line of its output the answer."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from csi_multi_loop import directory_notes
from csi_multi_loop.backend import LoopBackend
from csi_multi_loop.config import Config

from csi_multi.contract import (
    CapacityRequest,
    ExpandRequest,
    Setting,
    SizeRange,
    SnapshotRequest,
    Stamp,
    StorageError,
    VolumeRequest,
)
from csi_multi.host.command import LocalHost


class Calls:
    def __init__(self, backend: LoopBackend, driver: str) -> None:
        self._backend = backend
        self._driver = driver

    def resume(self) -> None:
        self._backend.resume()

    def check(self) -> None:
        self._backend.check()

    def capacity(self) -> int:
        return self._backend.capacity(CapacityRequest()).available

    def create(self, name: str, size: int) -> int:
        return self._backend.create_volume(VolumeRequest(stamp=self._stamp(name), size=SizeRange(required=size))).size

    def expand(self, name: str, size: int) -> int:
        return self._backend.expand_volume(ExpandRequest(handle=f"node-1/{name}", size=SizeRange(required=size))).size

    def snapshot(self, name: str, source: str) -> None:
        self._backend.create_snapshot(SnapshotRequest(stamp=self._stamp(name), source=f"node-1/{source}"))

    def delete(self, name: str) -> None:
        self._backend.delete_volume(f"node-1/{name}", {})

    def _stamp(self, name: str) -> Stamp:
        return Stamp(driver=self._driver, cluster="c", name=name, digest="d")


def main(notes: str, directory: str, driver: str) -> None:
    directory_notes.NOTES = Path(notes)
    config = Config(directory=directory, reserve_percent=0, min_size=4096)
    setting = Setting(instance="scratch", driver=driver, cluster="c", node="node-1", host=LocalHost())
    calls = Calls(LoopBackend(config, setting), driver)
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        print(json.dumps(answer(getattr(calls, name), arguments)), flush=True)


def answer(call: Any, arguments: list[Any]) -> tuple[str, Any]:
    try:
        return "", call(*arguments)
    except StorageError as error:
        return type(error).__name__, str(error)


if __name__ == "__main__":
    main(*sys.argv[1:])
