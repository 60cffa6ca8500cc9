"""Headless Chromium, spoken to over a pipe: no port, no library, and no way out to any network but loopback."""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from pathlib import Path
from typing import Any

TIME_LIMIT = 60.0  # seconds for one answer
FLAGS = (
    "--headless=new",
    "--no-sandbox",  # tests run as root
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--no-first-run",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--remote-debugging-pipe",  # commands come in at descriptor 3, answers go out at 4, each ends with a zero byte
)


class Browser:
    """One browser with one page. Closed at the end of a `with`."""

    def __init__(self, profile: Path) -> None:
        self._received = b""
        self._events: list[str] = []
        self._number = 0
        self._session = ""
        commands, self._in = os.pipe()
        self._out, answers = os.pipe()

        def descriptors() -> None:
            spare = os.dup(answers)  # neither may be overwritten before it is where it belongs
            os.dup2(os.dup(commands), 3)
            os.dup2(spare, 4)

        self._process = subprocess.Popen(
            ["chromium", *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            preexec_fn=descriptors,
            pass_fds=(3, 4),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(commands)
        os.close(answers)
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Page.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._in)  # Chromium ends when nobody can tell it anything any more
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._out)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send one command of the DevTools protocol, and return its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._in, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            self._events.append(answer.get("method", ""))
        assert "error" not in answer, f"{method}: {answer['error']}"
        result: dict[str, Any] = answer["result"]
        return result

    def open(self, url: str) -> None:
        """Show a page, and wait until it has loaded."""
        self._events.clear()
        failure = self.call("Page.navigate", url=url).get("errorText")
        assert not failure, f"{url}: {failure}"
        self.await_load()

    def click(self, selector: str, index: int = 0) -> None:
        """Click a link, and wait until the page that it leads to has loaded."""
        self._events.clear()
        self.ask(f"document.querySelectorAll({json.dumps(selector)})[{index}].click()")
        self.await_load()

    def await_load(self) -> None:
        while "Page.loadEventFired" not in self._events:
            self._events.append(self._next().get("method", ""))

    def ask(self, expression: str) -> Any:
        """Return what an expression of JavaScript is in the page; a promise is awaited."""
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, f"{expression}: {answer['exceptionDetails']}"
        return answer["result"].get("value")

    def await_true(self, expression: str) -> None:
        ends = time.monotonic() + TIME_LIMIT
        while not self.ask(expression):
            assert time.monotonic() < ends, f"never became true: {expression}"
            time.sleep(0.05)

    def _next(self) -> dict[str, Any]:
        ends = time.monotonic() + TIME_LIMIT
        while b"\0" not in self._received:
            ready, _, _ = select.select([self._out], [], [], max(0.0, ends - time.monotonic()))
            assert ready, "the browser did not answer in time"
            chunk = os.read(self._out, 1 << 16)
            assert chunk, "the browser has ended"
            self._received += chunk
        message, _, self._received = self._received.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found
