"""Fault injection: which calls are recorded, and the faults at a chosen call."""

from __future__ import annotations

import fcntl
import os
import threading
import types
from collections.abc import Callable
from pathlib import Path

import pytest
from csi_multi_testing.fault_injection import Call, Fault, FaultInjector, ProcessDied

from csi_multi.contract import CommandFailed, CommandTimedOut
from csi_multi.host.command import LocalHost


class Pool:
    """Stands for a library that an author names functions of."""

    made: list[str]

    def __init__(self) -> None:
        self.made = []

    def make(self, name: str) -> str:
        self.made.append(name)
        return name

    @staticmethod
    def ping(text: str) -> str:
        return f"pong {text}"

    @classmethod
    def kind(cls) -> str:
        return cls.__name__


class Better(Pool):
    """Inherits everything."""


def test_a_command_counts_and_fails_as_commands_do() -> None:
    injector = FaultInjector()
    host = injector.host(LocalHost())
    with injector.inject(2, Fault.ERROR):
        assert host.run("echo", "1").stdout == "1\n"
        with pytest.raises(CommandFailed, match="the kit made this command fail"):
            host.run("echo", "2")
        assert host.run("echo", "3").stdout == "3\n"

    assert injector.calls == ["echo 1", "echo 2", "echo 3"]
    assert (injector.reached, injector.happened) == (True, True)


def test_a_failure_has_a_status_that_the_caller_does_not_expect() -> None:
    injector = FaultInjector()
    with injector.inject(1, Fault.ERROR), pytest.raises(CommandFailed) as found:
        injector.host(LocalHost()).run("true", ok=tuple(range(75)))

    assert found.value.status == 75


def test_a_timeout_does_nothing_and_a_late_one_has_done_it(tmp_path: Path) -> None:
    injector = FaultInjector()
    host = injector.host(LocalHost())
    for name, fault in (("early", Fault.TIMEOUT), ("late", Fault.LATE_TIMEOUT)):
        with injector.inject(1, fault), pytest.raises(CommandTimedOut):
            host.run("touch", str(tmp_path / name))

    assert os.listdir(tmp_path) == ["late"]


def test_who_is_dead_stays_dead(tmp_path: Path) -> None:
    injector = FaultInjector((tmp_path,))
    host, pool = injector.host(LocalHost()), Pool()
    with injector.around((Call(owner=pool, name="make"),)):
        with injector.inject(1, Fault.DEATH):
            with pytest.raises(ProcessDied):
                pool.make("a")
            with pytest.raises(ProcessDied):
                host.run("true")
            with pytest.raises(ProcessDied):
                (tmp_path / "a").write_text("a")
        with pytest.raises(ProcessDied):
            host.run("touch", str(tmp_path / "b"))
        pool.make("by the next process")

    assert injector.host(LocalHost()).run("echo", "new").stdout == "new\n"
    assert os.listdir(tmp_path) == []
    assert pool.made == ["by the next process"]


def test_a_lasting_fault_meets_all_later_calls() -> None:
    injector, pool = FaultInjector(), Pool()
    with injector.around((Call(owner=pool, name="make"),)), injector.inject(2, Fault.ERROR, lasting=True):
        pool.make("a")
        for name in ("b", "c"):
            with pytest.raises(ConnectionError):
                pool.make(name)

    assert pool.made == ["a"]


def test_beyond_the_last_call_nothing_happens() -> None:
    injector, pool = FaultInjector(), Pool()
    with injector.around((Call(owner=pool, name="make"),)), injector.inject(2):
        pool.make("a")

    assert (injector.calls, injector.reached, injector.happened) == (["make"], False, False)


def test_methods_of_a_class_count_for_all_its_objects() -> None:
    injector, pool = FaultInjector(), Pool()
    calls = tuple(Call(owner=Pool, name=name) for name in ("make", "ping", "kind"))
    with injector.around(calls), injector.inject(0):
        assert pool.make("a") == "a"
        assert Better().make("b") == "b"
        assert (pool.ping("x"), Pool.ping("y")) == ("pong x", "pong y")
        assert (pool.kind(), Better.kind()) == ("Pool", "Better")

    assert injector.calls == ["make", "make", "ping", "ping", "kind", "kind"]
    assert isinstance(vars(Pool)["ping"], staticmethod)
    assert pool.ping("z") == "pong z"
    assert len(injector.calls) == 6


