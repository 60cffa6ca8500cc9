"""Other CSI drivers to measure beside ours: where their sources are, and the program that is built from them.

The sources come as a Go module, or from a checkout that `--peer NAME=DIRECTORY` names; what is in Python has no module.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
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
    version: str  # of the module, where no checkout is given
    package: str  # the program's, below the module

    def build(self, checkout: Path | None) -> Program:
        """Return the program, built now if it was not before. Raises PeerMissing."""
        go = _go()
        version = _version(checkout) if checkout else self.version
        program = Program(path=BUILT / f"{self.name}-{version}", version=version)
        if not program.path.exists() or version.endswith("-dirty"):
            BUILT.mkdir(parents=True, exist_ok=True)
            draft = program.path.with_suffix(".new")
            flags = f"-X main.version={version}"  # without one, host-path answers that it is not ready
            sources = checkout or _module(go, self)
            _run(go, "build", "-ldflags", flags, "-o", str(draft), self.package, directory=sources)
            draft.replace(program.path)
        return program


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonPeer:
    name: str
    requirements: str  # file of the checkout, whose newest versions are installed
    protocol: tuple[str, str]  # the directory of csi.proto in the checkout, and the package of the code made from it

    def build(self, checkout: Path | None) -> Program:
        """Return the directory of its virtual environment and sources, made now if it is not there. Raises PeerMissing.

        The code of the protocol is made anew: what the project has may be too old for today's protobuf.
        """
        if checkout is None:
            raise PeerMissing(f"it has no Go module: give a checkout with --peer {self.name}=DIRECTORY")
        version = _version(checkout)
        program = Program(path=BUILT / f"{self.name}-{version}", version=version)
        if not program.path.exists() or version.endswith("-dirty"):
            shutil.rmtree(program.path, ignore_errors=True)
            draft = program.path.with_suffix(".new")
            shutil.rmtree(draft, ignore_errors=True)
            shutil.copytree(checkout, draft / "sources", ignore=shutil.ignore_patterns(".git"))
            self._install(draft)
            draft.rename(program.path)
        return program

    def _install(self, directory: Path) -> None:
        python, sources = directory / "venv/bin/python", directory / "sources"
        _run(sys.executable, "-m", "venv", str(directory / "venv"))
        _run(str(python), "-m", "pip", "install", "--quiet", "-r", str(sources / self.requirements), "setuptools")
        proto, package = self.protocol
        out = [f"--{kind}={sources}" for kind in ("python_out", "grpc_python_out")]
        _run(str(python), "-m", "grpc_tools.protoc", f"-I{package}={sources / proto}", *out, f"{package}/csi.proto")


Peer = GoPeer | PythonPeer
PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        GoPeer(
            name="csi-driver-host-path",
            module="github.com/kubernetes-csi/csi-driver-host-path",
            version="v1.17.0",
            package="./cmd/hostpathplugin",
        ),
        PythonPeer(name="rawfile-localpv", requirements="requirements.in", protocol=("protos", "csi")),
        GoPeer(
            name="aws-ebs-csi-driver",
            module="github.com/kubernetes-sigs/aws-ebs-csi-driver",
            version="v1.63.0",
            package="./cmd",
        ),
    )
}


def _version(checkout: Path) -> str:
    return _run("git", "-C", str(checkout), "describe", "--tags", "--always", "--dirty").strip()


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
