"""One daemon of a cluster, as a child of this process: started, ended, killed, paused and resumed by its pid."""

from __future__ import annotations

import os
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

END = 30.0  # seconds for a daemon to end
# A daemon dies with the thread that started it, so all are started by one that lasts as long as the process.
_STARTER = ThreadPoolExecutor(1, thread_name_prefix="ceph")


class Daemon:
    """ceph-mon, ceph-mgr or ceph-osd. It writes `<name>.log`, and what it says before that to `<name>.out`."""

    def __init__(self, directory: Path, *command: str) -> None:
        self.name = command[0].removeprefix("ceph-")
        self._directory = directory
        self._command = ("setpriv", "--pdeathsig", "KILL", "--", *command, "-f", "-c", str(directory / "ceph.conf"))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process, f"{self.name} does not run"
        return self._process.pid

    def start(self) -> None:
        """Start it (again) without waiting for it; nothing when it runs."""
        if self._process is None or self._process.poll() is not None:
            self._process = _STARTER.submit(self._start).result()

    def _start(self) -> subprocess.Popen[bytes]:
        environment = {"PATH": os.environ["PATH"], "LC_ALL": "C"}
        with (self._directory / f"{self.name}.out").open("ab") as out:
            return subprocess.Popen(
                self._command, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )

    def stop(self) -> None:
        """End it as a supervisor does: it says good-bye to the others, if they are there."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it as a power cut does."""
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(number)
        self._process.send_signal(signal.SIGCONT)
        try:
            self._process.wait(END)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(END)
        self._process = None

    def pause(self) -> None:
        """Let it neither answer nor fail."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED)  # until then another thread of it may still answer

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)
