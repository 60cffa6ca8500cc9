"""The changelogs of all distributions: what is unreleased gets a version and a day."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path

from .versions import ReleaseError, Version, distributions

UNRELEASED = re.compile(r"^## (\[?)Unreleased(\]?)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
NOTHING = "No changes of its own; it is released together with the others.\n"


def files(root: Path) -> list[Path]:
    return [directory / "CHANGELOG.md" for directory in distributions(root)]


def is_released(root: Path, version: Version) -> bool:
    """Whether any changelog has a day for this version."""
    heading = re.compile(rf"^## \[?{re.escape(str(version))}\]? - ", re.MULTILINE)
    return any(heading.search(file.read_text()) for file in files(root) if file.exists())


def date_all(root: Path, version: Version, day: date) -> None:
    """Give what is unreleased the version and the day, in every changelog or in none. Raises ReleaseError."""
    dated = {file: _dated(file, version, day) for file in files(root)}
    for file, text in dated.items():
        file.write_text(text)


def _dated(file: Path, version: Version, day: date) -> str:
    text = file.read_text() if file.exists() else ""
    if len(UNRELEASED.findall(text)) != 1:
        raise ReleaseError(f"{file} needs one section `## Unreleased`, with what this release changes")

    def section(found: re.Match[str]) -> str:
        left, right, body = found.groups()
        heading = f"## {left}Unreleased{right}\n\n## {left}{version}{right} - {day.isoformat()}\n\n"
        return heading + (body.strip("\n") or NOTHING.strip()) + "\n" + ("\n" if found.end() < len(text) else "")

    return UNRELEASED.sub(section, text)
