"""A hook of MkDocs: give the site every page of the repository under the repository's own path.

So README.md links to docs/deploy.md, and docs/releasing.md to ../SECURITY.md, and both work on the site as they do on
a repository page. A file that a page links to and that is no page itself, such as a configuration, is part of the site
as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

PAGES = ("*.md", "docs/**/*.md", "backends/*/*.md", "kit/*.md", "examples/*/README.md")
LINK = re.compile(r"\]\((?![a-z]+:|#)([^)#\s]+)")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Replace what MkDocs found in docs/ by the pages of the repository, and what they link to."""
    root = Path(config.config_file_path).parent
    ours = [file for file in files if file.src_dir == config.docs_dir]
    for file in ours:
        files.remove(file)
    pages = sorted({page for pattern in PAGES for page in root.glob(pattern)})
    for path in [*pages, *sorted(set(linked(root, pages)) - set(pages))]:
        name = path.relative_to(root).as_posix()
        files.append(File(name, str(root), config.site_dir, config.use_directory_urls))
    return files


def linked(root: Path, pages: Iterable[Path]) -> Iterator[Path]:
    """Yield the files of the repository that pages link to; what does not exist is left to MkDocs to report."""
    for page in pages:
        for target in LINK.findall(page.read_text()):
            path = (page.parent / target).resolve()
            if path.is_file() and path.is_relative_to(root):
                yield path
