"""What a freeze leaves when anything fails: never a frozen filesystem without a note. The kernel's answers are made."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from pathlib import Path

import pytest

from csi_multi.contract import Setting, StorageError, Unavailable
from csi_multi.host import exclusive, mounts, sysfs
from csi_multi.host.command import LocalHost
from csi_multi.host.mounts import MountPoint
from csi_multi.node import device_filesystems, freeze, freeze_notes, frozen_leftovers, mounting, thaw

LONG = 60.0  # seconds, for what is waited for
NUMBER, DEVICE = "7:9", Path("/dev/loop9")
HOST = LocalHost()


class Kernel:
    """One filesystem. `before` and `after`: what happens around a call, by its name."""

    def __init__(self) -> None:
        self.frozen = False
        self.calls: list[str] = []
        self.before: dict[str, BaseException] = {}
        self.after: dict[str, BaseException] = {}

    def call(self, _descriptor: int, request: int) -> None:
        freezing = request == freeze.FIFREEZE
        name = "freeze" if freezing else "thaw"
        self.calls.append(name)
        if name in self.before:
            raise self.before[name]
        if self.frozen == freezing:
            raise OSError(errno.EBUSY if freezing else errno.EINVAL, "as it is already")
        self.frozen = freezing
        if name in self.after:
            raise self.after[name]


@pytest.fixture(autouse=True)
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(freeze_notes, "NOTES", tmp_path / "notes")
    return tmp_path / "notes"


@pytest.fixture(autouse=True)
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[MountPoint]:
    """What is mounted from the device: a directory stands for its filesystem."""
    descriptor = os.open(tmp_path, os.O_RDONLY)
    line = f"{mounts.id_of(descriptor)} 1 {NUMBER} / {tmp_path} rw - ext4 {DEVICE} rw"
    os.close(descriptor)
    mounted = [mounts.parse(line)]
    monkeypatch.setattr(device_filesystems, "find", lambda _device: mounted)
    monkeypatch.setattr(sysfs, "number_of", lambda _path: NUMBER)
    monkeypatch.setattr(sysfs, "exists", lambda _number: True)
    return mounted


@pytest.fixture(autouse=True)
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    made = Kernel()
    monkeypatch.setattr(thaw, "call_kernel", made.call)
    monkeypatch.setattr(thaw, "PAUSE", 0.0)
    monkeypatch.setattr(freeze, "sync_filesystem", lambda *_: None)
    return made


def left(notes: Path) -> list[str]:
    return os.listdir(notes) if notes.exists() else []


def leave_frozen(kernel: Kernel) -> None:
    """As a process does that is killed in the block."""
    kernel.before["thaw"] = KeyError("killed")
    with pytest.raises(KeyError), freeze.frozen(DEVICE):
        pass
    del kernel.before["thaw"]
    assert kernel.frozen


def test_a_copy_is_given_up_when_another_program_thaws_the_filesystem(kernel: Kernel, notes: Path) -> None:
    with pytest.raises(Unavailable, match="was thawed by another program"):  # noqa: SIM117
        with freeze.frozen(DEVICE):
            kernel.frozen = False

    assert left(notes) == []


def test_what_another_program_froze_after_the_time_limit_stays_frozen(kernel: Kernel) -> None:
    """The copy that is given up does not thaw what it has not frozen."""

    def freeze_after_the_limit() -> None:
        end = time.monotonic() + LONG
        while kernel.frozen or "thaw" not in kernel.calls:
            assert time.monotonic() < end
            time.sleep(0.01)
        kernel.frozen = True

    with pytest.raises(Unavailable, match=r"was thawed after 0\.01 s"), freeze.frozen(DEVICE, 0.01):
        freeze_after_the_limit()

    assert kernel.frozen


@pytest.mark.parametrize("error", [MemoryError(), KeyboardInterrupt()], ids=repr)
def test_an_error_right_after_the_freeze_ends_it(kernel: Kernel, notes: Path, error: BaseException) -> None:
    kernel.after["freeze"] = error

    with pytest.raises(type(error)), freeze.frozen(DEVICE):
        pass

    assert not kernel.frozen
    assert left(notes) == []


@pytest.mark.parametrize("error", [MemoryError(), OSError(errno.EIO, "made to fail")], ids=repr)
def test_the_note_stays_until_a_thaw_has_succeeded(kernel: Kernel, notes: Path, error: Exception) -> None:
    kernel.before["thaw"] = error
    with pytest.raises((MemoryError, Unavailable)), freeze.frozen(DEVICE):
        pass
    assert left(notes) == [NUMBER]
    frozen_leftovers.thaw_all(HOST)
    assert left(notes) == [NUMBER]

    kernel.before.clear()
    frozen_leftovers.thaw_all(HOST)
    assert not kernel.frozen
    assert left(notes) == []


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), MemoryError()], ids=repr)
def test_without_a_thread_that_ends_it_nothing_is_frozen(
    kernel: Kernel, notes: Path, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise error

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises((Unavailable, MemoryError)), freeze.frozen(DEVICE):
        pass

    assert kernel.calls == []
    assert left(notes) == []


def test_a_time_limit_that_ends_before_the_freeze_has_begun_ends_it_at_once(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        real(thread)
        time.sleep(0.3)  # in which its time is over

    def wait_for_thaw() -> None:
        end = time.monotonic() + LONG
        while kernel.frozen:
            assert time.monotonic() < end
            time.sleep(0.01)

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(Unavailable, match="was thawed after 0 s"), freeze.frozen(DEVICE, 0.0):
        wait_for_thaw()


def test_a_time_limit_that_ends_after_the_block_calls_the_kernel_no_more(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its descriptor is closed by then, and may be another file's. The thread waits until the block has ended."""
    real, ends, threads = threading.Thread, threading.Event(), []

    class Late(real):  # type: ignore[misc, valid-type]
        def run(self) -> None:
            ends.wait(LONG)
            super().run()

        def start(self) -> None:
            threads.append(self)
            super().start()

    monkeypatch.setattr(threading, "Thread", Late)
    kernel.before["thaw"] = OSError(errno.EIO, "made to fail")
    with pytest.raises(Unavailable, match="may still be frozen"), freeze.frozen(DEVICE, 0.0):
        pass
    calls = len(kernel.calls)
    ends.set()
    for one in threads:
        one.join(LONG)

    assert threads
    assert len(kernel.calls) == calls


