"""`make release` gives what is unreleased a version and a day, in every changelog."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from scripts.release import changelogs
from scripts.release.versions import ReleaseError, Version

NEW = Version(7, 4, 12)
DAY = date(2031, 5, 6)
BEFORE = """\
# Changelog

All changes.

## Unreleased

### Added

- One thing.

## 0.1.0 - 2026-01-02

- The first.
"""
AFTER = """\
# Changelog

All changes.

## Unreleased

## 7.4.12 - 2031-05-06

### Added

- One thing.

## 0.1.0 - 2026-01-02

- The first.
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A tree of one distribution with a changelog."""
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "CHANGELOG.md").write_text(BEFORE)
    return tmp_path


def dated(tree: Path) -> str:
    changelogs.date_all(tree, NEW, DAY)
    return (tree / "CHANGELOG.md").read_text()


def test_what_is_unreleased_gets_version_and_day(small: Path) -> None:
    assert dated(small) == AFTER


def test_brackets_stay(small: Path) -> None:
    (small / "CHANGELOG.md").write_text(BEFORE.replace("## Unreleased", "## [Unreleased]"))

    assert dated(small) == AFTER.replace("## Unreleased", "## [Unreleased]").replace("## 7.4.12", "## [7.4.12]")


def test_a_distribution_without_changes_says_so(small: Path) -> None:
    (small / "CHANGELOG.md").write_text("# Changelog\n\n## Unreleased\n")

    assert dated(small).endswith(f"## 7.4.12 - 2031-05-06\n\n{changelogs.NOTHING}")


def test_a_second_release_comes_above_the_first(small: Path) -> None:
    dated(small)
    changelogs.date_all(small, Version(8, 0, 0), DAY)

    headings = [line for line in (small / "CHANGELOG.md").read_text().splitlines() if line.startswith("## ")]
    assert headings == ["## Unreleased", "## 8.0.0 - 2031-05-06", "## 7.4.12 - 2031-05-06", "## 0.1.0 - 2026-01-02"]


@pytest.mark.parametrize("text", ["# Changelog\n", BEFORE + "\n## Unreleased\n"])
def test_a_changelog_without_one_unreleased_section_is_refused(small: Path, text: str) -> None:
    (small / "CHANGELOG.md").write_text(text)

    with pytest.raises(ReleaseError, match="needs one section"):
        changelogs.date_all(small, NEW, DAY)


def test_a_refusal_leaves_all_changelogs_alone(tree: Path) -> None:
    (tree / "backends/rbd/CHANGELOG.md").write_text("# Changelog\n")
    before = (tree / "CHANGELOG.md").read_text()

    with pytest.raises(ReleaseError, match=r"rbd/CHANGELOG\.md needs one section"):
        changelogs.date_all(tree, NEW, DAY)
    assert (tree / "CHANGELOG.md").read_text() == before


def test_every_distribution_of_this_tree_can_be_dated(tree: Path) -> None:
    changelogs.date_all(tree, NEW, DAY)

    assert all("7.4.12" in file.read_text() for file in changelogs.files(tree))
    assert len(changelogs.files(tree)) >= 5
