"""`csi-multi demo`: a volume's whole life against a private driver process, as an orchestrator lives it.

Real loop devices, real filesystems, real mounts, all below one temporary directory. What it makes it
removes, also when it fails or is interrupted, and it fails if anything is left.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import grpc

from .host import loopdev, mounts
from .host.command import start
from .rpc.client import Client

MIB = 1 << 20
SIZE = {"ext4": 64 * MIB, "xfs": 320 * MIB, "btrfs": 160 * MIB}  # about the least each of them takes
CONFIG = """\
driver: {name: demo.csi-multi.example, node: demo-node, log_style: json}
backends:
  scratch: {kind: loop, directory: %s/volumes}
"""


class DemoError(Exception):
    """Something that the demo is there to show did not happen."""


def demo(fs_type: str) -> int:
    """Run the demo; return 0 when all that it shows is true and nothing is left behind."""
    if os.geteuid() != 0:
        print("csi-multi demo makes loop devices and mounts, so it needs root: sudo csi-multi demo", file=sys.stderr)
        return 2
    directory = Path(tempfile.mkdtemp(prefix="csi-multi-demo-")).resolve()
    started = time.monotonic()
    try:
        with _interruptible(), _driver(directory) as client, ExitStack() as cleanup:
            Play(client, directory, fs_type, cleanup).run()
        _refuse_leftovers(directory)
    except (DemoError, grpc.RpcError, KeyboardInterrupt) as error:
        print(f"\ndemo failed: {_text(error)}", file=sys.stderr)
        print((directory / "driver.log").read_text()[-2000:] if not isinstance(error, KeyboardInterrupt) else "")
        return 1
    finally:
        _sweep(directory)
    print(f"\nAll data intact, nothing left behind, {time.monotonic() - started:.1f} s.")
    return 0


class Play:
    """The orchestrator's part. Every RPC is shown with its time; cleanup undoes each step, last first."""

    def __init__(self, client: Client, directory: Path, fs_type: str, cleanup: ExitStack) -> None:
        self._client = client
        self._directory = directory
        self._fs_type = fs_type
        self._size = SIZE[fs_type]
        self._cleanup = cleanup
        self._undo: dict[str, list[Any]] = {}

    def run(self) -> None:
        info = self._rpc("GetPluginInfo")
        self._say(f"talking to {info.name} {info.vendor_version}")
        self._rpc("Probe")

        volume = self._create("demo-volume")
        target = self._mount(volume, "first")
        wanted = self._write(target / "data", 16 * MIB)
        self._say(f"wrote 16 MiB of random bytes, sha256 {wanted[:16]}…")

        snapshot = self._rpc("CreateSnapshot", source_volume_id=volume, name="demo-snapshot").snapshot
        self._cleanup.callback(self._rpc, "DeleteSnapshot", snapshot_id=snapshot.snapshot_id)
        self._write(target / "data", 4 * MIB)
        self._say("overwrote the file after the snapshot")

        restored = self._create("demo-restored", snapshot.snapshot_id)
        copy = self._mount(restored, "restored")
        self._prove("the restored volume has the bytes of the snapshot", copy / "data", wanted)

        before = shutil.disk_usage(copy).total
        self._rpc("ControllerExpandVolume", volume_id=restored, capacity_range={"required_bytes": 2 * self._size})
        self._rpc("NodeExpandVolume", volume_id=restored, volume_path=str(copy))
        after = shutil.disk_usage(copy).total
        if after < before * 1.5:
            raise DemoError(f"the filesystem did not grow: {before} bytes before, {after} after")
        self._say(f"grew while mounted: {before // MIB} MiB to {after // MIB} MiB")
        self._prove("growing kept the bytes", copy / "data", wanted)

        self._unmount(restored)
        again = self._mount(restored, "again")
        self._prove("unmounted and mounted again, still the same bytes", again / "data", wanted)

    def _create(self, name: str, snapshot: str = "") -> str:
        source = {"volume_content_source": {"snapshot": {"snapshot_id": snapshot}}} if snapshot else {}
        made = self._rpc(
            "CreateVolume",
            name=name,
            capacity_range={"required_bytes": self._size},
            volume_capabilities=[self._capability()],
            parameters={"backend": "scratch"},  # what a StorageClass says
            **source,
        )
        volume = str(made.volume.volume_id)
        self._cleanup.callback(self._rpc, "DeleteVolume", volume_id=volume)
        return volume

    def _mount(self, volume: str, name: str) -> Path:
        staging, target = self._directory / f"staging-{name}", self._directory / f"target-{name}"
        staging.mkdir()
        fields = {"volume_id": volume, "staging_target_path": str(staging)}
        undo = ExitStack()
        self._cleanup.push(undo.__exit__)
        undo.callback(self._rpc, "NodeUnstageVolume", **fields)
        self._rpc("NodeStageVolume", **fields, volume_capability=self._capability())
        undo.callback(self._rpc, "NodeUnpublishVolume", volume_id=volume, target_path=str(target))
        self._rpc("NodePublishVolume", **fields, target_path=str(target), volume_capability=self._capability())
        self._undo[volume] = [undo]
        return target

    def _unmount(self, volume: str) -> None:
        for undo in self._undo.pop(volume):
            undo.close()

    def _capability(self) -> dict[str, Any]:
        return {"mount": {"fs_type": self._fs_type}, "access_mode": {"mode": "SINGLE_NODE_WRITER"}}

    def _write(self, file: Path, size: int) -> str:
        data = os.urandom(size)
        file.write_bytes(data)
        return hashlib.sha256(data).hexdigest()

    def _prove(self, claim: str, file: Path, wanted: str) -> None:
        found = hashlib.sha256(file.read_bytes()).hexdigest()
        if found != wanted:
            raise DemoError(f"not true: {claim}: sha256 {found}, expected {wanted}")
        self._say(f"{claim} ✓")

    def _rpc(self, rpc: str, **fields: Any) -> Any:
        began = time.perf_counter()
        try:
            response = getattr(self._client, rpc)(**fields)
        except grpc.RpcError as error:
            print(f"  {rpc:<24}{1000 * (time.perf_counter() - began):8.1f} ms  {_text(error)}", flush=True)
            raise
        about = fields.get("volume_id") or fields.get("snapshot_id") or fields.get("name") or ""
        print(f"  {rpc:<24}{1000 * (time.perf_counter() - began):8.1f} ms  {about}", flush=True)
        return response

    def _say(self, text: str) -> None:
        print(f"→ {text}", flush=True)


