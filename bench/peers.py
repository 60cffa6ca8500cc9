"""Other CSI drivers to measure beside ours: built from their Go modules, or given as a program.

`--peer NAME=PROGRAM` names the program. Of a driver in Python it is a directory with `venv`, a virtual environment that
has what the driver needs, and `sources`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from .processes import Unmeasurable

PROJECT = Path(__file__).resolve().parent.parent
BUILT = PROJECT / ".tools/peers"
LIMIT = 1800  # seconds for a download or a build


class PeerMissing(Unmeasurable):
    """A peer cannot be built here; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A peer that was built."""

    path: Path  # the program; of a driver in Python the directory with `venv` and `sources`
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GoPeer:
    name: str
    module: str
    version: str  # of the module
    package: str  # the program's, below the module

    def build(self, given: Path | None) -> Program:
        """Return the program, built now if it was not before and none is given. Raises PeerMissing."""
        go = _go()
        if given:
            _require_program(self.name, given)
            return Program(path=given, version=_version_of(go, given))
        program = Program(path=BUILT / f"{self.name}-{self.version}", version=self.version)
        if not program.path.exists():
            BUILT.mkdir(parents=True, exist_ok=True)
            draft = program.path.with_suffix(".new")
            flags = f"-X main.version={self.version}"  # without one, host-path answers that it is not ready
            _run(go, "build", "-ldflags", flags, "-o", str(draft), self.package, directory=_module(go, self))
            draft.replace(program.path)
        return program


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonPeer:
    """A driver in Python, which has no module."""

    name: str

    def build(self, given: Path | None) -> Program:
        """Return the given directory. Raises PeerMissing."""
        if given is None:
            raise PeerMissing(f"it has no Go module: give a directory with --peer {self.name}=DIRECTORY")
        for part in ("venv/bin/python", "sources"):
            if not (given / part).exists():
                raise PeerMissing(f"{given} has no {part}: give a directory with `venv` and `sources` of {self.name}")
        return Program(path=given, version=_described(given / "sources"))


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenPeer:
    """A peer that is built elsewhere. Its first line of --version ends with the version."""

    name: str

    def build(self, given: Path | None) -> Program:
        """Return the given program. Raises PeerMissing."""
        if given is None:
            raise PeerMissing(f"it is not built here: give its program with --peer {self.name}=PROGRAM")
        _require_program(self.name, given)
        said = _run(str(given), "--version").split("\n", 1)[0].split()
        if not said:
            raise PeerMissing(f"{given} --version says nothing")
        return Program(path=given, version=said[-1])


Peer = GoPeer | PythonPeer | GivenPeer
PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        GoPeer(
            name="csi-driver-host-path",
            module="github.com/kubernetes-csi/csi-driver-host-path",
            version="v1.17.0",
            package="./cmd/hostpathplugin",
        ),
        PythonPeer(name="rawfile-localpv"),
        GoPeer(
            name="csi-driver-lvm",
            module="github.com/metal-stack/csi-driver-lvm",
            version="v0.8.2",
            package="./cmd/lvmplugin",
        ),
        GoPeer(
            name="aws-ebs-csi-driver",
            module="github.com/kubernetes-sigs/aws-ebs-csi-driver",
            version="v1.63.0",
            package="./cmd",
        ),
        GivenPeer(name="ceph-csi"),
    )
}


def _require_program(name: str, file: Path) -> None:
    if not file.is_file() or not os.access(file, os.X_OK):
        raise PeerMissing(f"{file} is no program: give the path of the program of {name}")


def _version_of(go: str, program: Path) -> str:
    """Return the version of the module that a program in Go was built from."""
    lines = [line.split() for line in _run(go, "version", "-m", str(program)).splitlines()]
    return next((words[2] for words in lines if words[:1] == ["mod"] and len(words) > 2), "unknown")


def _described(sources: Path) -> str:
    """Return the version of sources by their tags in git; "unknown" where they are no checkout."""
    try:
        return _run("git", "-C", str(sources), "describe", "--tags", "--always", "--dirty").strip()
    except PeerMissing:
        return "unknown"


def _go() -> str:
    try:
        return _run(str(PROJECT / "scripts/go")).strip()
    except PeerMissing as error:
        raise PeerMissing(f"there is no Go to build it with: {error}") from None


def _module(go: str, peer: GoPeer) -> Path:
    found = json.loads(_run(go, "mod", "download", "-json", f"{peer.module}@{peer.version}", directory=Path("/")))
    return Path(found["Dir"])


def _run(*words: str, directory: Path | None = None) -> str:
    """Return what a command prints. Raises PeerMissing."""
    if not shutil.which(words[0]):
        raise PeerMissing(f"{words[0]} is not installed")
    environment = {**os.environ, "GOTOOLCHAIN": "local", "GOFLAGS": "-modcacherw", "CGO_ENABLED": "0"}
    done = subprocess.run(
        words, cwd=directory, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip())[-500:]
        raise PeerMissing(f"{' '.join(words)} exited with status {done.returncode}: {said}")
    return done.stdout
