"""The socket: where it may be, and whose it is."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from csi_multi.rpc import endpoint
from csi_multi.rpc.endpoint import EndpointError, claim_path, inode, remove, socket_path


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "csi.sock"


@pytest.fixture
def live(place: Path) -> Iterator[socket.socket]:
    with closing(socket.socket(socket.AF_UNIX)) as server:
        server.bind(str(place))
        server.listen()
        yield server


@pytest.mark.parametrize("text", ["unix:///run/csi.sock", "unix:/run/csi.sock"])
def test_an_absolute_path_is_taken(text: str) -> None:
    assert socket_path(text) == Path("/run/csi.sock")


@pytest.mark.parametrize(
    "text",
    [
        *(
            "/run/csi.sock",
            "csi.sock",
            "unix:csi.sock",
            "unix://csi.sock",
            "unix://host/run/csi.sock",
            "unix:///run/csi",
        ),
        *("tcp://127.0.0.1:10000", "unix:", "unix://", "UNIX:///run/csi.sock", "dns:///run/csi.sock", "unix:///"),
    ],
)
def test_anything_else_is_refused_with_the_form_that_is_expected(text: str) -> None:
    with pytest.raises(EndpointError, match=r"unix:///absolute/path\.sock"):
        socket_path(text)


@pytest.mark.parametrize("text", [None, ""])
def test_a_missing_variable_is_named(text: str | None) -> None:
    with pytest.raises(EndpointError, match="CSI_ENDPOINT is not set"):
        socket_path(text)


def test_a_path_longer_than_the_kernel_takes_is_refused() -> None:
    longest = "/" + "a" * 101 + ".sock"

    assert socket_path(f"unix://{longest}") == Path(longest)
    with pytest.raises(EndpointError, match="longer than 107"):
        socket_path(f"unix://{longest.replace('a', 'é', 1)}")


def test_a_live_socket_is_refused_and_left_alone(place: Path, live: socket.socket) -> None:
    with pytest.raises(EndpointError, match="another driver is listening"), claim_path(place):
        pass
    assert place.exists()


def test_a_socket_too_busy_to_answer_counts_as_live(place: Path, live: socket.socket) -> None:
    live.listen(0)
    with closing(socket.socket(socket.AF_UNIX)) as one, closing(socket.socket(socket.AF_UNIX)) as two:
        for client in (one, two):
            client.setblocking(False)
            client.connect_ex(str(place))
        began = time.monotonic()

        with pytest.raises(EndpointError, match="another driver"), claim_path(place):
            pass
        assert time.monotonic() - began < 10


def test_a_stale_socket_is_replaced(place: Path, live: socket.socket) -> None:
    live.close()

    with claim_path(place):
        assert not place.exists()


@pytest.mark.parametrize("kind", ["file", "directory", "fifo", "symlink"])
def test_what_is_not_a_socket_is_refused_and_left_alone(kind: str, place: Path) -> None:
    {
        "file": lambda: place.write_text("precious"),
        "directory": place.mkdir,
        "fifo": lambda: os.mkfifo(place),
        "symlink": lambda: place.symlink_to("/nowhere"),
    }[kind]()

    with pytest.raises(EndpointError, match="is not a socket"), claim_path(place):
        pass
    assert os.path.lexists(place)


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(EndpointError, match="absent cannot be used"), claim_path(tmp_path / "absent" / "csi.sock"):
        pass


def test_nothing_appears_beside_the_socket(place: Path) -> None:
    with claim_path(place):
        assert os.listdir(place.parent) == []
    assert os.listdir(place.parent) == []


def test_only_one_process_takes_over_at_a_time(place: Path) -> None:
    order: list[str] = []

    def second() -> None:
        with claim_path(place):
            order.append("second")

    with claim_path(place):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join(0.2)
        order.append("first")
    thread.join()

    assert order == ["first", "second"]


def test_a_directory_that_another_process_keeps_locked_is_an_error_with_the_remedy(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "CLAIM_SECONDS", 0.2)
    other = os.open(place.parent, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    try:
        with pytest.raises(EndpointError, match=f"fuser -v {place.parent}"), claim_path(place):
            pass
    finally:
        os.close(other)
    with claim_path(place):
        pass


def test_a_successors_socket_is_not_removed(place: Path, live: socket.socket) -> None:
    own = inode(place)
    place.rename(place.with_name("old.sock"))
    with closing(socket.socket(socket.AF_UNIX)) as successor:
        successor.bind(str(place))

        remove(place, own)
        assert place.exists()
        remove(place, inode(place))
        assert not place.exists()
        remove(place, own)


LINGERING = """
import ctypes, socket, sys, threading, time
listening = socket.socket(socket.AF_UNIX)
listening.bind(sys.argv[1])
listening.listen()
threading.Thread(target=time.sleep, args=(600,)).start()
ctypes.CDLL(None).syscall(int(sys.argv[2]), 0)
"""
EXIT = {"x86_64": 60}.get(os.uname().machine, 93)  # exit(2) of one thread, which Python does not offer


def test_the_socket_of_a_process_that_has_exited_but_for_one_thread_is_replaced(place: Path) -> None:
    """As it is while the kernel does not let go a thread that waits for a device."""
    with subprocess.Popen([sys.executable, "-c", LINGERING, str(place), str(EXIT)]) as process:
        try:
            while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                time.sleep(0.01)

            with claim_path(place):
                assert not place.exists()
        finally:
            process.kill()