def test_an_error_of_the_block_is_not_taken_for_another_copy(kernel: Kernel, notes: Path) -> None:
    error = BlockingIOError(errno.EAGAIN, "the backend's own lock")

    with pytest.raises(BlockingIOError) as raised, freeze.frozen(DEVICE):
        raise error

    assert raised.value is error
    assert left(notes) == []


def test_a_leftover_that_cannot_be_reached_now_keeps_its_note(
    kernel: Kernel, notes: Path, found: list[MountPoint]
) -> None:
    """It is unmounted between the look at the mount table and the freeze."""
    leave_frozen(kernel)
    here, found[:] = found[0], [mounts.parse(f"1 1 {NUMBER} / {notes} rw - ext4 {DEVICE} rw")]
    with pytest.raises(Unavailable, match="was unmounted just now"), freeze.frozen(DEVICE):
        pass
    assert left(notes) == [NUMBER]

    found[:] = [here]
    frozen_leftovers.thaw_all(HOST)
    assert not kernel.frozen


@pytest.mark.parametrize("failing", ["mount", "thaw"])
def test_an_unmounted_leftover_keeps_its_note_until_it_is_thawed(
    kernel: Kernel, notes: Path, found: list[MountPoint], monkeypatch: pytest.MonkeyPatch, failing: str, tmp_path: Path
) -> None:
    leave_frozen(kernel)
    found.clear()
    monkeypatch.setattr(exclusive, "is_held", lambda _path: True)
    monkeypatch.setattr(mounting, "verify", lambda *_: None)
    monkeypatch.setattr(mounting, "unmount", lambda *_: None)
    monkeypatch.setattr(thaw, "_opened", lambda *_: contextlib.nullcontext(0))
    if failing == "thaw":
        kernel.before["thaw"] = OSError(errno.EIO, "made to fail")

    def mount(*_: object) -> None:
        if failing == "mount":
            raise Unavailable("made to fail")

    monkeypatch.setattr(mounting, "mount", mount)
    frozen_leftovers.thaw_all(HOST)
    assert left(notes) == [NUMBER]

    failing = ""
    kernel.before.clear()
    frozen_leftovers.thaw_all(HOST)
    assert not kernel.frozen
    assert left(notes) == []


