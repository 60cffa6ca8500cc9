"""`csi-multi serve`: the driver as a process, from start to the end of the last RPC."""

from __future__ import annotations

import logging
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from . import config, endpoint, logs, registry
from .host import LocalHost
from .rpc.capabilities import Mode
from .rpc.server import build

log = logging.getLogger(__name__)

DRAIN = 3600.0  # seconds for running RPCs at SIGTERM: a supervisor in a hurry sends SIGKILL, which is safe too


def serve(file: Path, mode: Mode) -> None:
    """Serve until SIGTERM or SIGINT. Raises ConfigError or EndpointError before anything is served."""
    path = endpoint.parse(os.environ.get("CSI_ENDPOINT"))
    settings = config.load(file)
    logs.setup(settings.driver.log_level, settings.driver.log_style)
    host = LocalHost()
    instances = registry.load(settings, host)
    server = build(settings.driver, instances, host, mode)
    with _stopping() as stopped:
        with endpoint.taking_over(path):
            if not server.add_insecure_port(f"unix:{path}"):
                raise endpoint.EndpointError(f"cannot listen on {path}")
            server.start()
            own = endpoint.inode(path)
        instances.start(settings.driver.check_seconds)
        log.info("serving", extra={"fields": {"endpoint": str(path), "mode": mode.value, "pid": os.getpid()}})
        stopped.recv(1)
        log.info("stopping: no new RPCs, waiting for those that run")
        server.stop(DRAIN).wait()
        endpoint.remove(path, own)
        instances.close()
        log.info("stopped")


@contextmanager
def _stopping() -> Iterator[socket.socket]:
    """A socket that can be read once SIGTERM or SIGINT came; a second signal ends the process at once.

    The kernel may give a signal to any thread. Python's handler then writes into the wakeup
    descriptor, which wakes the main thread where waiting for a lock would not.
    """
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    came: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        if came:
            os._exit(128 + number)
        came.append(number)

    handlers = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    descriptor = signal.set_wakeup_fd(theirs.fileno())
    try:
        yield ours
    finally:
        signal.set_wakeup_fd(descriptor)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        ours.close()
        theirs.close()
