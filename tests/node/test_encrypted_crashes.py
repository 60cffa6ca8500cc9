"""The driver is killed at any point of the life of an encrypted volume; what follows goes on, and nothing leaks."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from csi_multi.contract import Blank, SizeRange

pytestmark = pytest.mark.devicemapper

MIB = 1 << 20
SIZE = 40 * MIB
VOLUMES = 40
MATRIX = bool(os.environ.get("MATRIX"))
EACH = 1 if MATRIX else 6  # of how many steps the driver dies at one
KILLS = 60 if MATRIX else 4
NEW = "a new one"


@pytest.fixture
def encrypted(world: Any) -> Any:
    world.encrypt()
    return world


def deaths(world: Any, call: Callable[[str], object]) -> Iterator[str]:
    """Make the call with another volume each time, and die at every step in turn; the last one lives."""
    for steps in itertools.count(0, EACH):
        handle = world.volume(f"v{steps}", SIZE)
        world.host.left = steps
        try:
            call(handle)
        except world.Killed:
            world.host.left = None
            yield handle
        else:
            world.host.left = None
            assert 5 < steps < VOLUMES
            yield handle
            return


def left(world: Any) -> tuple[list[str], list[str], list[str]]:
    return world.mounted(), world.loops(), [one.name for one in Path("/dev/mapper").glob("csi-multi-test-*")]


NOTHING: tuple[list[str], list[str], list[str]] = ([], [], [])


@pytest.mark.parametrize("fs", ["ext4", None], ids=["ext4", "block"])
def test_a_stage_that_died_is_repeated_and_keeps_what_is_written(encrypted: Any, fs: str | None) -> None:
    for handle in deaths(encrypted, lambda handle: encrypted.stage(handle, fs=fs)):
        staging = encrypted.stage(handle, fs=fs)
        if fs:
            (staging / "letter").write_text(handle)
        assert encrypted.backend.blank(handle) is Blank.NEVER
        encrypted.unstage(handle)
        assert left(encrypted) == NOTHING
        if fs:
            assert (encrypted.stage(handle, fs=fs) / "letter").read_text() == handle
            encrypted.unstage(handle)


def test_a_stage_that_died_is_taken_back(encrypted: Any) -> None:
    for handle in deaths(encrypted, encrypted.stage):
        encrypted.unstage(handle)

        assert left(encrypted) == NOTHING


def test_an_unstage_that_died_is_repeated(encrypted: Any) -> None:
    for steps in range(0, 8, 1 if MATRIX else 2):
        handle = encrypted.volume(f"v{steps}", SIZE)
        encrypted.stage(handle)
        encrypted.host.left = steps
        with contextlib.suppress(encrypted.Killed):
            encrypted.unstage(handle)
        encrypted.host.left = None
        encrypted.unstage(handle)

        assert left(encrypted) == NOTHING


def test_a_change_of_the_passphrase_that_died_locks_nobody_out(encrypted: Any) -> None:
    old = dict(encrypted.secrets)
    new = {"passphrase": NEW, "previousPassphrase": old["passphrase"]}

    def change(handle: str) -> None:
        steps, encrypted.host.left = encrypted.host.left, None
        encrypted.secrets = old
        (encrypted.stage(handle) / "letter").write_text(handle)
        encrypted.unstage(handle)
        encrypted.secrets, encrypted.host.left = new, steps
        encrypted.stage(handle)

    for handle in deaths(encrypted, change):
        assert (encrypted.stage(handle) / "letter").read_text() == handle
        encrypted.unstage(handle)
        encrypted.secrets = {"passphrase": NEW}
        assert (encrypted.stage(handle) / "letter").read_text() == handle
        encrypted.unstage(handle)


def test_an_expansion_that_died_is_repeated(encrypted: Any) -> None:
    larger = SizeRange(required=SIZE)

    def grow(handle: str) -> None:
        steps, encrypted.host.left = encrypted.host.left, None
        staging = encrypted.stage(handle)
        os.truncate(encrypted.backend.image(handle), 2 * SIZE)
        encrypted.host.left = steps
        encrypted.expand(handle, staging, larger)

    for handle in deaths(encrypted, grow):
        encrypted.expand(handle, encrypted.staging(handle), larger)

        status = os.statvfs(encrypted.staging(handle))
        assert status.f_blocks * status.f_frsize > 1.4 * SIZE
        encrypted.unstage(handle)


def test_a_header_that_was_written_in_part_is_written_again(encrypted: Any) -> None:
    """cryptsetup itself is killed, at any moment: of the header there is nothing, a part, or all."""
    chance = random.Random(7)
    real = encrypted.host._real.run

    def killed(*argv: str, stdin: str, **more: Any) -> Any:
        if argv[1] != "luksFormat":
            return real(*argv, stdin=stdin, **more)
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        assert process.stdin
        process.stdin.write(stdin.encode())
        process.stdin.close()
        time.sleep(chance.uniform(0, longest))
        process.send_signal(signal.SIGKILL)
        process.wait()
        raise encrypted.Killed

    began = time.monotonic()
    encrypted.stage(encrypted.volume("whole", SIZE))
    longest = time.monotonic() - began
    encrypted.unstage("whole")
    for number in range(KILLS):
        handle = encrypted.volume(f"v{number}", SIZE)
        encrypted.host.replaced["cryptsetup"] = killed
        with pytest.raises(encrypted.Killed):
            encrypted.stage(handle)
        encrypted.host.replaced.clear()
        (encrypted.stage(handle) / "letter").write_text(handle)
        encrypted.unstage(handle)

        assert left(encrypted) == NOTHING