@pytest.mark.parametrize("text", ["5", '["/dev/loop9"]', '{"device": 1}', "[1, 2, 3]", "[1, 2]"])
def test_a_note_that_is_none_is_logged_and_the_others_are_thawed(
    kernel: Kernel, notes: Path, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    leave_frozen(kernel)
    for number in ("1:1", "999:9"):  # the order of a directory is not known
        (notes / number).write_text(f"{text}\n")

    frozen_leftovers.thaw_all(HOST)

    assert not kernel.frozen
    assert sorted(left(notes)) == ["1:1", "999:9"]
    assert "device 999:9 may still be frozen" in caplog.text


def test_any_error_with_one_note_leaves_the_others_to_be_thawed(
    kernel: Kernel, notes: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_frozen(kernel)
    for number in ("1:1", "999:9"):
        (notes / number).write_bytes((notes / NUMBER).read_bytes())

    def exists(number: str) -> bool:
        if number != NUMBER:
            raise ValueError("made to fail")
        return True

    monkeypatch.setattr(sysfs, "exists", exists)
    frozen_leftovers.thaw_all(HOST)

    assert not kernel.frozen
    assert sorted(left(notes)) == ["1:1", "999:9"]
    assert "made to fail" in caplog.text


def test_the_thread_that_thaws_goes_on_after_any_error_and_takes_its_interval_anew(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rounds, intervals = threading.Semaphore(0), [0.01, 0.02]

    def fail(_host: LocalHost) -> None:
        rounds.release()
        raise ValueError("made to fail")

    monkeypatch.setattr(frozen_leftovers, "thaw_all", fail)
    frozen_leftovers.thaw_repeatedly(HOST, lambda: intervals.pop() if intervals else 60 * LONG)

    for _ in range(3):
        assert rounds.acquire(timeout=LONG)
    assert "made to fail" in caplog.text


def test_a_driver_that_stops_ends_its_freezes_and_begins_no_other(
    kernel: Kernel, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(freeze, "_stopping", threading.Event())
    states: list[bool] = []

    def stop() -> None:
        freeze.end_all(LONG)
        states.append(kernel.frozen)

    with pytest.raises(Unavailable, match="was thawed because the driver stops"), freeze.frozen(DEVICE):
        stop()
    assert states == [False]
    with pytest.raises(Unavailable, match="the driver stops"), freeze.frozen(DEVICE):
        pass
    assert not kernel.frozen
    assert left(notes) == []


def test_everything_is_written_out_before_the_freeze(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    """What writes waits for the freeze from its beginning, so little may be left to be written then."""
    monkeypatch.setattr(freeze, "sync_filesystem", lambda _descriptor, _target: kernel.calls.append("sync"))

    with freeze.frozen(DEVICE):
        pass

    assert kernel.calls == ["sync", "freeze", "thaw"]


def test_a_setting_without_an_engine_names_the_remedy() -> None:
    setting = Setting(instance="i", driver="d", cluster="c", node="n", host=HOST)

    with pytest.raises(StorageError, match=r"/dev/x.*csi_multi_testing"), setting.frozen(Path("/dev/x")):
        pass
