"""Install what was built where nothing of the checkout is, and see that it works."""

from __future__ import annotations

import subprocess
import tempfile
import tomllib
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .versions import ReleaseError, Version, distributions

KINDS = {"wheels": "*.whl", "source archives": "*.tar.gz"}


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment with nothing but pip in it, and an empty directory to run programs in."""

    directory: Path

    def run(self, program: str, *words: str) -> str:
        done = subprocess.run(
            [str(self.directory / "bin" / program), *words],
            cwd=self.directory,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            text = (done.stdout + done.stderr)[-3000:]
            raise ReleaseError(f"in a clean environment `{program} {' '.join(words)}` failed:\n{text}")
        return done.stdout

    def install(self, *words: str) -> None:
        self.run("pip", "install", "--quiet", "--disable-pip-version-check", *words)


def check(root: Path, out: Path, version: Version) -> Iterator[str]:
    """Check wheels, then source archives, each in an environment of its own; yield what was seen to work."""
    for kind, pattern in KINDS.items():
        archives = sorted(str(file) for file in out.glob(pattern))
        if len(archives) != len(distributions(root)):
            raise ReleaseError(f"dist has {len(archives)} {kind}, not one of each distribution: {', '.join(archives)}")
        with tempfile.TemporaryDirectory(prefix="csi-multi-release-") as directory:
            venv.create(directory, with_pip=True)
            environment = Environment(Path(directory))
            _install(environment, root, archives)
            _use(environment, root, version)
        yield f"{len(archives)} {kind} install in a clean environment, and the driver works there"


def _install(environment: Environment, root: Path, archives: list[str]) -> None:
    """Install dependencies as locked, then ours alone; then their metadata must be content with what is there."""
    projects = [str(directory) for directory in distributions(root)]
    locked = subprocess.run(
        [str(root / "scripts/runtime-lock"), "hatchling", *projects], check=True, capture_output=True, text=True
    )
    lock = environment.directory / "lock"
    lock.write_text(locked.stdout)
    environment.install("--require-hashes", "--requirement", str(lock))
    environment.install("--no-index", "--no-deps", "--no-build-isolation", *archives)
    environment.run("pip", "check")


def _use(environment: Environment, root: Path, version: Version) -> None:
    environment.run("csi-multi", "check", str(root / "config/loop.yaml"))
    listed = environment.run("csi-multi", "backends")
    for directory in distributions(root):
        name = tomllib.loads((directory / "pyproject.toml").read_text())["project"]["name"]
        if directory.parent.name == "backends" and f"{name} {version}" not in listed:
            raise ReleaseError(f"`csi-multi backends` shows no {name} {version}:\n{listed}")
        if directory.name == "kit":
            environment.run("csi-multi", "conformance", "--help")
