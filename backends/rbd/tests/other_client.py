"""Another client of the cluster, which has an image open."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from csi_multi_rbd.command import CommandRunner

if TYPE_CHECKING:
    from csi_multi_rbd.config import Config

START = 20.0  # seconds


@contextmanager
def opened(config: Config, spec: str) -> Iterator[None]:
    """Have the image open; at the end leave in good order, so that no watch stays behind."""
    user = ("--conf", "/dev/null", "-m", ",".join(config.monitors), "--id", config.user, "--keyring", config.keyring)
    command = ("rbd", *user, "watch", spec)
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as other:
        assert other.stdin
        try:
            until = time.monotonic() + START
            while "watcher=" not in CommandRunner().execute("rbd", *user, "status", spec, timeout=START).stdout:
                assert time.monotonic() < until, "the other client does not open it"
            yield
        finally:
            other.stdin.write(b"\n")
            other.stdin.close()
