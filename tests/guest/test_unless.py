"""A command runs on this machine if it has the feature that the command needs, otherwise in a guest."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.root

PROJECT = Path(__file__).parents[2]
TOOL = """
import sys
sys.path.insert(0, "tests/guest")
import kernel, run
kernel.FEATURES["something"] = kernel.Feature(lambda: sys.argv[1], ("no-such-module",))
sys.exit(run.main(["--unless", "something", *sys.argv[2:]]))
"""


def start(missing: str, *words: str) -> subprocess.Popen[str]:
    """Run the tool with a feature that is present, or missing for this reason."""
    command = (sys.executable, "-c", TOOL, missing, *words)
    return subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_what_this_machine_has_is_used_and_the_exit_status_is_the_commands() -> None:
    process = start("", "--", "sh", "-c", "hostname; exit 7")
    output, _ = process.communicate(timeout=60)

    assert output.splitlines()[0] == "running on this machine, which has something"
    assert "guest" not in output
    assert process.returncode == 7


def test_what_this_machine_lacks_is_looked_for_in_a_guest_with_its_modules() -> None:
    process = start("there is none", "--", "true")
    output, _ = process.communicate(timeout=120)

    assert output.startswith("running in a guest: there is none\n")
    assert "no-such-module" in output
    assert process.returncode == 125


def test_a_command_that_takes_too_long_here_may_clean_up_and_is_ended_with_its_children() -> None:
    began = time.monotonic()
    process = start("", "--timeout", "2", "--", "sh", "-c", "trap 'echo cleaned; exit' INT; sleep 600 & wait")
    output, _ = process.communicate(timeout=60)  # ends when no process has the pipe open, including the child

    assert "cleaned\nnot done after 2 s, stopped" in output or "not done after 2 s, stopped\ncleaned" in output
    assert process.returncode == 124
    assert time.monotonic() - began < 30


def test_two_commands_run_here_one_after_the_other(tmp_path: Path) -> None:
    script = f"test ! -e {tmp_path}/here && touch {tmp_path}/here && sleep 1 && rm {tmp_path}/here"
    both = [start("", "--", "sh", "-c", script) for _ in range(2)]
    outputs = [process.communicate(timeout=60)[0] for process in both]

    assert [process.returncode for process in both] == [0, 0], outputs


def test_what_this_kernel_is_said_to_have_works() -> None:
    code = "import sys; sys.path.insert(0, 'tests/guest'); import kernel; print(kernel.FEATURES[sys.argv[1]].missing())"
    asked = (sys.executable, "-c", code, "device-mapper")
    missing = subprocess.run(asked, cwd=PROJECT, capture_output=True, text=True, check=True).stdout.strip()
    works = subprocess.run(("dmsetup", "targets"), capture_output=True, text=True, check=False)

    assert missing or works.returncode == 0
