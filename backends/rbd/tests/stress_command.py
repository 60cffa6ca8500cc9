"""A gRPC server like the driver's, with clients for which it runs many commands; the failures as JSON.

    python stress_command.py SOCKET CLIENTS CALLS [--fork-support]

A process of its own, because whether gRPC has fork handlers is settled when it is imported: csi_multi.rpc has
none, and with `--fork-support` they are there, which is how calls are lost.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import csi_multi.rpc  # noqa: F401

if "--fork-support" in sys.argv:
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "1"

import grpc
from csi_multi_rbd.command import CommandRunner

METHOD = "/stress/Run"
LIMIT = 20.0  # seconds for one call, after which it counts as hung
ENOUGH = 3  # failures after which a client gives up
SCRIPT = 'echo "out $0"; echo "err $0" >&2; exit $(($0 % 3))'


def main(clients: int, calls: int) -> None:
    runner = CommandRunner()

    def run(request: bytes, context: grpc.ServicerContext) -> bytes:
        answer = runner.execute("sh", "-c", SCRIPT, request.decode(), timeout=LIMIT)
        return json.dumps([answer.status, answer.stdout, answer.stderr]).encode()

    server = grpc.server(ThreadPoolExecutor(clients))
    server.add_generic_rpc_handlers((_Handler(run),))
    address = f"unix:{sys.argv[1]}"
    server.add_insecure_port(address)
    server.start()
    run(b"0", None)  # what is loaded once is there
    before = _descriptors()
    with ThreadPoolExecutor(clients) as pool:
        outcomes = list(pool.map(lambda some: _ask(address, some), _shares(calls, clients)))
    server.stop(None).wait()
    failures = [failure for one in outcomes for failure in one]
    print(json.dumps({"failures": failures, "descriptors": _descriptors() - before, **_left()}), flush=True)
    os._exit(0)  # threads that hang must not keep the answer


class _Handler(grpc.GenericRpcHandler):
    def __init__(self, run: object) -> None:
        self._run = run

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        return grpc.unary_unary_rpc_method_handler(self._run)


def _shares(calls: int, clients: int) -> list[range]:
    return [range(first, calls, clients) for first in range(clients)]


def _ask(address: str, numbers: range) -> list[str]:
    """Make calls one after the other; return what was wrong."""
    failures = []
    with grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        call = channel.unary_unary(METHOD)
        for number in numbers:
            try:
                answer = json.loads(call(str(number).encode(), timeout=LIMIT))
            except grpc.RpcError as error:
                failures.append(f"{error.code().name}: {error.details()}"[:200])
                if len(failures) == ENOUGH:
                    break
                continue
            if answer != [number % 3, f"out {number}\n", f"err {number}\n" if number % 3 else ""]:
                failures.append(f"wrong answer: {answer}"[:300])
    return failures


def _left() -> dict[str, int]:
    """Count the children and threads of sh that are still there, after a moment."""
    time.sleep(1.5)
    children = [line for task in Path("/proc/self/task").iterdir() for line in (task / "children").read_text().split()]
    return {"children": len(children), "threads": sum("for pid" in one.name for one in threading.enumerate())}


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


if __name__ == "__main__":
    main(int(sys.argv[2]), int(sys.argv[3]))
