"""`csi-multi conformance` as users run it: the real command, a driver process, the loop backend."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from csi_multi.host import loopdev, mounts
from csi_multi.host.command import LocalHost

pytestmark = [pytest.mark.root, pytest.mark.slow]

CONFIG = """\
driver: {{name: kit.csi-multi.example, node: n1}}
backends:
  scratch: {{kind: loop, directory: {directory}/volumes, reserve_percent: 0, min_size: 1048576, require_mount: true}}
"""
STORAGE = """\
storage:
  size: 1048576
  files: [{directory}/volumes]
  away: [umount, --lazy, {directory}/volumes]
  back: [mount, {disk}, {directory}/volumes]
  damage: [sh, -c, 'mv "volumes/volumes/${{0#*/}}/image" volumes/damaged']
  undamage: [sh, -c, 'mv volumes/damaged "volumes/volumes/${{0#*/}}/image"']
"""


class Verb:
    """The command, its files, and the temporary directory that it uses."""

    def __init__(self, directory: Path, disk: str) -> None:
        self.directory = directory
        self.temporary = directory / "t"
        self.temporary.mkdir()
        (directory / "csi.yaml").write_text(CONFIG.format(directory=directory))
        (directory / "storage.yaml").write_text(STORAGE.format(directory=directory, disk=disk))

    def start(self, *words: str) -> subprocess.Popen[str]:
        files = ["--config", "csi.yaml", "--storage", "storage.yaml", "--json", "report.json", "--junit", "report.xml"]
        with (self.directory / "out").open("w") as out:
            return subprocess.Popen(
                [sys.executable, "-m", "csi_multi", "conformance", "--backend", "scratch", "--yes", *files, *words],
                cwd=self.directory,
                env={**os.environ, "TMPDIR": str(self.temporary)},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                text=True,
            )

    @property
    def out(self) -> str:
        return (self.directory / "out").read_text()

    @property
    def report(self) -> Any:
        return json.loads((self.directory / "report.json").read_text())


@pytest.fixture
def verb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Verb]:
    directory = tmp_path_factory.mktemp("v")  # a short path, because of the socket below it
    host, image, disk = LocalHost(), directory / "image", directory / "volumes"
    with image.open("wb") as file:  # a filesystem that nothing else uses: checks measure its capacity
        file.truncate(2 << 30)
    host.run("mkfs.ext4", "-q", str(image))
    disk.mkdir()
    device = host.run("losetup", "--find", "--show", str(image)).stdout.strip()
    host.run("mount", device, str(disk))
    verb = Verb(directory, device)
    yield verb
    left = list(disk.glob("volumes/*")) + list(disk.glob("snapshots/*"))
    host.run("umount", str(disk))
    host.run("losetup", "--detach", device)
    below = f"{verb.directory}/"
    assert not [mount.target for mount in mounts.table() if mount.target.startswith(below)]
    assert not [file for file in loopdev.bound_devices().values() if file.startswith(below)]
    assert not left


# The same checks run without this command in backends/loop/tests/test_contract.py: here some, in the matrix all.
CHECKS = () if os.environ.get("MATRIX") else ("--only", "deleted")


def test_the_loop_backend_passes(verb: Verb) -> None:
    code = verb.start(*CHECKS).wait(timeout=900)

    assert code == 0, verb.out
    results = verb.report["results"]
    suites = ElementTree.parse(verb.directory / "report.xml").getroot()
    assert verb.report["complete"]
    assert "failed" not in {one["state"] for one in results}
    assert {one["where"] for one in results if one["state"] == "passed"} >= {"wire", "backend"}
    assert suites.get("tests") == str(len(results))
    assert suites.get("failures") == "0"
    assert list(verb.temporary.iterdir()) == []


def test_an_interrupted_run_leaves_its_logs_only(verb: Verb) -> None:
    process = verb.start("--sanity", "no")
    end = time.monotonic() + 60
    while verb.out.count("PASSED") < 5 and time.monotonic() < end:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    code = process.wait(timeout=300)

    assert code == 1, verb.out
    assert "stopped early" in verb.out
    assert "0 failed" in verb.out
    assert verb.report["complete"] is False
    kept = [file for directory in verb.temporary.iterdir() for file in directory.iterdir()]
    assert {file.suffix for file in kept} == {".log"}