def test_an_author_may_put_calls_into_words() -> None:
    injector, pool, module = FaultInjector(), Pool(), types.ModuleType("library")
    module.reach = lambda word: word.upper()  # type: ignore[attr-defined]
    describe = {"describe": lambda *words, **more: " ".join([*words, *more])}
    methods = tuple(Call(owner=Pool, name=name, **describe) for name in ("make", "ping", "kind"))
    others = (Call(owner=module, name="reach", **describe), Call(owner=pool, name="make", **describe))
    with injector.around(methods), injector.inject(0):
        assert (pool.make("a"), pool.ping(text="b"), Pool.kind()) == ("a", "pong b", "Pool")
    assert injector.calls == ["a", "text", ""]
    with injector.around(others), injector.inject(0):
        assert (module.reach("c"), pool.make("d")) == ("C", "d")
    assert injector.calls == ["c", "d"]


def test_inherited_methods_count_for_the_named_class_only() -> None:
    injector = FaultInjector()
    calls = tuple(Call(owner=Better, name=name) for name in ("make", "ping", "kind"))
    with injector.around(calls), injector.inject(0):
        Pool().make("a")
        assert (Better().make("b"), Better().ping("x"), Better.kind()) == ("b", "pong x", "Better")

    assert injector.calls == ["make", "ping", "kind"]
    assert "make" not in vars(Better)


def test_functions_of_modules_and_objects_count() -> None:
    injector, pool, other = FaultInjector(), Pool(), Pool()
    module = types.ModuleType("library")
    module.reach = lambda word: word.upper()  # type: ignore[attr-defined]
    with injector.around((Call(owner=module, name="reach"), Call(owner=pool, name="ping"))), injector.inject(0):
        assert (module.reach("a"), pool.ping("b"), other.ping("c")) == ("A", "pong b", "pong c")

    assert injector.calls == ["reach", "ping"]
    assert "ping" not in vars(pool)


def test_an_authors_errors_are_raised() -> None:
    injector, pool = FaultInjector(), Pool()
    call = Call(owner=pool, name="make", error=lambda: KeyError("e"), timeout=lambda: LookupError("t"))
    with injector.around((call,)):
        with injector.inject(1, Fault.ERROR), pytest.raises(KeyError):
            pool.make("a")
        with injector.inject(1, Fault.LATE_TIMEOUT), pytest.raises(LookupError):
            pool.make("late")

    assert pool.made == ["late"]


def change_everything(at: Path) -> None:
    """One call of each kind on files."""
    (at / "made").mkdir()
    (at / "made/file").write_text("text")
    os.truncate(at / "made/file", 2)
    (at / "made/file").rename(at / "made/other")
    os.listdir(at)
    (at / "made/other").unlink()
    (at / "made").rmdir()


def test_only_what_fails_as_a_connection_can_lack_its_socket() -> None:
    injector, pool = FaultInjector(), Pool()
    refused = Call(owner=pool, name="make", error=ConnectionRefusedError)
    for call in (Call(owner=pool, name="make"), Call(owner=pool, name="make", error=OSError)):
        with injector.around((call,)), injector.inject(1, Fault.NO_SOCKET):
            pool.make("a")
        assert (injector.reached, injector.happened) == (True, False)

    with injector.around((refused,)), injector.inject(1, Fault.NO_SOCKET), pytest.raises(FileNotFoundError):
        pool.make("a")
    assert injector.happened


def test_files_below_the_directories_count(tmp_path: Path) -> None:
    (tmp_path / "ours").mkdir()
    (tmp_path / "others").mkdir()
    injector = FaultInjector((tmp_path / "ours",))
    with injector.inject(0):
        change_everything(tmp_path / "others")
        change_everything(tmp_path / "ours")
        change_everything(tmp_path / "ours")

    words = [call.split()[0] for call in injector.calls]
    events = ["os.mkdir", "open", "os.truncate", "os.rename", "os.listdir", "os.remove", "os.rmdir"]
    assert words == events * 2


def test_a_move_into_the_directories_counts(tmp_path: Path) -> None:
    (tmp_path / "ours").mkdir()
    (tmp_path / "draft").touch()
    injector = FaultInjector((tmp_path / "ours",))
    with injector.inject(1), pytest.raises(ProcessDied):
        (tmp_path / "draft").rename(tmp_path / "ours/file")

    assert os.listdir(tmp_path / "ours") == []


