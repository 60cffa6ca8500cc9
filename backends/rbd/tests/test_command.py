"""Commands run in a clean environment, to their end or their time limit, from many threads at once."""

from __future__ import annotations

import errno
import gc
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from csi_multi_rbd.command import CommandRunner

from csi_multi.contract import CommandFailed, CommandTimedOut, FailedPrecondition, Result, Unavailable
from csi_multi.host.command import Doubt

STRESS = Path(__file__).with_name("stress_command.py")
CLIENTS = 16
CALLS = 4000 if os.environ.get("MATRIX") else 1000


def bash(script: str, *words: str, timeout: float = 10.0) -> tuple[int, str, str]:
    answer = CommandRunner().execute("sh", "-c", script, "sh", *words, timeout=timeout)
    return answer.status, answer.stdout, answer.stderr


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_what_a_command_printed_is_its_answer() -> None:
    assert bash("echo out; echo err >&2") == (0, "out\n", "")


def test_a_command_that_fails_tells_its_status_and_all_it_said() -> None:
    status, stdout, stderr = bash("seq 20000; seq 20000 >&2; exit 39")

    assert (status, stdout.count("\n"), stderr.count("\n")) == (39, 20000, 20000)


def test_words_reach_a_command_as_they_are() -> None:
    words = ("", "a b", "$HOME", "'\"", "é", "--x=y", "*")

    assert bash('for word; do printf "%s\\n" "$word"; done', *words)[1].splitlines() == list(words)


def test_output_that_is_no_utf_8_is_no_failure() -> None:
    assert bash("printf '\\377\\n'")[1] == "\ufffd\n"


def test_nothing_of_our_environment_reaches_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CEPH_ARGS", "CEPH_CONF", "CEPH_KEYRING", "LD_PRELOAD", "PYTHONPATH", "TZ", "HOME"):
        monkeypatch.setenv(name, "/nowhere")

    names = {line.partition("=")[0] for line in bash("env")[1].splitlines()}

    assert names - {"PWD", "SHLVL", "_", "OLDPWD"} == {"PATH", "LC_ALL", "TZ"}
    assert "TZ=UTC" in bash("env")[1]


def test_a_command_has_no_terminal_and_an_empty_input_and_a_session_of_its_own() -> None:
    assert bash("cat; test -t 0 || test -t 1 || test -t 2 || echo none")[1] == "none\n"
    session = bash("cut -d' ' -f6 /proc/$$/stat; echo $$")[1].split()
    assert session[0] == session[1] != str(os.getsid(0))


def test_a_command_inherits_no_descriptor() -> None:
    reading, writing = os.pipe()
    os.set_inheritable(reading, True)
    try:
        assert bash("ls /proc/$$/fd")[1].split() == ["0", "1", "2"]
    finally:
        os.close(reading)
        os.close(writing)


def test_a_command_is_killed_at_its_time_limit_with_all_that_it_started(caplog: pytest.LogCaptureFixture) -> None:
    started = time.monotonic()

    with pytest.raises(CommandTimedOut, match=r"sh did not finish within 0.3 s"):
        bash("sleep 60 & sleep 60", timeout=0.3)

    assert time.monotonic() - started < 30
    killed = int(caplog.messages[0].split("process ")[1].split(")")[0])
    end = time.monotonic() + 20
    while [stat for stat in Path("/proc").glob("[0-9]*/stat") if session_of(stat) == killed]:
        assert time.monotonic() < end
        time.sleep(0.01)


def session_of(stat: Path) -> int:
    try:
        fields = stat.read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return 0 if fields[0] == "Z" else int(fields[3])


def test_a_command_whose_child_stays_behind_is_answered_at_once() -> None:
    started = time.monotonic()

    status, stdout, _ = bash("sleep 30 & echo $!")

    assert status == 0
    assert time.monotonic() - started < 20
    assert alive(int(stdout))
    os.kill(int(stdout), signal.SIGKILL)


