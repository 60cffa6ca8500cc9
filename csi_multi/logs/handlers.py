"""Logging to stderr only: one JSON object per line, or a short line for people at a terminal.

Code logs through logging.getLogger(__name__); structured values go in extra={"fields": {...}}.
"""

from __future__ import annotations

import datetime
import logging
import os
import sys
from typing import Any, TextIO

import msgspec

from .redact import scrub, scrub_all


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
    """Writes each line with one system call and without a lock.

    The kernel does not mix lines (in a pipe those of up to 4 KiB, which only a traceback exceeds). The lock
    of logging's own handler is held during the call, so hundreds of threads that log at once would wait for it.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor

    def handle(self, record: logging.LogRecord) -> bool:
        """Like logging.Handler.handle, without the lock."""
        if passes := bool(self.filter(record)):
            self.emit(record)
        return passes

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = f"{self.format(record)}\n".encode(errors="replace")
            while line:
                line = line[os.write(self._descriptor, line) :]
        except Exception:  # a full disk must not make an RPC fail
            self.handleError(record)


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
    """`12:00:00.123 info  message key=value ...`"""

    def format(self, record: logging.LogRecord) -> str:
        fields = " ".join(f"{key}={value}" for key, value in scrub_all(getattr(record, "fields", {})).items())
        clock = _time(record.created).astimezone().strftime("%H:%M:%S.%f")[:-3]
        line = f"{clock} {record.levelname.lower():<7} {scrub(record.getMessage())} {fields}".rstrip()
        return f"{line}\n{scrub(self.formatException(record.exc_info))}" if record.exc_info else line


def _time(seconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC)
