"""A copy of the tree as git knows it, to be released without touching the checkout."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
AUTHOR = ("-c", "user.name=nobody", "-c", "user.email=nobody@example.com")


def git(tree: Path, *words: str) -> str:
    done = subprocess.run(["git", *AUTHOR, *words], cwd=tree, check=True, capture_output=True, text=True)
    return done.stdout


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of its own with the files of this checkout, all committed."""
    copy = tmp_path_factory.mktemp("release") / "tree"
    for name in git(ROOT, "ls-files", "-z").split("\0"):
        if name and ((ROOT / name).is_file() or (ROOT / name).is_symlink()):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name, follow_symlinks=False)
    git(copy, "init", "--quiet")
    git(copy, "add", "--all")
    git(copy, "commit", "--quiet", "--message", "all")
    return copy


@pytest.fixture
def tree(original: Path) -> Iterator[Path]:
    """That repository, to be changed: git takes every change back, commits too."""
    commit = git(original, "rev-parse", "HEAD").strip()
    yield original
    git(original, "reset", "--quiet", "--hard", commit)
    git(original, "clean", "--quiet", "-ffdx")
