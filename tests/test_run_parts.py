"""`make test` runs every part to its end, then says what failed (scripts/run-parts)."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parent.parent / "scripts" / "run-parts"
MAKEFILE = """\
good:
\t@echo "=== 3 passed, 1 skipped, 4 deselected in 2.05s ==="
bad:
\t@echo "2 failed, 5 passed, 1 error in 63.10s (0:01:03)"; false
silent:
\t@false
killed:
\t@echo "........ [ 12%]"; kill -9 $$$$
waits:
\t@echo "waits: begin"; mkfifo -m 600 pipe 2>/dev/null; read line < pipe; echo "waits: end"; echo "1 passed in 0.1s"
wakes:
\t@mkfifo -m 600 pipe 2>/dev/null; echo "wakes"; echo line > pipe; echo "1 passed in 0.1s"
alone: # make itself is killed
\t@kill -9 $$PPID
"""


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    (tmp_path / "Makefile").write_text(MAKEFILE)

    def call(*parts: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([SCRIPT, *parts], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)

    return call


def test_a_part_that_fails_does_not_stop_the_next(run: Any) -> None:
    done = run("bad", "good")

    assert done.returncode == 1
    assert "make test: FAILED: bad;" in done.stdout
    assert done.stdout.splitlines()[-1] == "8 passed, 3 failed, 1 skipped"


def test_all_parts_that_pass_make_a_success(run: Any) -> None:
    done = run("--first", "good", "good")

    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == "6 passed, 0 failed, 2 skipped"


def test_two_parts_run_at_a_time(run: Any) -> None:
    done = run("waits", "wakes")

    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == "2 passed, 0 failed, 0 skipped"


def test_a_part_that_cannot_begin_in_time_is_left_out_and_named(run: Any) -> None:
    done = run("--begin-within", "0", "good", "bad")

    assert done.returncode == 0
    assert "make test: LEFT OUT, because this machine was too slow: good, bad; run make PART" in done.stdout
    assert "make test: every other part passed;" in done.stdout
    assert done.stdout.splitlines()[-1] == "0 passed, 0 failed, 0 skipped"


def test_what_parts_print_at_the_same_time_is_not_mixed(run: Any) -> None:
    lines = run("waits", "wakes").stdout.splitlines()

    waits = lines.index("waits: begin")
    assert lines[waits : waits + 2] == ["waits: begin", "waits: end"]


def test_the_first_parts_run_alone_and_a_failure_does_not_stop_the_others(run: Any) -> None:
    done = run("--first", "bad", "--first", "good", "silent")

    assert done.returncode == 1
    assert "FAILED: bad, silent;" in done.stdout
    assert done.stdout.index("bad took") < done.stdout.index("good took") < done.stdout.index("silent took")


@pytest.mark.parametrize("part", ["silent", "killed", "alone", "absent"])
def test_a_part_that_ends_without_the_last_line_of_its_tests_is_one_failure(run: Any, part: str) -> None:
    done = run(part, "good")

    assert done.returncode == 1
    assert f"FAILED: {part};" in done.stdout
    assert done.stdout.splitlines()[-1] == "3 passed, 1 failed, 1 skipped"
