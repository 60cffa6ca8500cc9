"""A file that a check takes away comes back as it was, wherever it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from csi_multi_testing.damaged_files import missing, overwritten, replaced


@pytest.fixture
def other_filesystem() -> Iterator[Path]:
    with TemporaryDirectory(dir="/dev/shm") as directory:
        yield Path(directory)


@pytest.fixture(params=["the same filesystem", "another filesystem"])
def place(request: pytest.FixtureRequest, tmp_path: Path, other_filesystem: Path) -> Path:
    if request.param == "another filesystem":
        return other_filesystem
    (tmp_path / "place").mkdir()
    return tmp_path / "place"


def test_a_file_is_away_for_a_block_and_then_the_same_file_again(tmp_path: Path, place: Path) -> None:
    file = tmp_path / "file"
    file.write_text("data")
    before = file.stat().st_ino

    with missing(file, place):
        assert not file.exists()

    assert (file.stat().st_ino, file.read_text()) == (before, "data")
    assert [one.name for one in tmp_path.iterdir() if one.name != "place"] == ["file"]
    assert list(place.iterdir()) == []


def test_zeros_that_stood_for_a_file_are_gone_after_the_block(tmp_path: Path, place: Path) -> None:
    file = tmp_path / "file"
    file.write_text("data")

    with replaced(file, place, 4):
        assert file.read_bytes() == bytes(4)

    assert file.read_text() == "data"


def test_a_file_comes_back_when_the_block_fails(tmp_path: Path, place: Path) -> None:
    file = tmp_path / "file"
    file.write_text("data")

    with pytest.raises(ZeroDivisionError), missing(file, place):
        raise ZeroDivisionError

    assert file.read_text() == "data"


def test_a_file_that_is_overwritten_stays_the_same_file(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("data")
    before = file.stat().st_ino

    with overwritten(file):
        assert (file.stat().st_ino, file.read_bytes()) == (before, bytes(4))

    assert (file.stat().st_ino, file.read_text()) == (before, "data")
