"""A file that QEMU shows through FUSE, as backends for its image formats do."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from csi_multi.host import mounts


@contextlib.contextmanager
def exported(file: Path, shown: Path) -> Iterator[Path]:
    """Show the bytes of a file at another path."""
    shown.touch()
    words = [
        "qemu-storage-daemon",
        *("--blockdev", f"driver=file,node-name=file,filename={file}"),
        *("--export", f"type=fuse,id=export,node-name=file,mountpoint={shown},writable=on"),
    ]
    with subprocess.Popen(words) as daemon:
        try:
            deadline = time.monotonic() + 30
            while not mounts.at(shown):
                assert daemon.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.01)
            yield shown
        finally:
            daemon.terminate()  # which unmounts
    assert not mounts.at(shown)
