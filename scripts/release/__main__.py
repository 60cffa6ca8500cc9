"""The command line: python -m scripts.release VERSION."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from . import artifacts, changelogs, clean_install, versions
from .versions import ReleaseError, Version

ROOT = Path(__file__).parents[2]
NEXT = """
dist/ has the release. Nothing was committed, tagged or pushed. What to do next (docs/releasing.md says more):

  git diff                                    look at what was changed
  git commit -am 'release: {version}'
  git tag -a v{version} -m 'csi_multi {version}'
  git push --follow-tags                      CI must be green before anything is published
  twine upload dist/*.whl dist/csi_multi*.tar.gz
  helm push dist/csi-multi-{version}.tgz oci://YOUR-REGISTRY
  put dist/kubectl-csi_multi beside the release notes, as a file to download
  podman build --build-arg-file dist/images.args --target controller -t YOUR-REGISTRY/csi-multi-controller:{version} .
  podman build --build-arg-file dist/images.args --target node       -t YOUR-REGISTRY/csi-multi-node:{version} .
"""


def refuse_unready(root: Path, new: Version) -> Version:
    """Return the version that the tree has now. Raises ReleaseError when the new one cannot follow it."""
    changes = subprocess.run(["git", "status", "--porcelain"], cwd=root, check=True, capture_output=True, text=True)
    if changes.stdout:
        raise ReleaseError(f"the tree has changes that are not committed; commit or stash them:\n{changes.stdout}")
    old = versions.current(root)
    if changelogs.is_released(root, new):
        raise ReleaseError(f"{new} was released before, a changelog has its day; take a later version")
    if new < old:
        raise ReleaseError(f"{new} is older than {old}, which the tree has; take a later version")
    return old


def prepare(root: Path, old: Version, new: Version) -> None:
    """Write version and day into the tree, build everything from it, and check what was built."""
    day = datetime.now(UTC).date()
    changelogs.date_all(root, new, day)
    changed = versions.bump(root, old, new)
    print(f"{old} -> {new} in {len(changed)} files; changelogs have {day}")
    out = artifacts.build(root, new, day)
    for line in clean_install.check(root, out, new):
        print(line)
    print("\n".join(sorted(f"  dist/{file.name}" for file in out.iterdir())))


def main(words: list[str]) -> int:
    if len(words) != 1 or not words[0]:
        print("usage: make release VERSION=x.y.z", file=sys.stderr)
        return 2
    try:
        new = versions.parse(words[0])
        old = refuse_unready(ROOT, new)
    except ReleaseError as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    try:
        prepare(ROOT, old, new)
    except ReleaseError as error:
        print(f"release: {error}", file=sys.stderr)
        print("the tree was changed: `git diff` shows it, `git restore .` takes it back", file=sys.stderr)
        return 1
    print(NEXT.format(version=new))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
