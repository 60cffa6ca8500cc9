"""`csi-multi demo`: a volume's life cycle against a private driver process, as an orchestrator drives it.

It uses real loop devices, filesystems and mounts, all below one temporary directory. It removes what it creates, also
when it fails or is interrupted, and fails if anything is left.
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
SIZE = {"ext4": 64 * MIB, "xfs": 320 * MIB, "btrfs": 160 * MIB}  # about the minimum of each
CONFIG = """\
driver: {name: demo.csi-multi.example, node: demo-node, log_style: json}
backends:
  scratch: {kind: loop, directory: %s/volumes, reserve_percent: 0}
"""


class DemoError(Exception):
    """A step of the demo did not have the expected result."""


def demo(fs_type: str | None) -> int:
    """Run the demo; return 0 when every step succeeds and nothing is left."""
    if os.geteuid() != 0:
        print("csi-multi demo creates loop devices and mounts, so it needs root: sudo csi-multi demo", file=sys.stderr)
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
    """The orchestrator's RPCs, each printed with its duration; cleanup undoes each step, the last one first."""

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
        self._say(f"connected to {info.name} {info.vendor_version}")
        self._rpc("Probe")

        volume = self._create("demo-volume")
        target = self._mount(volume, "first")
        wanted = self._write(target / "data", 16 * MIB)
        self._say(f"wrote 16 MiB of random bytes, sha256 {wanted[:16]}…")

        snapshot = self._rpc("CreateSnapshot", source_volume_id=volume, name="demo-snapshot").snapshot
        self._cleanup.callback(self._rpc, "DeleteSnapshot", snapshot_id=snapshot.snapshot_id)
        self._interrupt.raise_if_received()
        self._write(target / "data", 4 * MIB)
        self._say("overwrote the file after the snapshot")

        restored = self._create("demo-restored", snapshot.snapshot_id)
        copy = self._mount(restored, "restored")
        self._verify("the restored volume has the data of the snapshot", copy / "data", wanted)

        before = shutil.disk_usage(copy).total
        self._rpc("ControllerExpandVolume", volume_id=restored, capacity_range={"required_bytes": 2 * self._size})
        self._rpc("NodeExpandVolume", volume_id=restored, volume_path=str(copy))
        after = shutil.disk_usage(copy).total
        if after < before * 1.5:
            raise DemoError(f"the filesystem was not expanded: {before} bytes before, {after} after")
        self._say(f"expanded while mounted: {before // MIB} MiB to {after // MIB} MiB")
        self._verify("the expansion kept the data", copy / "data", wanted)

        self._unmount(restored)
        again = self._mount(restored, "again")
        self._verify("the data is the same after unmounting and mounting again", again / "data", wanted)

    def _create(self, name: str, snapshot: str = "") -> str:
        source = {"volume_content_source": {"snapshot": {"snapshot_id": snapshot}}} if snapshot else {}
        created = self._rpc(
            "CreateVolume",
            name=name,
            capacity_range={"required_bytes": self._size},
            volume_capabilities=[self._capability()],
            parameters={"backend": "scratch"},  # as in a StorageClass
            **source,
        )
        volume = str(created.volume.volume_id)
        self._cleanup.callback(self._rpc, "DeleteVolume", volume_id=volume)
        self._interrupt.raise_if_received()
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
        self._interrupt.raise_if_received()
        return target

    def _unmount(self, volume: str) -> None:
        self._undo.pop(volume).close()

    def _capability(self) -> dict[str, Any]:
        return {"mount": {"fs_type": self._fs_type}, "access_mode": {"mode": "SINGLE_NODE_WRITER"}}

    def _write(self, file: Path, size: int) -> str:
        data = os.urandom(size)
        file.write_bytes(data)
        return hashlib.sha256(data).hexdigest()

    def _verify(self, claim: str, file: Path, wanted: str) -> None:
        found = hashlib.sha256(file.read_bytes()).hexdigest()
        if found != wanted:
            raise DemoError(f"expected: {claim}; but sha256 is {found}, not {wanted}")
        self._say(f"{claim} ✓")

    def _rpc(self, rpc: str, **fields: Any) -> Any:
        began = time.perf_counter()
        try:
            response = getattr(self._client, rpc)(**fields)
        except grpc.RpcError as error:
            print(f"  {rpc:<24}{1000 * (time.perf_counter() - began):8.1f} ms  {_text(error)}", flush=True)
            raise
        subject = fields.get("volume_id") or fields.get("snapshot_id") or fields.get("name") or ""
        print(f"  {rpc:<24}{1000 * (time.perf_counter() - began):8.1f} ms  {subject}", flush=True)
        return response

    def _say(self, text: str) -> None:
        print(f"→ {text}", flush=True)
        self._interrupt.raise_if_received()


def _filesystem() -> str:
    """Return ext4, or xfs without CAP_SYS_RESOURCE, which the kernel requires for expanding ext4 online."""
    if held(LinuxCapability.CAP_SYS_RESOURCE):
        return "ext4"
    print("using xfs, because this process lacks CAP_SYS_RESOURCE, which expanding a mounted ext4 requires")
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
    """Records SIGINT, SIGTERM and SIGHUP until the end of an RPC, because an orchestrator too waits for each one."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self) -> None:
        self._received = False

    def __enter__(self) -> Interrupt:
        self._before = {number: signal.signal(number, self._record) for number in self.SIGNALS}
        return self

    def __exit__(self, *_error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _record(self, _number: int, _frame: FrameType | None) -> None:
        self._received = True

    def raise_if_received(self) -> None:
        """Raise KeyboardInterrupt, once, if a signal was received."""
        if self._received:
            self._received = False
            raise KeyboardInterrupt


def _leftovers(directory: Path) -> list[str]:
    below = f"{directory}/"
    mounted = [mount.target for mount in mounts.table() if mount.target.startswith(below)]
    return mounted + [str(device) for device, file in loopdev.bound_devices().items() if file.startswith(below)]


def _refuse_leftovers(directory: Path) -> None:
    images = [str(file) for kind in ("volumes", "snapshots") for file in (directory / "volumes" / kind).glob("*/image")]
    if left := _leftovers(directory) + images:
        raise DemoError(f"these remain after the demo: {', '.join(left)}; remove them by hand")


def _clean_up(directory: Path) -> None:
    """Remove what the driver could not: mounts first, then loop devices, then files."""
    host = LocalHost()
    for path in reversed(_leftovers(directory)):
        with suppress(Exception):
            host.run(*(["losetup", "--detach", path] if path.startswith("/dev/loop") else ["umount", path]))
    if _leftovers(directory):
        print(f"these remain below {directory}: {_leftovers(directory)}", file=sys.stderr)
    else:
        shutil.rmtree(directory, ignore_errors=True)


def _text(error: BaseException) -> str:
    if isinstance(error, grpc.RpcError):
        return f"{error.code().name}: {error.details()}"
    return str(error) or "interrupted"
