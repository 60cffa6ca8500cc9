"""What the driver writes: one object per line, or one short line, to one stream only."""

from __future__ import annotations

import io
import json
import logging
import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

import pytest

from csi_multi.logs import descriptor
from csi_multi.logs.handlers import set_up_logging


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    root.handlers.clear()
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_a_line_is_one_json_object_even_with_line_breaks() -> None:
    text = io.StringIO()
    set_up_logging("info", "auto", text)

    logging.getLogger("csi_multi.x").info("two\nlines %s", "é", extra={"fields": {"path": Path("/x"), "n": 1}})

    assert text.getvalue().count("\n") == 1
    line = json.loads(text.getvalue())
    assert datetime.fromisoformat(line.pop("time")).tzinfo
    assert line == {"level": "info", "logger": "csi_multi.x", "message": "two\nlines é", "path": "/x", "n": 1}


def test_a_traceback_is_part_of_its_line() -> None:
    text = io.StringIO()
    set_up_logging("info", "json", text)
    try:
        raise ValueError("why")
    except ValueError:
        logging.getLogger("x").exception("failed")

    assert "ValueError: why" in json.loads(text.getvalue())["traceback"]


def test_a_terminal_gets_lines_for_eyes() -> None:
    text = Terminal()
    set_up_logging("info", "auto", text)

    logging.getLogger("x").warning("careful", extra={"fields": {"volume": "fast/v"}})

    assert text.getvalue().endswith("warning careful volume=fast/v\n")


@pytest.mark.parametrize("style", ["json", "console"])
def test_a_chosen_style_wins_over_the_terminal(style: str) -> None:
    text = Terminal()
    set_up_logging("info", style, text)

    logging.getLogger("x").warning("careful")

    assert text.getvalue().startswith("{") == (style == "json")


def test_what_is_less_severe_is_not_written() -> None:
    text = io.StringIO()
    set_up_logging("warning", "json", text)

    logging.getLogger("x").info("chatter")

    assert text.getvalue() == ""


def test_fields_cannot_replace_what_every_line_has() -> None:
    text = io.StringIO()
    set_up_logging("info", "json", text)

    logging.getLogger("x").info("true", extra={"fields": {"message": "false", "level": "debug"}})

    line = json.loads(text.getvalue())
    assert (line["message"], line["level"]) == ("true", "info")


def test_values_that_json_does_not_know_are_written_as_text() -> None:
    text = io.StringIO()
    set_up_logging("info", "json", text)

    logging.getLogger("x").info("odd", extra={"fields": {"error": ValueError("v"), "big": 1 << 80, "bytes": b"\xff"}})

    assert json.loads(text.getvalue())["error"] == "v"


def test_setup_may_come_twice() -> None:
    first, second = io.StringIO(), io.StringIO()
    set_up_logging("info", "json", first)
    set_up_logging("info", "json", second)

    logging.getLogger("x").info("once")

    assert (first.getvalue(), second.getvalue().count("\n")) == ("", 1)


def test_lines_that_many_threads_write_at_once_stay_whole(tmp_path: Path) -> None:
    file = tmp_path / "log"
    with file.open("w") as stream, ThreadPoolExecutor(8) as pool:
        set_up_logging("info", "json", stream)
        log = logging.getLogger("x")
        list(pool.map(lambda number: log.info("line %d %s", number, "x" * 3000), range(400)))

    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert sorted(int(line["message"].split()[1]) for line in lines) == list(range(400))


def test_a_long_line_is_written_to_its_end_into_a_pipe_that_is_read_slowly() -> None:
    reader, writer = os.pipe()
    with os.fdopen(reader) as read, os.fdopen(writer, "w") as stream, ThreadPoolExecutor(1) as pool:
        os.set_blocking(writer, True)
        set_up_logging("info", "json", stream)
        said = pool.submit(logging.getLogger("x").info, "x" * 300_000)
        line = json.loads(read.readline())
        said.result(10)

    assert line["message"] == "x" * 300_000


def test_a_log_that_cannot_be_written_does_not_stop_the_work(capsys: pytest.CaptureFixture[str]) -> None:
    with Path("/dev/full").open("w") as stream:
        set_up_logging("info", "json", stream)

        logging.getLogger("x").info("lost")

    assert "No space left" in capsys.readouterr().err


def test_a_pipe_that_nobody_reads_stops_no_work_and_the_loss_is_counted() -> None:
    reader, writer = os.pipe()
    with os.fdopen(reader) as read, os.fdopen(writer, "w") as stream, ThreadPoolExecutor(4) as pool:
        set_up_logging("info", "json", stream)
        log = logging.getLogger("x")
        done = pool.map(lambda number: log.info("line %d %s", number, "x" * 1000), range(400), timeout=60)
        assert len(list(done)) == 400, "all threads go on"
        os.set_blocking(reader, False)
        lines = read.read().splitlines()
        log.info("again")
        lines += read.read().splitlines()

    told = [json.loads(line) for line in lines]
    assert told[-1]["message"] == "again"
    assert told[-2]["message"].startswith("log lines were dropped")
    # The short line about dropped ones may fit into what is left of the pipe, so there may be more of them.
    dropped = sum(one["lines"] for one in told if one["message"].startswith("log lines were dropped"))
    assert dropped == 400 - sum(one["message"].startswith("line ") for one in told) > 0


@pytest.mark.parametrize("kind", ["pipe of another user", "socket"])
def test_whatever_the_log_is_written_to_it_stops_no_work(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError

    monkeypatch.setattr(descriptor, "_opened_again", refuse)
    ends = [one.detach() for one in socket.socketpair()] if kind == "socket" else [*os.pipe()]
    with os.fdopen(ends[0], "rb"), os.fdopen(ends[1], "w") as stream, ThreadPoolExecutor(1) as pool:
        set_up_logging("info", "json", stream)
        log = logging.getLogger("x")
        pool.submit(lambda: [log.info("%s", "x" * 1000) for _ in range(2000)]).result(60)


def test_a_terminal_gets_no_control_characters_and_one_line_per_message() -> None:
    text = Terminal()
    set_up_logging("info", "console", text)
    evil = "a\x1b[2J\x1b]0;title\x07b\nfake 12:00 info c\r\x9b31m\u202e"
    try:
        raise ValueError(evil)
    except ValueError:
        logging.getLogger("x").exception("m %s", evil, extra={"fields": {"name": evil, evil: "k"}})

    first, *rest = text.getvalue().splitlines()
    assert "a\\x1b[2J" in first
    assert "b\\nfake 12:00" in first
    assert first.count("fake") == 3
    assert rest[0] == "    Traceback (most recent call last):"
    assert all(line.startswith("    ") for line in rest), "no text of an error looks like a line of the log"
    assert not any(character in text.getvalue() for character in "\x1b\x07\r\x9b\u202e")
