"""`make site` is strict: what would be a dead link on the site ends the build, with its name."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.site

ROOT = Path(__file__).parents[2]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The files that git knows, and the site's environment."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, tmp_path / name, follow_symlinks=False)
    (tmp_path / ".tools").symlink_to(ROOT / ".tools")
    return tmp_path


def make_site(tree: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["make", "site"], cwd=tree, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("link", ["nowhere.md", "lvm.md#no-such-heading", "../config/no-such-file.yaml"])
def test_a_link_that_leads_nowhere_ends_the_build(tree: Path, link: str) -> None:
    page = tree / "docs/explain.md"
    page.write_text(f"{page.read_text()}\n[gone]({link})\n")

    done = make_site(tree)

    assert done.returncode != 0
    assert f"'docs/explain.md' contains a link '{link}'" in done.stderr


def test_a_page_without_a_place_in_the_navigation_ends_the_build(tree: Path) -> None:
    (tree / "docs/orphan.md").write_text("# Orphan\n")

    done = make_site(tree)

    assert done.returncode != 0
    assert "docs/orphan.md" in done.stderr


def test_links_that_leave_docs_lead_to_pages_and_files_of_the_site(tree: Path) -> None:
    page = tree / "docs/explain.md"
    page.write_text(f"{page.read_text()}\n[home](../README.md) [a file](../config/loop.yaml)\n")

    done = make_site(tree)

    assert done.returncode == 0, done.stderr
    assert (tree / "build/site/config/loop.yaml").read_text() == (ROOT / "config/loop.yaml").read_text()
    assert 'href="../../config/loop.yaml"' in (tree / "build/site/docs/explain/index.html").read_text()
