"""A server process that has a backend over files, and the client of it that is the backend under test.

    python -c "from kit.tests.checks.file_server import serve; serve()" MODULE CLASS DIRECTORY SOCKET READY

It starts with what was interrupted (resume), answers each request in a thread, and keeps nothing in memory.
"""

from __future__ import annotations

import atexit
import importlib
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any, ClassVar

from csi_multi_testing import Call
from csi_multi_testing.storage import Storage, StorageServer, setting

from csi_multi.contract import Host, Setting, StorageError, Timeout, Unavailable
from csi_multi.contract import backend as b
from csi_multi.host.command import LocalHost

from . import whole_files
from .whole_files import WholeFiles

REPOSITORY = Path(__file__).parents[3]
LIMIT = 6.0  # seconds for which the client waits at most
AT_ONCE = 64


class Served(b.Attach, b.Expand, b.Clone, b.ListVolumes, b.ListSnapshots, b.GroupSnapshots, b.Modify, b.Import):
    """Asks the server; a request is sent if its caller still waits, and is waited for as long as that. Correct."""

    contract: ClassVar[tuple[int, int]] = (1, 1)
    MutableParameters = WholeFiles.MutableParameters

    def __init__(self, config: Any, setting: Setting, socket: str) -> None:
        super().__init__(config, setting)
        self.socket = socket

    def left(self, arguments: tuple[Any, ...]) -> float:
        """Return the seconds for which a call may wait."""
        deadline = next((one.deadline for one in arguments if getattr(one, "deadline", None) is not None), None)
        return LIMIT if deadline is None else min(LIMIT, deadline - time.monotonic())

    def lost(self, error: Exception) -> StorageError:
        """Return what a call raises whose answer does not come."""
        return Unavailable(f"the server is gone: {error}")

    def ask(self, method: str, *arguments: Any, **more: Any) -> Any:
        if self.left(arguments) <= 0:
            raise Timeout(f"{method} was not begun in time")
        try:
            answer = self.exchange((method, arguments, more), self.left(arguments))
        except TimeoutError as error:
            raise Timeout(f"{method} is not answered in time") from error
        except (OSError, EOFError) as error:
            raise self.lost(error) from error
        if isinstance(answer, Exception):
            raise answer
        return answer

    def exchange(self, request: tuple[str, tuple[Any, ...], dict[str, Any]], seconds: float) -> Any:
        with Client(self.socket, "AF_UNIX") as connection:
            connection.send(request)
            if not connection.poll(max(0.0, seconds)):
                raise TimeoutError
            return connection.recv()


def _forwarded(name: str) -> Callable[..., Any]:
    def method(self: Served, *arguments: Any, **more: Any) -> Any:
        return self.ask(name, *arguments, **more)

    return method


for _name in sorted(Served.__abstractmethods__ | {"formatting", "formatted", "refresh_device"}):
    setattr(Served, _name, _forwarded(_name))
Served.__abstractmethods__ = frozenset()


@dataclass
class ServerProcess:
    """The process, as an author describes it to the kit."""

    kind: type[WholeFiles]
    root: Path
    socket: str
    process: subprocess.Popen[bytes] = field(init=False)

    def start(self) -> None:
        with suppress(FileNotFoundError):
            Path(self.socket).unlink()
        reader, writer = os.pipe()
        module = f"kit.tests.checks.{self.kind.__module__.rpartition('.')[2]}"
        code = "from kit.tests.checks.file_server import serve; serve()"
        words = [sys.executable, "-c", code, module, self.kind.__name__, str(self.root), self.socket, str(writer)]
        self.process = subprocess.Popen(words, cwd=REPOSITORY, pass_fds=(writer,), stdin=subprocess.DEVNULL)
        os.close(writer)
        assert os.read(reader, 1), "the server did not start"
        os.close(reader)
        atexit.register(self.process.kill)

    def pid(self) -> int:
        return self.process.pid


def served(kind: type[WholeFiles] = WholeFiles, client: type[Served] = Served) -> Callable[[], Storage]:
    """Return a storage that such a server has."""

    def storage() -> Storage:
        made = whole_files.storage(kind)
        [root] = made.records
        process = ServerProcess(kind, root, str(root / "socket"))
        process.start()

        def connect(host: Host) -> Served:
            return client(None, setting(host), process.socket)

        return whole_files.storage(
            kind,
            **{name: getattr(made, name) for name in ("resources", "read", "write", "effect", "importable")},
            records=made.records,
            connect=connect,
            calls=(Call(owner=client, name="exchange", describe=lambda request, _: request[0]),),
            server=StorageServer(pid=process.pid, start=process.start),
        )

    return storage


def serve() -> None:
    module, name, root, socket, ready = sys.argv[1:]
    backend = getattr(importlib.import_module(module), name)(None, setting(LocalHost()), Path(root))
    backend.resume()
    with Listener(socket, "AF_UNIX", backlog=AT_ONCE) as listener:
        os.write(int(ready), b"1")
        while True:
            threading.Thread(target=_answer, args=(backend, listener.accept()), daemon=True).start()


def _answer(backend: Any, connection: Connection) -> None:
    with connection, suppress(EOFError, OSError):
        method, arguments, more = connection.recv()
        try:
            answer = getattr(backend, method)(*arguments, **more)
        except Exception as error:
            answer = error
        connection.send_bytes(pickle.dumps(answer))
