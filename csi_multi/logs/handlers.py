"""Logging to stderr only: one JSON object per line, or a short line for people at a terminal.

Code logs through logging.getLogger(__name__); structured values go in extra={"fields": {...}}.
"""

from __future__ import annotations

import datetime
import logging
import sys
import threading
from typing import Any, TextIO

import msgspec

from .descriptor import nonblocking_writer, wait_writable
from .redact import scrub, scrub_all

FULL_PIPE_WAIT = 1.0  # seconds for the reader of a full pipe
# Characters that a terminal acts on, or that begin a line: each is shown as repr shows it.
ESCAPES = {
    number: repr(chr(number))[1:-1]
    for number in (*range(32), *range(127, 160), 0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
}


def set_up_logging(level: str = "info", style: str = "auto", stream: TextIO | None = None) -> None:
    """Route all logging of the process to one handler. `style` is json, console or auto."""
    stream = stream or sys.stderr
    console = style == "console" or (style == "auto" and stream.isatty())
    handler = _handler(stream)
    handler.setFormatter(ConsoleFormatter() if console else JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("stevedore").setLevel(logging.WARNING)


def _handler(stream: TextIO) -> logging.Handler:
    """Return the handler for a stream; one without a file descriptor, as in tests, gets logging's own."""
    try:
        return DescriptorHandler(stream.fileno())
    except OSError:
        return logging.StreamHandler(stream)


class DescriptorHandler(logging.Handler):
    """Writes each line with one system call and without a lock, and drops lines that nobody reads.

    The kernel does not mix lines (in a pipe those of up to 4 KiB, which only a traceback exceeds). The lock
    of logging's own handler is held during the call, so hundreds of threads that log at once would wait for it.
    A pipe that is full is waited for once; from then on lines are dropped and counted, until it is read again.
    """

    dropped_ever = 0  # lines, by all handlers of this process

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._write = nonblocking_writer(descriptor)
        self._dropped = 0  # since the last line that could be written
        self._cut = False  # the line before has no end
        self._counting = threading.Lock()

    def handle(self, record: logging.LogRecord) -> bool:
        """Like logging.Handler.handle, without the lock."""
        if passes := bool(self.filter(record)):
            self.emit(record)
        return passes

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if self._dropped:
                self._tell_dropped()
            if self._dropped or not self._offer(self._line(record)):
                with self._counting:
                    self._dropped += 1
                    DescriptorHandler.dropped_ever += 1
        except Exception:  # a full disk must not make an RPC fail
            self.handleError(record)

    def _tell_dropped(self) -> None:
        with self._counting:
            line = self._line(_dropped_lines(self._dropped))
            if self._dropped and self._offer(b"\n" + line if self._cut else line):
                self._dropped, self._cut = 0, False

    def _line(self, record: logging.LogRecord) -> bytes:
        return f"{self.format(record)}\n".encode(errors="replace")

    def _offer(self, line: bytes) -> bool:
        """Write a line and return True; False when it, or the end of it, does not fit even after a wait."""
        rest = line
        while rest:
            if written := self._write(rest):
                rest = rest[written:]
            elif self._dropped or not wait_writable(self._descriptor, FULL_PIPE_WAIT):
                self._cut |= rest is not line
                return False
        return True


def _dropped_lines(number: int) -> logging.LogRecord:
    text = "log lines were dropped, because nobody read them"
    record = logging.LogRecord(__name__, logging.WARNING, __file__, 0, text, (), None)
    record.fields = {"lines": number}
    return record


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, message, then the record's own fields."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _time(record.created).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": scrub(record.getMessage()),
        }
        line = {
            **line,
            **scrub_all(getattr(record, "fields", {})),
            **line,
        }  # first for the order, last to take precedence
        if record.exc_info:
            line["traceback"] = scrub(self.formatException(record.exc_info))
        return msgspec.json.encode(line, enc_hook=str).decode()


class ConsoleFormatter(logging.Formatter):
    """`12:00:00.123 info  message key=value ...`; a traceback follows in indented lines of its own."""

    def format(self, record: logging.LogRecord) -> str:
        fields = " ".join(f"{key}={value}" for key, value in scrub_all(getattr(record, "fields", {})).items())
        clock = _time(record.created).astimezone().strftime("%H:%M:%S.%f")[:-3]
        line = f"{clock} {record.levelname.lower():<7} {scrub(record.getMessage())} {fields}".rstrip()
        trace = scrub(self.formatException(record.exc_info)).split("\n") if record.exc_info else []
        return "\n".join(one.translate(ESCAPES) for one in (line, *(f"    {one}" for one in trace)))


def _time(seconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC)