def test_a_command_that_a_signal_ended_tells_which() -> None:
    assert bash("kill -9 $$")[0] == -9


def test_a_program_that_is_missing_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("csi_multi_rbd.command.SEARCH_PATH", "/nonexistent")

    with pytest.raises(FailedPrecondition, match=r"'rbd' is not installed on this node; install package ceph-common"):
        CommandRunner().execute("rbd", "ls", timeout=1)


def test_a_program_that_cannot_be_started_is_no_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", full)

    with pytest.raises(Unavailable, match=r"sh cannot be started: .*Resource temporarily unavailable"):
        bash("true")
    assert gc.isenabled()  # sh turns it off for the fork


@pytest.mark.parametrize("function", ["memfd_create", "open", "pidfd_open"])
def test_a_command_without_a_free_descriptor_is_no_bug(function: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_arguments: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, function, full)

    with pytest.raises(Unavailable, match=r"true cannot be started: .*Too many open files"):
        CommandRunner().execute("true", timeout=10)

    for thread in threading.enumerate():
        if "for pid" in thread.name:  # sh looks once a second after a command that was started and not waited for
            thread.join()


def test_what_stands_for_the_storage_can_be_put_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_words: str, timeout: float, **more: Any) -> Result:
        raise CommandFailed(("rbd",), Result(75, "", "the kit made this command fail"))

    monkeypatch.setattr(CommandRunner, "run", lambda _self, *words, **more: failing(*words, **more))

    assert bash("true") == (75, "", "the kit made this command fail")


def test_no_command_is_logged_by_the_library(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        bash("true")

    assert caplog.records == []


def test_a_command_leaves_nothing_open() -> None:
    bash("true")
    gc.collect()  # what earlier tests left is closed now, and not meanwhile
    before = len(os.listdir("/proc/self/fd"))

    for _ in range(5):
        bash("exit 1")

    assert len(os.listdir("/proc/self/fd")) <= before
    assert [one for one in threading.enumerate() if "for pid" in one.name] == []


def stress(directory: Path, *words: str, calls: int = CALLS) -> dict[str, object]:
    command = (sys.executable, str(STRESS), str(directory / "sock"), str(CLIENTS), str(calls), *words)
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    found: dict[str, object] = json.loads(done.stdout)
    return found


@pytest.mark.slow
def test_thousands_of_commands_from_a_grpc_server_all_succeed_and_leave_nothing(tmp_path: Path) -> None:
    found = stress(tmp_path)

    assert found == {"failures": [], "descriptors": found["descriptors"], "children": 0, "threads": 0}
    assert int(str(found["descriptors"])) <= 0


def test_a_command_reads_the_text_it_is_given_and_tells_what_it_said_about_it() -> None:
    answer = CommandRunner().execute("sh", "-c", "cat; echo no >&2", timeout=10, stdin="one\ntwo\n")

    assert answer == Result(0, "one\ntwo\n", "no\n")


def test_a_command_that_cannot_end_is_killed_as_soon_as_that_is_known() -> None:
    asked: list[int] = []
    doubt = Doubt(after=0.01, hopeless=lambda: bool(asked.append(1) or True))
    with pytest.raises(CommandTimedOut):
        CommandRunner().execute("sleep", "600", timeout=600, doubt=doubt)

    assert asked == [1]


def test_a_command_that_is_only_slow_is_waited_for() -> None:
    doubt = Doubt(after=0.01, hopeless=lambda: False)

    assert CommandRunner().execute("sh", "-c", "sleep 0.1; echo done", timeout=10, doubt=doubt).stdout == "done\n"
    with pytest.raises(CommandTimedOut, match=r"0\.1"):
        CommandRunner().execute("sleep", "600", timeout=0.1, doubt=doubt)


def test_a_command_that_ends_soon_raises_no_doubt() -> None:
    doubt = Doubt(after=10, hopeless=lambda: pytest.fail("it has ended"))

    assert CommandRunner().execute("true", timeout=20, doubt=doubt).status == 0
