"""Every distribution says under which licence it is, and brings the text: in its wheel and in its source archive."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DISTRIBUTIONS = sorted(
    file.parent
    for pattern in ("", "kit/", "backends/*/", "examples/*/")
    for file in ROOT.glob(f"{pattern}pyproject.toml")
)


@pytest.fixture(scope="module", params=DISTRIBUTIONS, ids=lambda directory: directory.name)
def archives(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel and the source archive of one distribution."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(out)]
    subprocess.run(command, cwd=request.param, check=True, capture_output=True)
    return next(out.glob("*.whl")), next(out.glob("*.tar.gz"))


def test_the_wheel_says_the_licence_and_has_its_text(archives: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(archives[0]) as wheel:
        facts = {name.split("/", 1)[1]: wheel.read(name) for name in wheel.namelist() if ".dist-info/" in name}

    metadata = message_from_bytes(facts["METADATA"])
    assert (metadata["License-Expression"], metadata["License-File"]) == ("Apache-2.0", "LICENSE")
    assert facts["licenses/LICENSE"] == (ROOT / "LICENSE").read_bytes()


def test_the_source_archive_has_the_licence_as_a_file(archives: tuple[Path, Path]) -> None:
    with tarfile.open(archives[1]) as source:
        text = source.extractfile(f"{archives[1].name.removesuffix('.tar.gz')}/LICENSE")

        assert text is not None
        assert text.read() == (ROOT / "LICENSE").read_bytes()


def test_the_source_archive_holds_no_other_distribution(archives: tuple[Path, Path]) -> None:
    with tarfile.open(archives[1]) as source:
        inside = {name.split("/")[1] for name in source.getnames()}

    assert not inside & {"backends", "examples", "kit", "bench", "config"}


@pytest.mark.parametrize("words", ['licenses="Apache-2.0"', 'version="{version}"'], ids=["licence", "version"])
def test_both_images_say_the_licence_and_the_version(words: str) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    labels = [line for line in (ROOT / "Containerfile").read_text().splitlines() if line.startswith("LABEL ")]

    assert len(labels) == 2
    assert all(f"org.opencontainers.image.{words.format(version=version)}" in line for line in labels)
