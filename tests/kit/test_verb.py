"""`csi-multi conformance` as people run it: the real command, a driver process, the loop backend."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from csi_multi.host import loopdev, mounts

pytestmark = [pytest.mark.root, pytest.mark.slow]

CONFIG = """\
driver: {{name: kit.csi-multi.example, node: n1}}
backends:
  scratch: {{kind: loop, directory: {directory}/volumes, reserve_percent: 0, min_size: 1048576}}
"""
STORAGE = "storage: {{size: 1048576, files: [{directory}/volumes]}}\n"


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    (tmp_path / "csi.yaml").write_text(CONFIG.format(directory=tmp_path))
    (tmp_path / "storage.yaml").write_text(STORAGE.format(directory=tmp_path))
    verb = ["conformance", "--config", "csi.yaml", "--backend", "scratch", "--storage", "storage.yaml"]
    return [sys.executable, "-m", "csi_multi", *verb, "--json", "report.json", "--junit", "report.xml"]


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path) -> Iterator[None]:
    before = set(Path("/tmp").glob("csi-multi-*"))
    yield
    assert not [mount.target for mount in mounts.table() if "/csi-multi-" in mount.target]
    assert not [file for file in loopdev.bound().values() if file.startswith(f"{tmp_path}/")]
    assert not list(tmp_path.glob("volumes/volumes/*")) + list(tmp_path.glob("volumes/snapshots/*"))
    assert set(Path("/tmp").glob("csi-multi-*")) <= before


def test_the_loop_backend_passes(command: list[str], tmp_path: Path) -> None:
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    states = {one["state"] for one in report["results"]}
    places = {one["where"] for one in report["results"] if one["state"] == "passed"}
    suites = ElementTree.parse(tmp_path / "report.xml").getroot()
    assert report["complete"]
    assert "failed" not in states
    assert places >= {"wire", "backend"}
    assert suites.get("tests") == str(len(report["results"]))
    assert suites.get("failures") == "0"


def test_an_interrupted_run_leaves_nothing(command: list[str], tmp_path: Path) -> None:
    with (tmp_path / "out").open("w+") as out:
        process = subprocess.Popen([*command, "--sanity", "no"], cwd=tmp_path, stdout=out, stderr=out, text=True)
        end = time.monotonic() + 60
        while (tmp_path / "out").read_text().count("PASSED") < 5 and time.monotonic() < end:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        code = process.wait(timeout=300)

    text = (tmp_path / "out").read_text()
    assert code == 1, text
    assert "stopped early" in text
    assert "0 failed" in text
    assert json.loads((tmp_path / "report.json").read_text())["complete"] is False
    for kept in Path("/tmp").glob("csi-multi-*"):  # the logs of a run that did not pass are kept
        if str(kept) in text:
            for file in kept.iterdir():
                file.unlink()
            kept.rmdir()
