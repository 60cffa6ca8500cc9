"""The benchmarks clean up after themselves, and sort import times by who causes them."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from bench import cases_imports, suite, workspace
from bench.processes import driver_words
from csi_multi.config.settings import load_config
from csi_multi.host.command import start


@pytest.fixture(autouse=True)
def in_a_temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def test_a_terminated_run_leaves_no_directory(tmp_path: Path) -> None:
    def run() -> None:
        with workspace.interruptible(), workspace.workspace() as directory:
            (directory / "file").touch()
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt):
        run()

    assert not list(tmp_path.iterdir())


def test_a_program_that_nobody_stopped_is_ended() -> None:
    with workspace.workspace() as directory, (directory / "log").open("wb") as log:
        process = start("sh", "-c", "sleep 600; :", str(directory / "sh"), environment={}, stderr=log)

    assert process.wait(timeout=10) == -signal.SIGKILL


def test_without_root_nothing_is_measured(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    assert suite.main([]) == 2
    assert "root" in capsys.readouterr().err


def test_a_measurement_that_fails_is_told_by_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(directory: Path, *, quick: bool) -> list[suite.table.Row]:
        raise suite.Unmeasurable(f"no luck, quick {quick}")

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setitem(suite.CASES, "node", broken)

    assert suite.main(["--only", "node", "--quick"]) == 1
    assert "could not measure node: no luck, quick True" in capsys.readouterr().err


def test_the_driver_is_given_a_valid_configuration(tmp_path: Path) -> None:
    words = driver_words(tmp_path, "driver")

    loaded = load_config(Path(words[-1]))
    assert [instance.name for instance in loaded.instances] == ["scratch"]
    assert words[0] == sys.executable


@pytest.mark.parametrize(
    ("module", "owner"),
    [
        ("json.decoder", "(standard library)"),
        ("grpc._channel", "grpc"),
        ("google.protobuf.message", "google.protobuf"),
        ("csi_multi.rpc.server", "csi_multi"),
    ],
)
def test_an_import_belongs_to_its_package(module: str, owner: str) -> None:
    assert cases_imports.owner(module) == owner
