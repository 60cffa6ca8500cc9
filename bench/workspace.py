"""One temporary directory for a run, removed with all its mounts, loop devices and files."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from csi_multi.contract import StorageError
from csi_multi.host import loopdev, mounts
from csi_multi.host.command import LocalHost

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
EXEC = 0.1  # seconds for the kernel to show the arguments of a new program: at first there are none
PATIENCE = 10.0  # seconds for the kernel to release what was just in use


@contextmanager
def workspace() -> Iterator[Path]:
    """A directory for the block; afterwards everything in it is undone, also after an interrupt."""
    directory = Path(tempfile.mkdtemp(prefix="csi-multi-bench-")).resolve()
    try:
        yield directory
    finally:
        _sweep(directory)


@contextmanager
def interruptible() -> Iterator[None]:
    """Turn the first signal that ends a program into KeyboardInterrupt; a second one does not stop the clean-up."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def leftovers(directory: Path) -> list[str]:
    """Return the mounts, topmost first, and the loop devices that belong to the directory."""
    below = f"{directory}/"
    mounted = [mount.target for mount in mounts.table() if mount.target.startswith(below)]
    return mounted[::-1] + [str(device) for device, file in loopdev.bound_devices().items() if file.startswith(below)]


def _sweep(directory: Path) -> None:
    host, ends = LocalHost(), time.monotonic() + PATIENCE
    _end_processes(directory)
    while (left := leftovers(directory)) and time.monotonic() < ends:
        for one in left:
            with suppress(StorageError):
                host.run(*(("losetup", "--detach", one) if one.startswith("/dev/loop") else ("umount", one)))
    if left:
        raise RuntimeError(f"cannot undo {left}: another process uses them")
    shutil.rmtree(directory)


def _end_processes(directory: Path) -> None:
    """End programs that an interrupt left unknown: each has a path below the directory in its arguments."""
    for pause in (EXEC, 0.0):
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it ended without us
                if f"{directory}/".encode() in (process / "cmdline").read_bytes():
                    os.kill(int(process.name), signal.SIGKILL)
        time.sleep(pause)
