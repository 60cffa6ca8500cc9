"""The form of the documents: lines that fit on a screen."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
WIDTH = 120
GENERATED = {"parameters.md"}
DOCUMENTS = sorted(
    file
    for pattern in ("*.md", "docs/**/*.md", "kit/*.md", "backends/*/*.md", "examples/*/*.md")
    for file in ROOT.glob(pattern)
    if file.name not in GENERATED
)


def long_lines(text: str) -> Iterator[str]:
    """Yield the lines of prose that are too long; tables and blocks of code cannot be wrapped."""
    code = False
    for line in text.splitlines():
        code ^= line.lstrip().startswith("```")
        if not code and not line.startswith("|") and len(line) > WIDTH:
            yield line


@pytest.mark.parametrize("file", DOCUMENTS, ids=lambda file: str(file.relative_to(ROOT)))
def test_lines_of_documents_fit(file: Path) -> None:
    assert list(long_lines(file.read_text())) == []


def test_a_long_line_is_seen() -> None:
    assert list(long_lines(f"short\n{'long ' * 30}\n```\n{'code ' * 30}\n```\n| {'cell ' * 30} |\n{'end ' * 40}"))[1:]
