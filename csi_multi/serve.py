"""`csi-multi serve`: the driver as a process, from start to the end of the last RPC."""

from __future__ import annotations

import logging
import os
import signal
import threading
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
    socket = endpoint.parse(os.environ.get("CSI_ENDPOINT"))
    settings = config.load(file)
    logs.setup(settings.driver.log_level, settings.driver.log_style)
    host = LocalHost()
    instances = registry.load(settings, host)
    server = build(settings.driver, instances, host, mode)
    with _stopping() as stopped:
        with endpoint.taking_over(socket):
            if not server.add_insecure_port(f"unix:{socket}"):
                raise endpoint.EndpointError(f"cannot listen on {socket}")
            server.start()
            own = endpoint.inode(socket)
        instances.start(settings.driver.check_seconds)
        log.info("serving", extra={"fields": {"endpoint": str(socket), "mode": mode.value, "pid": os.getpid()}})
        stopped.wait()
        log.info("stopping: no new RPCs, waiting for those that run")
        server.stop(DRAIN).wait()
        endpoint.remove(socket, own)
        instances.close()
        log.info("stopped")


@contextmanager
def _stopping() -> Iterator[threading.Event]:
    """An event that SIGTERM or SIGINT sets; a second signal ends the process at once."""
    stopped = threading.Event()

    def stop(number: int, _frame: FrameType | None) -> None:
        if stopped.is_set():
            os._exit(128 + number)
        stopped.set()

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