def test_a_directory_is_known_by_all_its_names(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    injector = FaultInjector((tmp_path / "link",))
    with injector.inject(0):
        (tmp_path / "link/a").write_text("")
        (tmp_path / "real/b").write_text("")

    assert len(injector.calls) == 2


def test_a_call_on_a_file_fails_but_never_times_out(tmp_path: Path) -> None:
    injector = FaultInjector((tmp_path,))
    with injector.inject(1, Fault.ERROR), pytest.raises(OSError, match="the kit made this call fail"):
        (tmp_path / "a").write_text("")
    assert os.listdir(tmp_path) == []
    with injector.inject(1, Fault.LATE_TIMEOUT):
        (tmp_path / "a").write_text("")

    assert (injector.reached, injector.happened) == (True, False)


def in_thread(act: Callable[[], object]) -> BaseException | None:
    caught: list[BaseException] = []

    def run() -> None:
        try:
            act()
        except BaseException as error:
            caught.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return caught[0] if caught else None


def test_threads_of_the_backend_count_where_paths_are_named(tmp_path: Path) -> None:
    injector = FaultInjector((tmp_path,))
    directory = os.open(tmp_path, os.O_RDONLY)
    with injector.inject(0):
        in_thread(lambda: os.listdir(directory))
        in_thread(lambda: (tmp_path / "a").write_text(""))
        os.listdir(directory)
    os.close(directory)
    assert [call.split()[0] for call in injector.calls] == ["os.listdir", "open", "os.listdir"]

    with injector.inject(1):
        assert isinstance(in_thread(lambda: (tmp_path / "b").write_text("")), ProcessDied)
    assert os.listdir(tmp_path) == ["a"]


def test_what_a_command_does_is_part_of_the_command(tmp_path: Path) -> None:
    class Opening(LocalHost):
        def run(self, *argv: str, **more: object) -> object:  # type: ignore[override]
            (tmp_path / "log").write_text("")
            return super().run(*argv)

    injector = FaultInjector((tmp_path,))
    with injector.inject(0):
        injector.host(Opening()).run("true")  # type: ignore[arg-type]

    assert injector.calls == ["true"]


def test_a_kernel_call_is_one_call_and_fails_as_the_kernel_does(tmp_path: Path) -> None:
    injector = FaultInjector((tmp_path,))
    host = injector.host(LocalHost())

    def call() -> int:
        return host.call(lambda: (tmp_path / "log").write_text("1"), "losetup", "--detach")

    with injector.inject(0):
        assert call() == 1
    assert injector.calls == ["losetup --detach"]
    for fault, error in (
        (Fault.ERROR, OSError),
        (Fault.TIMEOUT, CommandTimedOut),
        (Fault.LATE_TIMEOUT, CommandTimedOut),
        (Fault.DEATH, ProcessDied),
    ):
        (tmp_path / "log").unlink(missing_ok=True)
        with injector.inject(1, fault), pytest.raises(error):
            call()
        assert (tmp_path / "log").exists() is fault.late


def test_a_descriptor_counts_where_its_file_lies(tmp_path: Path) -> None:
    ours, other = tmp_path / "ours", tmp_path / "other"
    for directory in (ours, other):
        directory.mkdir()
    injector = FaultInjector((ours,))
    held = {directory: os.open(directory, os.O_RDONLY) for directory in (ours, other)}

    with injector.inject(0):
        for descriptor in held.values():
            fcntl.flock(descriptor, fcntl.LOCK_SH)

    for descriptor in held.values():
        os.close(descriptor)
    assert injector.calls == [f"fcntl.flock {ours}"]


def test_a_call_waits_and_is_then_made_while_others_are_recorded_and_made(tmp_path: Path) -> None:
    injector = FaultInjector((tmp_path,))
    host = injector.host(LocalHost())

    def meanwhile() -> None:
        assert not (tmp_path / "second").exists()
        host.run("touch", str(tmp_path / "third"))
        (tmp_path / "fourth").write_text("4")

    with injector.inject(2, Fault.PAUSE, meanwhile=meanwhile):
        (tmp_path / "first").write_text("1")
        (tmp_path / "second").write_text("2")

    assert sorted(os.listdir(tmp_path)) == ["first", "fourth", "second", "third"]
    assert [text.rpartition("/")[2] for text in injector.calls] == ["first", "second", "third", "fourth"]
    assert (injector.reached, injector.happened) == (True, True)


def test_a_thread_is_told_whose_call_is_not_answered_yet() -> None:
    pool, injector, seen = Pool(), FaultInjector(), []
    pool.made = types.SimpleNamespace(append=lambda _: seen.append(injector.is_answering(threading.get_ident())))  # type: ignore[assignment]
    with injector.around((Call(owner=pool, name="make"),)):
        pool.make("x")

    assert (seen, injector.is_answering(threading.get_ident())) == ([True], False)
