"""What the wheels hold: csi-multi nothing of the kit, csi-multi-testing all of it, and no more than it needs."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from csi_multi_testing import new_backend
from csi_multi_testing.new_backend import BackendNames

from csi_multi.commands import cli

ROOT = Path(__file__).parents[2]
KIT = ROOT / "kit"
SKELETONS = "csi_multi_testing/skeletons/"
PROJECT = tomllib.loads((KIT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, zipfile.ZipFile]:
    """The wheels of the core and of the kit, built as for an upload."""
    target = tmp_path_factory.mktemp("wheels")
    for source in (ROOT, KIT):
        words = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(target)]
        subprocess.run(words, cwd=source, check=True, capture_output=True, timeout=120)
    return {wheel.name.partition("-")[0]: zipfile.ZipFile(wheel) for wheel in target.glob("*.whl")}


def metadata(wheel: zipfile.ZipFile, name: str) -> str:
    [file] = [one for one in wheel.namelist() if one.endswith(f".dist-info/{name}")]
    return wheel.read(file).decode()


def test_the_wheel_of_the_core_has_nothing_of_the_kit(wheels: dict[str, zipfile.ZipFile]) -> None:
    core = wheels["csi_multi"]

    assert not [name for name in core.namelist() if "testing" in name or "test_" in name]
    assert "conformance" not in metadata(core, "entry_points.txt")
    assert "pytest" not in metadata(core, "entry_points.txt") + metadata(core, "METADATA")


def test_the_wheel_of_the_kit_has_every_file_of_it_and_its_types(wheels: dict[str, zipfile.ZipFile]) -> None:
    names = {name for name in wheels["csi_multi_testing"].namelist() if ".dist-info/" not in name}

    package = KIT / "csi_multi_testing"
    files = {str(file.relative_to(KIT)) for file in package.rglob("*") if file.is_file() and file.suffix != ".pyc"}
    assert {name for name in names if not name.startswith(SKELETONS)} == files
    assert "csi_multi_testing/py.typed" in files
    assert not [name for name in files if name.rpartition("/")[2].startswith("test_")]


def test_the_wheel_of_the_kit_has_what_new_backend_writes(
    wheels: dict[str, zipfile.ZipFile], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels["csi_multi_testing"].extractall(tmp_path / "installed")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "installed"))
    inside = [name for name in wheels["csi_multi_testing"].namelist() if name.startswith(SKELETONS)]

    for skeleton, kind in new_backend.SKELETONS.items():
        written = tmp_path / skeleton
        words = [sys.executable, "-m", "csi_multi", "new-backend", "own", f"--{skeleton}", "--dir", str(written)]
        subprocess.run(words, cwd=tmp_path, check=True, capture_output=True, timeout=60)
        wanted = dict(new_backend.package_files(skeleton, BackendNames("own")))
        assert {path: (written / path).read_text() for path in wanted} == wanted
        files = dict(new_backend.package_files(skeleton, BackendNames(kind)))
        assert sorted(one for one in inside if one.startswith(f"{SKELETONS}{skeleton}/")) == sorted(
            f"{SKELETONS}{skeleton}/{path}" for path in files
        )


def test_the_wheel_of_the_kit_registers_the_verb_and_the_plugin(wheels: dict[str, zipfile.ZipFile]) -> None:
    points = metadata(wheels["csi_multi_testing"], "entry_points.txt")

    assert "[csi_multi.verbs]\nconformance = csi_multi_testing.arguments:add\n" in points
    assert "new-backend = csi_multi_testing.arguments:add_new_backend\n" in points
    assert "[pytest11]\ncsi_multi = csi_multi_testing.plugin\n" in points


def test_the_dependencies_are_what_the_modules_import() -> None:
    required = {one.partition(">")[0] for one in PROJECT["dependencies"]}
    optional = {one.partition(">")[0] for extra in PROJECT["optional-dependencies"].values() for one in extra}

    assert required == {"csi-multi", "grpcio", "msgspec", "protobuf", "PyYAML"}
    assert optional == {"pytest", "hypothesis"}


def test_the_verb_has_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["conformance", "--help"])

    assert ended.value.code == 0
    assert "--storage FILE" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [["conformance", "--config", "csi.yaml", "--backend", "fast"], ["new-backend", "own"]],
    ids=lambda one: one[0],
)
def test_a_verb_without_the_kit_names_the_package(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "entry_points", lambda **_wanted: [])

    assert cli.main(words) == 2
    assert capsys.readouterr().err == (
        f"csi-multi: verb {words[0]!r} is in package csi-multi-testing, which is not installed: "
        "pip install csi-multi-testing\n"
    )
