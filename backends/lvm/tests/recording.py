"""A client of lvm whose commands all have the same result."""

from __future__ import annotations

from typing import Any

from csi_multi_lvm.client import Client
from csi_multi_lvm.config import Config

from csi_multi.contract import Result


class RecordingHost:
    """A host on which every command has the same result, and that records the last command."""

    def __init__(self, result: Result) -> None:
        self.result = result
        self.argv: tuple[str, ...] = ()

    def run(self, *argv: str, ok: tuple[int, ...] = (0,), **_: Any) -> Result:
        assert ok == (0, 3, 5)
        self.argv = argv
        return self.result


def client_with(status: int = 0, stdout: str = "", stderr: str = "", **config: Any) -> tuple[Client, RecordingHost]:
    """Return a client whose commands have this result, and the host that records them."""
    host = RecordingHost(Result(status, stdout, stderr))
    return Client(host, Config(volume_group="vg0", **config)), host
