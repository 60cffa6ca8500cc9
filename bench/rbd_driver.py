"""A controller with one rbd instance in a process of its own; its log tells how many commands each RPC takes."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from csi_multi.rpc.client import Client

from .processes import Server, running

SIZE = 64 << 20
WRITER = {"mount": {"fs_type": "ext4"}, "access_mode": {"mode": "SINGLE_NODE_WRITER"}}
AGAIN = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.ABORTED)
PAUSE = 0.1  # seconds
RARELY = 86400  # seconds: no check of the storage in the measured time
LONG = 600.0  # seconds for an RPC
QUIET = 1.0  # seconds without a command after which the background counts as idle
CONFIG = """\
driver:
  {name: bench.csi-multi.example, node: bench-node, log_style: json, log_level: %s, workers: 256, check_seconds: %d}
backends:
  ceph: %s
"""
GROUPS = ("image-meta", "snap", "trash", "rbd", "osd")  # whose verb is the second word
Json = Mapping[str, Any]


class Log:
    """The driver's log at level debug: a command is logged when it ends."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._read = 0

    def commands(self) -> list[str]:
        """Return the verbs of the commands since the last call, in order."""
        with self._file.open() as log:
            log.seek(self._read)
            lines = log.readlines()
            if lines and not lines[-1].endswith("\n"):
                lines.pop()
            self._read += sum(len(line.encode()) for line in lines)
        entries = [json.loads(line) for line in lines if line.startswith("{")]
        return [verb(one["argv"]) for one in entries if one["message"] == "command" and "argv" in one]

    def settle(self) -> list[str]:
        """Wait until the background is idle; return the verbs of its commands."""
        found: list[str] = []
        silent = time.monotonic()
        while time.monotonic() < silent + QUIET:
            if more := self.commands():
                found += more
                silent = time.monotonic()
            time.sleep(0.05)
        return found


def verb(argv: list[str]) -> str:
    """Return the verb of a command: "create", "image-meta set". Options before it have a value each.

    A `ceph` that is asked through its standard input has no verb.
    """
    words = argv[1:]
    while words and words[0].startswith("-"):
        words = words[2:]
    plain = [word for word in words if not word.startswith("-")]
    shown = plain[: 2 if plain[:1] and plain[0] in GROUPS else 1]
    return " ".join(shown if argv[0].endswith("rbd") else [argv[0], *shown])


@contextmanager
def driver(
    directory: Path, name: str, instance: Json, *, level: str = "error", checks: int = RARELY
) -> Iterator[tuple[Server, Client]]:
    """Run a controller for the block. It checks its storage every `checks` seconds."""
    file = directory / f"{name}.yaml"
    file.write_text(CONFIG % (level, checks, json.dumps({"kind": "rbd", **instance})))
    serve = (sys.executable, "-m", "csi_multi", "serve", "--mode", "controller", "--config", str(file))
    with running(directory, name, serve) as server:
        client = Client(server.endpoint, timeout=LONG)
        try:
            client.wait(timeout=60)
            yield server, client
        finally:
            client.close()


def volume_request(name: str, *, source: dict[str, Any] | None = None, size: int = SIZE) -> dict[str, Any]:
    """Return the fields of a CreateVolume."""
    return {
        "name": name,
        "capacity_range": {"required_bytes": size},
        "volume_capabilities": [WRITER],
        "parameters": {"backend": "ceph"},
        "volume_content_source": source,
    }


def patiently(client: Client, rpc: str, **fields: Any) -> Any:
    """Repeat a call until it succeeds, as sidecars do."""
    while True:
        try:
            return getattr(client, rpc)(**fields)
        except grpc.RpcError as error:
            if error.code() not in AGAIN:
                raise
        time.sleep(PAUSE)


class Life:
    """Runs the RPCs of a volume's life. `made` has the commands of each, without those of the background."""

    def __init__(self, client: Client, log: Log) -> None:
        self.made: dict[str, list[str]] = {}
        self._client = client
        self._log = log

    def live(self) -> dict[str, list[str]]:
        patiently(self._client, "GetCapacity", parameters={"backend": "ceph"})  # what a start does is over then
        self._log.settle()
        self._count("GetCapacity", parameters={"backend": "ceph"})
        first = self._volume("first")
        self._volume("first", ", again")
        self._count("ValidateVolumeCapabilities", volume_id=first, volume_capabilities=[WRITER])
        self._count("ControllerExpandVolume", volume_id=first, capacity_range={"required_bytes": 2 * SIZE})
        cut = self._count("CreateSnapshot", source_volume_id=first, name="cut").snapshot.snapshot_id
        self._count("CreateSnapshot", ", again", source_volume_id=first, name="cut")
        for rpc in ("ListVolumes", "ListSnapshots"):
            self._count(rpc)
            self._count(rpc, ", again")
        snapshot, volume = {"snapshot": {"snapshot_id": cut}}, {"volume": {"volume_id": first}}
        copies = [
            self._volume("restored", ", restore", snapshot),
            self._volume("restored-2", ", second restore", snapshot),
            self._volume("cloned", ", clone", volume),
        ]
        self._count("DeleteVolume", volume_id=copies[0])
        self._count("DeleteSnapshot", snapshot_id=cut)
        self._count("DeleteVolume", ", with snapshots made of it", volume_id=first)
        self._count("DeleteVolume", ", of one that is gone", volume_id=first)
        return self.made

    def _volume(self, name: str, which: str = "", source: dict[str, Any] | None = None) -> str:
        fields = volume_request(f"life-{name}", source=source, size=2 * SIZE if source else SIZE)
        return str(self._count("CreateVolume", which, **fields).volume.volume_id)

    def _count(self, rpc: str, which: str = "", **fields: Any) -> Any:
        answer = patiently(self._client, rpc, **fields)
        self.made[rpc + which] = self._log.commands()
        if later := self._log.settle():
            self.made[f"{rpc}{which}, background"] = later
        return answer
