"""The one version of all distributions: read it, check a new one, write it wherever it stands."""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

PATTERN = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)")
OURS = ("pyproject.toml", "kit/pyproject.toml", "backends/*/pyproject.toml")
REQUIREMENT = re.compile(r"(\bcsi-multi(?:-[a-z]+)*(?:\[[a-z,]+\])?)>=([0-9.]+)(?:,<(\d+))?")

# Where the version stands, by the words before it; anywhere else it is looked for and found by `leftovers`.
WORDS: tuple[tuple[tuple[str, ...], str], ...] = (
    (OURS, r'^version = "'),
    (("config/helm/csi-multi/Chart.yaml",), r'^(?:version: |appVersion: ")'),
    (("config/helm/csi-multi/values.yaml", "tests/deploy/values/*.yaml", "docs/*.md"), r'\btag: "'),
    (("config/kubernetes/*.yaml",), r'\bapp\.kubernetes\.io/version: "'),
    (("Containerfile",), r'\borg\.opencontainers\.image\.version="'),
    (
        ("Containerfile", "docs/*.md", "config/nomad/*.hcl", "config/kubernetes/*.yaml"),
        r"\bcsi-multi-(?:controller|node):",
    ),
)
# Other people's versions, and what was true of earlier releases.
OTHERS = (
    "*CHANGELOG.md",
    "*.lock",
    "*go.sum",
    "examples/*",
    "tests/*",
    "docs/backend-image.md",
    "docs/writing-a-backend.md",
    "docs/decisions/*",
    "docs/performance.md",
    "bench/kept.json",
)


class ReleaseError(Exception):
    """The release cannot be made; the text says why, and what to do."""


@dataclass(frozen=True, order=True, slots=True)
class Version:
    major: int
    minor: int
    patch: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"


def parse(text: str) -> Version:
    """Raises ReleaseError: a form that Python packages and Helm charts both read has three numbers and nothing else."""
    if not (found := PATTERN.fullmatch(text)):
        raise ReleaseError(f"{text!r} is not a version; give three numbers, for example VERSION=0.2.0")
    return Version(*map(int, found.groups()))


def distributions(root: Path) -> list[Path]:
    """Return the directories of the distributions that are released together, the core first."""
    return [file.parent for pattern in OURS for file in sorted(root.glob(pattern))]


def current(root: Path) -> Version:
    """Return the version that all distributions have. Raises ReleaseError when they differ."""
    found = {
        directory: tomllib.loads((directory / "pyproject.toml").read_text())["project"]["version"]
        for directory in distributions(root)
    }
    if len(set(found.values())) != 1:
        listed = ", ".join(f"{directory.relative_to(root)} {version}" for directory, version in found.items())
        raise ReleaseError(f"the distributions differ in their version: {listed}; give all of them the same one first")
    return parse(found[root])


def bump(root: Path, old: Version, new: Version) -> list[Path]:
    """Write the new version wherever the old one stands, and let our distributions require each other's new one.

    Return the files that changed. Raises ReleaseError when the old version is left anywhere.
    """
    changed = _rewrite(root, lambda name, text: _required(name, _versioned(name, text, old, new), new))
    if left := leftovers(root, old, new):
        raise ReleaseError(
            f"{old} still stands in {', '.join(left)}; add the place to WORDS in scripts/release/versions.py, "
            "or the file to OTHERS if that version is not ours"
        )
    return changed


def leftovers(root: Path, old: Version, new: Version) -> list[str]:
    """Return `file:line` of everything that still says the old version."""
    if old == new:
        return []
    word = re.compile(rf"(?<![\w.-]){re.escape(str(old))}(?![\w.])")
    return [
        f"{name}:{number}"
        for name, text in _texts(root)
        if not any(fnmatch(name, pattern) for pattern in OTHERS)
        for number, line in enumerate(text.splitlines(), 1)
        if word.search(line)
    ]


def _versioned(name: str, text: str, old: Version, new: Version) -> str:
    for patterns, words in WORDS:
        if any(_matches(name, pattern) for pattern in patterns):
            text = re.sub(rf"({words}){re.escape(str(old))}(?![\w.])", rf"\g<1>{new}", text, flags=re.MULTILINE)
    return text


def _required(name: str, text: str, new: Version) -> str:
    """Ours require the new version at least; what others are shown only has to admit it."""
    if any(_matches(name, pattern) for pattern in OURS):
        return REQUIREMENT.sub(rf"\1>={new},<{new.major + 1}", text)
    if _matches(name, "examples/*/pyproject.toml") or _matches(name, "docs/*.md"):
        return REQUIREMENT.sub(lambda found: _admitting(found, new), text)
    return text


def _admitting(requirement: re.Match[str], new: Version) -> str:
    package, floor, ceiling = requirement.groups()
    return f"{package}>={floor},<{max(int(ceiling), new.major + 1)}" if ceiling else requirement[0]


def _matches(name: str, pattern: str) -> bool:
    """As a shell has it: `*` ends at a slash."""
    return name.count("/") == pattern.count("/") and fnmatch(name, pattern)


def _rewrite(root: Path, change: Callable[[str, str], str]) -> list[Path]:
    changed = []
    for name, text in _texts(root):
        if (after := change(name, text)) != text:
            (root / name).write_text(after)
            changed.append(root / name)
    return changed


def _texts(root: Path) -> Iterator[tuple[str, str]]:
    """Yield name and text of every file that git knows."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        try:
            yield name, (root / name).read_text()
        except (UnicodeDecodeError, FileNotFoundError, IsADirectoryError):
            continue  # a picture, or a file that was removed and not committed