@contextmanager
def _driver(directory: Path) -> Iterator[Client]:
    """A driver process of our own; ended by SIGTERM, as a supervisor does, and waited for."""
    config, socket = directory / "config.yaml", directory / "csi.sock"
    config.write_text(CONFIG % directory)
    command = (sys.executable, "-m", "csi_multi", "serve", "--config", str(config))
    with (directory / "driver.log").open("wb") as log:
        process = start(*command, environment={"CSI_ENDPOINT": f"unix://{socket}"}, stderr=log)
    client = Client(f"unix:{socket}")
    try:
        try:
            client.wait(timeout=20)
        except grpc.FutureTimeoutError:
            raise DemoError("the driver did not start") from None
        yield client
    finally:
        client.close()
        process.terminate()
        process.wait(timeout=60)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into KeyboardInterrupt, so that cleanup runs for them too."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _leftovers(directory: Path) -> list[str]:
    below = f"{directory}/"
    mounted = [mount.target for mount in mounts.table() if mount.target.startswith(below)]
    return mounted + [str(device) for device, file in loopdev.bound().items() if file.startswith(below)]


def _refuse_leftovers(directory: Path) -> None:
    images = [str(file) for kind in ("volumes", "snapshots") for file in (directory / "volumes" / kind).glob("*/image")]
    if left := _leftovers(directory) + images:
        raise DemoError(f"left behind: {', '.join(left)}")


def _sweep(directory: Path) -> None:
    """Remove what is left when the driver could not: mounts first, then loop devices, then files."""
    from .host import LocalHost

    host = LocalHost()
    for path in reversed(_leftovers(directory)):
        with suppress(Exception):
            host.run(*(["losetup", "--detach", path] if path.startswith("/dev/loop") else ["umount", path]))
    if _leftovers(directory):
        print(f"could not clean up below {directory}: {_leftovers(directory)}", file=sys.stderr)
    else:
        shutil.rmtree(directory, ignore_errors=True)


def _text(error: BaseException) -> str:
    if isinstance(error, grpc.RpcError):
        return f"{error.code().name}: {error.details()}"
    return str(error) or "interrupted"
