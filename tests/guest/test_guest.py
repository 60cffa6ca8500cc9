"""The guests as a tool, and a test that needs it on a machine without the privilege: expanding a mounted ext4."""

from __future__ import annotations

import hashlib
import os
import pty
import shutil
import signal
import socket
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from csi_multi.host.privilege import LinuxCapability, held

pytestmark = [pytest.mark.slow, pytest.mark.root]

PROJECT = Path(__file__).parents[2]
DIRECT = held(LinuxCapability.CAP_SYS_ADMIN, LinuxCapability.CAP_SYS_RESOURCE)  # to mount, and to grow a mounted ext4

MUCH = bytes(range(256)) * 40_000  # 10 MB
FULL = pytest.mark.skipif(
    not os.environ.get("MATRIX"), reason="make matrix: an emulated guest takes 20 s to boot; the tests of ebs use one"
)
EMULATED = pytest.mark.parametrize("kind", ["emulated"], indirect=True)
USER_MODE = pytest.mark.parametrize("kind", ["user mode"], indirect=True)

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(params=[pytest.param("emulated", marks=FULL), "user mode"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def start(tmp_path: Path, kind: str) -> Iterator[Start]:
    """Start the tool with a temporary directory of its own, in which nothing may be left, nor any guest over it."""
    if DIRECT and not shutil.which("qemu-system-x86_64"):
        pytest.skip("this machine needs no guest, and has no qemu")
    started: list[subprocess.Popen[str]] = []

    def tool(*words: str, terminal: int | None = None) -> subprocess.Popen[str]:
        options = ("--user-mode",) if kind == "user mode" else ()
        command = (sys.executable, "tests/guest/run.py", *options, *words)
        environment = {**os.environ, "TMPDIR": str(tmp_path)}
        output = subprocess.PIPE if terminal is None else terminal
        process = subprocess.Popen(command, cwd=PROJECT, env=environment, stdin=terminal, stdout=output, text=True)
        started.append(process)
        return process

    yield tool
    for process in started:
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()


def guests(directory: Path) -> list[str]:
    """Return the command lines of the guests' processes that use this directory."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes().decode(errors="replace")
        except OSError:
            continue  # ended meanwhile
        if ("qemu-" in words or "linux.uml" in words) and not words.startswith("unshare") and str(directory) in words:
            found.append(words)
    return found


def test_output_comes_while_the_command_runs(start: Start, tmp_path: Path) -> None:
    process = start("--", "sh", "-c", "echo first; sleep 3; echo second >&2")
    assert process.stdout
    lines = [(line, time.monotonic()) for line in process.stdout]

    assert process.wait() == 0
    assert [line for line, _ in lines] == ["first\n", "second\n"]
    assert lines[1][1] - lines[0][1] > 2
    assert list(tmp_path.iterdir()) == []


def test_the_guest_has_the_callers_words_environment_directory_and_exit_status(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GUEST_TEST", "it's $HOME; 'ü'")
    output, _ = (
        process := start("--", "sh", "-c", 'echo "$0" "$GUEST_TEST"; pwd; hostname; exit 7', "a  b")
    ).communicate()

    assert output.splitlines() == ["a  b it's $HOME; 'ü'", str(PROJECT), "guest"]
    assert process.returncode == 7


def test_a_guest_that_takes_too_long_is_ended(start: Start, tmp_path: Path) -> None:
    began = time.monotonic()
    process = start("--timeout", "10", "--", "sleep", "600")

    assert process.wait(timeout=60) == 124
    assert time.monotonic() - began < 30
    assert (guests(tmp_path), list(tmp_path.iterdir())) == ([], [])


@EMULATED
def test_an_emulated_guest_with_a_network_reaches_a_server_on_this_machines_loopback(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        command = f"echo hello | busybox nc 10.0.2.2 {server.getsockname()[1]}"
        process = start("--network", "--", "sh", "-c", command)
        visitor, _ = server.accept()
        with visitor, visitor.makefile("rw") as lines:
            asked = lines.readline()
            lines.write("and good bye\n")
        output, _ = process.communicate(timeout=60)

    assert asked == "hello\n"
    assert output == "and good bye\n"


@USER_MODE
def test_a_guest_in_user_mode_with_a_network_reaches_a_server_on_this_machine(start: Start) -> None:
    with socket.create_server(("0.0.0.0", 0)) as server:
        server.settimeout(60)
        gateway = "gateway=$(ip route show default | cut -d' ' -f3); echo $gateway"
        visit = f"echo hello | busybox nc $gateway {server.getsockname()[1]} | sha256sum"
        process = start("--network", "--", "sh", "-c", f"{gateway}; {visit}")
        visitor, _ = server.accept()
        with visitor, visitor.makefile("rwb") as stream:
            asked = stream.readline()
            stream.write(MUCH)
        output, _ = process.communicate(timeout=60)

    assert asked == b"hello\n"
    gateway, digest = output.split()[:2]
    assert digest == hashlib.sha256(MUCH).hexdigest()
    left = subprocess.run(("ip", "-oneline", "address"), stdout=subprocess.PIPE, text=True, check=True).stdout
    assert f" {gateway}/31" not in left


@USER_MODE
def test_a_guest_in_user_mode_has_no_shell(start: Start) -> None:
    ours, theirs = pty.openpty()
    try:
        assert start(terminal=theirs).wait(timeout=60) == 2
    finally:
        os.close(ours)
        os.close(theirs)


@FULL
@EMULATED
def test_without_a_command_it_is_a_shell_on_the_terminal(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/bin/sh")  # quick to start
    ours, theirs = pty.openpty()
    with open(ours, "r+b", buffering=0) as terminal:  # noqa: PTH123 - a descriptor
        before = termios.tcgetattr(theirs)
        process = start("--timeout", "100", terminal=theirs)
        terminal.write(b"tty; echo $((6 * 7)); exit 3\n")

        assert process.wait() == 3
        shown = os.read(ours, 65536).decode().split()
        assert "/dev/hvc0" in shown
        assert "42" in shown
        assert termios.tcgetattr(theirs) == before
        os.close(theirs)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_guest_and_leaves_nothing(start: Start, tmp_path: Path, number: signal.Signals) -> None:
    process = start("--", "sh", "-c", "echo ready; sleep 600")
    assert process.stdout
    assert process.stdout.readline() == "ready\n"
    assert guests(tmp_path)
    process.send_signal(number)

    assert process.wait(timeout=20) == 128 + number
    assert (guests(tmp_path), list(tmp_path.iterdir())) == ([], [])


def test_no_guest_outlives_a_tool_that_was_killed(start: Start, tmp_path: Path) -> None:
    process = start("--", "sh", "-c", "echo ready; sleep 600")
    assert process.stdout
    assert process.stdout.readline() == "ready\n"
    process.kill()
    process.wait()
    ends = time.monotonic() + 20
    while guests(tmp_path) and time.monotonic() < ends:
        time.sleep(0.1)

    assert guests(tmp_path) == []


@USER_MODE
def test_a_guest_in_user_mode_whose_output_nobody_reads_ends(start: Start, tmp_path: Path) -> None:
    process = start("--", "sh", "-c", "echo ready; while echo more; do :; done")
    assert process.stdout
    assert process.stdout.readline() == "ready\n"
    process.stdout.close()

    assert process.wait(timeout=60) == 125
    assert (guests(tmp_path), list(tmp_path.iterdir())) == ([], [])


@FULL
@EMULATED
def test_an_emulated_guest_that_does_not_boot_shows_its_console(
    start: Start, capfd: pytest.CaptureFixture[str]
) -> None:
    process = start("--qemu-arg=-append", "--qemu-arg=console=ttyS0 panic=-1 rdinit=/none root=/dev/none", "--", "true")

    assert process.wait(timeout=60) == 125
    assert "Kernel panic" in capfd.readouterr().err


@USER_MODE
def test_a_guest_in_user_mode_that_does_not_boot_shows_its_console(
    start: Start, capfd: pytest.CaptureFixture[str]
) -> None:
    process = start("--memory", "8M", "--", "true")

    assert process.wait(timeout=60) == 125
    assert "its console:" in capfd.readouterr().err


@pytest.fixture
def capable(capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command where ext4 can grow in use, here or in a guest, and say which it was."""

    def run(*command: str) -> str:
        where = "on this machine" if DIRECT else "in a guest: no CAP_SYS_RESOURCE here"
        with capfd.disabled():
            print(f"\nrunning {where}: {' '.join(command)}")
        guest = () if DIRECT else (sys.executable, "tests/guest/run.py", "--user-mode", "--timeout", "300", "--")
        done = subprocess.run((*guest, *command), cwd=PROJECT, stdout=subprocess.PIPE, text=True, check=False)
        assert done.returncode == 0, done.stdout
        return done.stdout

    return run


@FULL
def test_the_demo_grows_ext4_while_it_is_mounted(capable: Callable[..., str]) -> None:
    output = capable(sys.executable, "-m", "csi_multi", "demo", "--filesystem", "ext4")

    assert "expanded while mounted: " in output
    assert "nothing left behind" in output


def test_the_node_engines_tests_of_growing_ext4_pass(capable: Callable[..., str]) -> None:
    options = ("-p", "no:cacheprovider", "-q", "-k", "grows and ext4")
    output = capable(sys.executable, "-m", "pytest", *options, "tests/node/test_grow.py")

    assert " passed" in output
    assert "skipped" not in output
