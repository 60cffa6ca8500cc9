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

from ..host import loopdev, mounts
from ..host.command import LocalHost
from ..host.privilege import LinuxCapability, held
from ..process.driver_process import DriverProcess, NotServing
from ..rpc.client import Client

MIB = 1 << 20
SIZE = {"ext4": 64 * MIB, "xfs": 320 * MIB, "btrfs": 160 * MIB}  # about the least each of them takes
CONFIG = """\
driver: {name: demo.csi-multi.example, node: demo-node, log_style: json}
backends:
  scratch: {kind: loop, directory: %s/volumes}
"""


class DemoError(Exception):
    """Something that the demo is there to show did not happen."""


def demo(fs_type: str | None) -> int:
    """Run the demo; return 0 when all that it shows is true and nothing is left behind."""
    if os.geteuid() != 0:
        print("csi-multi demo makes loop devices and mounts, so it needs root: sudo csi-multi demo", file=sys.stderr)
        return 2
    fs_type = fs_type or _filesystem()
    directory = Path(tempfile.mkdtemp(prefix="csi-multi-demo-")).resolve()
    started = time.monotonic()
    try:
        with Interrupt() as interrupt, _driver(directory) as client, ExitStack() as cleanup:
            DemoRun(client, directory, fs_type, cleanup, interrupt).run()
        _refuse_leftovers(directory)
    except (DemoError, NotServing, grpc.RpcError, KeyboardInterrupt) as error:
        print(f"\ndemo failed: {_text(error)}", file=sys.stderr)
        if isinstance(error, grpc.RpcError):
            print((directory / "csi.log").read_text()[-2000:], file=sys.stderr)
        return 1
    finally:
        _clean_up(directory)
    print(f"\nAll data intact, nothing left behind, {time.monotonic() - started:.1f} s.")
    return 0


class DemoRun:
    """The orchestrator's part. Every RPC is shown with its time; cleanup undoes each step, last first."""

    def __init__(self, client: Client, directory: Path, fs_type: str, cleanup: ExitStack, interrupt: Interrupt) -> None:
        self._interrupt = interrupt
        self._client = client
        self._directory = directory
        self._fs_type = fs_type
        self._size = SIZE[fs_type]
        self._cleanup = cleanup
        self._undo: dict[str, ExitStack] = {}

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
        self._interrupt.act()
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
        self._interrupt.act()
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
        self._undo[volume] = undo
        self._interrupt.act()
        return target

    def _unmount(self, volume: str) -> None:
        self._undo.pop(volume).close()

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
        self._interrupt.act()


def _filesystem() -> str:
    """ext4, unless this process may not grow one online: the kernel wants CAP_SYS_RESOURCE for it."""
    if held(LinuxCapability.CAP_SYS_RESOURCE):
        return "ext4"
    print("using xfs: ext4 can only grow while mounted with CAP_SYS_RESOURCE, which this process lacks")
    return "xfs"


@contextmanager
def _driver(directory: Path) -> Iterator[Client]:
    driver = DriverProcess(directory, CONFIG % directory)
    client = driver.start()
    try:
        yield client
    finally:
        client.close()
        driver.stop()


class Interrupt:
    """Notes SIGINT, SIGTERM and SIGHUP, to act on between two RPCs: an orchestrator too sees each RPC to its end."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self) -> None:
        self._noted = False

    def __enter__(self) -> Interrupt:
        self._before = {number: signal.signal(number, self._note) for number in self.SIGNALS}
        return self

    def __exit__(self, *_error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self._noted = True

    def act(self) -> None:
        """Raise KeyboardInterrupt, once, if a signal came."""
        if self._noted:
            self._noted = False
            raise KeyboardInterrupt


def _leftovers(directory: Path) -> list[str]:
    below = f"{directory}/"
    mounted = [mount.target for mount in mounts.table() if mount.target.startswith(below)]
    return mounted + [str(device) for device, file in loopdev.bound().items() if file.startswith(below)]


def _refuse_leftovers(directory: Path) -> None:
    images = [str(file) for kind in ("volumes", "snapshots") for file in (directory / "volumes" / kind).glob("*/image")]
    if left := _leftovers(directory) + images:
        raise DemoError(f"left behind: {', '.join(left)}")


def _clean_up(directory: Path) -> None:
    """Remove what is left when the driver could not: mounts first, then loop devices, then files."""
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
