"""The commands of the walk-through in docs/writing-a-backend.md, run unchanged in an empty directory."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from csi_multi.host import loopdev, mounts
from csi_multi.host.command import LocalHost

pytestmark = [pytest.mark.root, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs/writing-a-backend.md"
DIRECTORIES = ("csi_multi", "kit", "examples")  # of the checkout, beside its files: what is installed
CHAPTER = re.compile(r"^## A walk-through\n(.*?)^## ", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks() -> list[str]:
    chapter = CHAPTER.search(GUIDE.read_text())
    assert chapter
    return BLOCK.findall(chapter[1])


@pytest.fixture
def beside_a_checkout(tmp_path: Path) -> Iterator[Path]:
    checkout = tmp_path / "csi_multi"
    checkout.mkdir()
    for path in ROOT.iterdir():
        if path.name in DIRECTORIES:
            shutil.copytree(path, checkout / path.name, ignore=shutil.ignore_patterns("__pycache__"))
        elif path.is_file():
            shutil.copy(path, checkout / path.name)
    yield tmp_path
    for mount in [one.target for one in mounts.table() if one.target.startswith(f"{tmp_path}/")]:
        LocalHost().run("umount", mount)


def test_every_command_of_the_walk_through_works(beside_a_checkout: Path) -> None:
    script = "set -eu\n" + "\n".join(blocks())
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PYTEST"))}

    done = subprocess.run(
        ["sh", "-c", script],
        cwd=beside_a_checkout,
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )

    output = done.stdout + done.stderr
    assert done.returncode == 0, output[-4000:]
    assert "csi_multi_mine.backend:MineBackend" in output  # csi-multi backends
    assert re.search(r"\d+ passed.*\n(?s:.*)FAILED tests/test_contract(?s:.*)the kit noticed", output), output[-4000:]
    assert "CREATE_DELETE_VOLUME" in output  # csi-multi check
    assert re.search(r"\d+ passed, 0 failed", output), output[-4000:]  # csi-multi conformance
    assert [file for file in loopdev.bound_devices().values() if file.startswith(str(beside_a_checkout))] == []
