"""`csi-multi serve`: the driver as a process, from start to the end of the last RPC."""

from __future__ import annotations

import functools
import gc
import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from ..cluster.bootstrap import Role
from ..config.settings import load_config
from ..host.command import LocalHost
from ..loading.loader import load_instances
from ..loading.registry import Registry
from ..loading.reload import ConfigReloader
from ..logs.handlers import set_up_logging
from ..rpc import endpoint
from ..rpc.capabilities import Mode
from ..rpc.interceptor import SharedRpcState
from ..rpc.server import build_server
from ..telemetry import Telemetry

log = logging.getLogger(__name__)

DRAIN_LIMIT = 600.0  # seconds for running RPCs at SIGTERM: a supervisor in a hurry sends SIGKILL, which is safe too
REMINDER_INTERVAL = 15.0  # seconds after which the log says what is still waited for


def serve(file: Path, mode: Mode, node: str = "") -> None:
    """Serve until SIGTERM or SIGINT. Raises ConfigError or EndpointError before anything is served."""
    path = endpoint.socket_path(os.environ.get("CSI_ENDPOINT"))
    settings = load_config(file, node)
    set_up_logging(settings.driver.log_level, settings.driver.log_style)
    host, telemetry = LocalHost(), Telemetry(settings.driver)
    role, controller = Role(settings, mode), mode is not Mode.NODE
    load = functools.partial(
        load_instances, host=host, controller=controller, listeners=telemetry.listeners, local=role.local
    )
    instances = load(settings)
    traffic = SharedRpcState(settings.driver.workers, telemetry.listeners)
    server = build_server(settings.driver, instances, host, mode, traffic, role.server_options)
    with _stopping() as stopped:
        with endpoint.claim_path(path):
            if not server.add_insecure_port(f"unix:{path}"):
                raise endpoint.EndpointError(f"cannot listen on {path}")
            role.start(instances, traffic)
            server.start()
            own = endpoint.inode(path)
        instances.start(settings.driver.check_seconds)
        reload = ConfigReloader(file, settings, instances, lambda wanted, kept: load(wanted, kept=kept), node)
        telemetry.serving(traffic, instances, reload)
        gc.freeze()  # what is loaded stays: the collector need not walk through it again and again
        log.info("serving", extra={"fields": {"endpoint": str(path), "mode": mode.value, "pid": os.getpid()}})
        _wait(stopped, reload)
        log.info("stopping: no new RPCs, waiting for those that run")
        telemetry.stopping()
        for stopping in (server.stop(DRAIN_LIMIT), role.stop(DRAIN_LIMIT)):
            _drain(stopping, instances)
        endpoint.remove(path, own)
        role.close()
        instances.close()
        telemetry.close()
        _end(instances)


def _wait(signals: socket.socket, reload: ConfigReloader) -> None:
    """Wait for the signal to stop; meanwhile look at the configuration now and then, and at SIGHUP."""
    while True:
        signals.settimeout(reload.settings.driver.reload_seconds or None)
        try:
            number = signals.recv(1)[0]
        except TimeoutError:
            reload.check_file()
            continue
        if number != signal.SIGHUP:
            return
        reload.reload()


def _drain(stopped: threading.Event, instances: Registry) -> None:
    """Wait until nothing runs, or DRAIN is over."""
    while not stopped.wait(REMINDER_INTERVAL):
        log.warning("stopping: still waiting for %s", "; ".join(instances.running()) or "an RPC")


def _end(instances: Registry) -> None:
    """Return when no call is left; else end the process at once, because python would wait for its thread.

    That is as safe as any kill at any point, but it is not a clean end, and the exit code says so.
    """
    if left := instances.running():
        log.error("stopped; left behind: %s", "; ".join(left))
        logging.shutdown()
        os._exit(1)
    log.info("stopped")


@contextmanager
def _stopping() -> Iterator[socket.socket]:
    """A socket from which the numbers of signals are read; a second one to stop ends the process at once.

    The kernel may give a signal to any thread. Python's handler then writes into the wakeup
    descriptor, which wakes the main thread where waiting for a lock would not.
    """
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    came: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        if came and number != signal.SIGHUP:
            os._exit(128 + number)
        came.extend([number] if number != signal.SIGHUP else [])

    handlers = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    descriptor = signal.set_wakeup_fd(theirs.fileno())
    try:
        yield ours
    finally:
        signal.set_wakeup_fd(descriptor)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        ours.close()
        theirs.close()
