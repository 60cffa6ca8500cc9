"""`csi-multi serve`: the driver process, from its start to the end of its last RPC."""

from __future__ import annotations

import functools
import gc
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from ..cluster.bootstrap import ClusterMembership
from ..config.document import STDIN, ConfigError
from ..config.settings import load_config
from ..host.command import LocalHost
from ..loading.loader import load_instances
from ..loading.registry import Registry
from ..loading.reload import ConfigReloader, file_state
from ..logs.handlers import set_up_logging
from ..node import freeze, frozen_leftovers, trim_schedule
from ..rpc import endpoint
from ..rpc.capabilities import Mode
from ..rpc.interceptor import SharedRpcState
from ..rpc.server import build_server, workers_of
from ..rpc.threads import ServerStop, exit_with_serving_thread
from ..telemetry import Telemetry

log = logging.getLogger(__name__)

DRAIN_LIMIT = 600.0  # seconds for running RPCs after SIGTERM; a supervisor may send SIGKILL before, which is safe too
REMINDER_INTERVAL = 15.0  # seconds between log messages about RPCs that still run
DELIVERY_LIMIT = 5.0  # seconds for callers to take their responses, when no RPC runs any more
DRAIN_CHECK = 0.5  # seconds between two checks whether an RPC runs
# Seconds after which a thread that waits for the interpreter asks the one that has it to hand it over. Each of them
# wakes for that. By Python's default of 0.005 hundreds of RPCs at once spend a fifth of the processor on it; threads
# here hand it over by themselves, because they wait for storage most of the time.
SWITCH_INTERVAL = 0.05


def serve(file: Path, mode: Mode, node: str = "") -> None:
    """Serve until SIGTERM or SIGINT. Raises ConfigError or EndpointError before it serves the first RPC."""
    if file == STDIN:
        raise ConfigError(
            "--config: give a file, not -: a running driver reads its configuration again when it changes"
        )
    sys.setswitchinterval(SWITCH_INTERVAL)
    path = endpoint.socket_path(os.environ.get("CSI_ENDPOINT"))
    loaded = file_state(file)
    settings = load_config(file, node)
    set_up_logging(settings.driver.log_level, settings.driver.log_style)
    host, telemetry = LocalHost(), Telemetry(settings.driver)
    membership = ClusterMembership(settings, mode)
    load = functools.partial(
        load_instances,
        host=host,
        controller=mode is not Mode.NODE,
        serves_node=mode is not Mode.CONTROLLER,
        listeners=telemetry.listeners,
        local=membership.local,
    )
    instances = load(settings)
    shared = SharedRpcState(workers_of(settings.driver, mode), telemetry.listeners)
    server = build_server(settings.driver, instances, host, mode, shared, membership.server_options)
    threading.excepthook = exit_with_serving_thread
    with _stop_signals() as signals:
        with endpoint.claim_path(path):
            with endpoint.no_rights_for_others():
                listening = server.add_insecure_port(f"unix:{path}")
            if not listening:
                raise endpoint.EndpointError(f"cannot listen on {path}")
            membership.start(instances, shared)
            server.start()
            own = endpoint.inode(path)
        instances.start(settings.driver.check_seconds)
        reloader = ConfigReloader(file, loaded, settings, instances, lambda wanted, kept: load(wanted, kept=kept), node)
        frozen_leftovers.thaw_repeatedly(host, lambda: reloader.settings.driver.check_seconds)
        if mode is not Mode.CONTROLLER:
            trim_schedule.start(host, settings.driver.name)
        telemetry.on_serving(shared, instances, reloader, membership.refused_answers)
        gc.freeze()  # loaded modules stay, so the garbage collector need not visit them again
        log.info("serving", extra={"fields": {"endpoint": str(path), "mode": mode.value, "pid": os.getpid()}})
        _wait(signals, reloader)
        log.info("stopping: no new RPCs are accepted; waiting for running ones")
        telemetry.on_stopping()
        freeze.end_all()  # a copy may take longer than a supervisor waits, and the next driver may never come
        for stop in (ServerStop(server, DRAIN_LIMIT), *membership.stop(DRAIN_LIMIT)):
            _drain(stop, shared, instances)
        endpoint.remove(path, own)
        membership.close()
        instances.close()
        telemetry.close()
        _exit_if_rpcs_hang(instances)


def _wait(signals: socket.socket, reloader: ConfigReloader) -> None:
    """Wait for the signal to stop; meanwhile reload the configuration when it has changed, and at SIGHUP."""
    while True:
        signals.settimeout(reloader.settings.driver.reload_seconds or None)
        try:
            number = signals.recv(1)[0]
        except TimeoutError:
            reloader.check_file()
            continue
        if number != signal.SIGHUP:
            return
        reloader.reload()


def _drain(stop: ServerStop, shared: SharedRpcState, instances: Registry) -> None:
    """Wait until no RPC runs, or DRAIN_LIMIT is over. A caller that does not take its response is left after a while:
    it may never do, and a supervisor waits for the end of the process."""
    reminded = busy = time.monotonic()
    while not stop.wait(DRAIN_CHECK):
        now = time.monotonic()
        if shared.busy:
            busy = now
        elif now - busy > DELIVERY_LIMIT:
            log.warning(
                "stopping: all RPCs have ended; closing connections of clients that did not read their responses"
            )
            stop.cut()
            busy = now
        if now - reminded > REMINDER_INTERVAL:
            log.warning("stopping: waiting for %s", "; ".join(instances.running_rpcs()) or "an RPC")
            reminded = now


def _exit_if_rpcs_hang(instances: Registry) -> None:
    """Return when no RPC runs; else end the process at once, because Python would wait for its thread.

    That is as safe as SIGKILL at any point, but not a clean end, so the exit code is 1.
    """
    if running := instances.running_rpcs():
        log.error("stopped while these RPCs still run: %s", "; ".join(running))
        logging.shutdown()
        os._exit(1)
    log.info("stopped")


@contextmanager
def _stop_signals() -> Iterator[socket.socket]:
    """A socket to read signal numbers from; a second signal to stop ends the process at once.

    The kernel may deliver a signal to any thread. Python's handler writes its number to the wakeup
    descriptor, which wakes the main thread; a wait for a lock would not be woken.
    """
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    received: list[int] = []

    def handle(number: int, _frame: FrameType | None) -> None:
        if received and number != signal.SIGHUP:
            os._exit(128 + number)
        received.extend([number] if number != signal.SIGHUP else [])

    handlers = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    descriptor = signal.set_wakeup_fd(writer.fileno())
    try:
        yield reader
    finally:
        signal.set_wakeup_fd(descriptor)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        reader.close()
        writer.close()
