"""`csi-multi check` prints what the driver would advertise, and which mode serves it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from csi_multi.commands.cli import main
from csi_multi.rpc.capabilities import Mode


def test_each_mode_is_listed_with_the_services_that_it_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(f"driver: {{name: a.example.com}}\nbackends: {{disks: {{kind: loop, directory: {tmp_path}}}}}\n")

    assert main(["check", str(file)]) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "  --mode controller serves plugin, controller, group",
        "  --mode node serves plugin, node",
    ]
    monkeypatch.setattr(Mode, "serves", lambda self, service: (service == "group") == (self is Mode.NODE))
    assert main(["check", str(file)]) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "  --mode controller serves plugin, controller, node",
        "  --mode node serves group",
    ]


def test_a_configuration_on_standard_input_is_checked_and_not_served() -> None:
    text = b"driver: {name: a.example.com}\nbackends: {disks: {kind: loop, directroy: /srv}}\n"
    csi_multi = Path(sys.executable).with_name("csi-multi")
    environment = {**os.environ, "CSI_ENDPOINT": "unix:///nowhere/csi.sock"}

    checked = subprocess.run([csi_multi, "check", "-"], input=text, capture_output=True, check=False)
    served = subprocess.run(
        [csi_multi, "serve", "--config=-"], input=text, env=environment, capture_output=True, check=False
    )

    assert (checked.returncode, b"-:2: " in checked.stderr) == (2, True), checked.stderr
    assert (served.returncode, b"give a file" in served.stderr) == (2, True), served.stderr
