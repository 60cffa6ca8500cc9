"""Other CSI drivers to measure beside ours: where their sources are, and the program that is built from them.

The sources come as a Go module, or from a checkout that `--peer NAME=DIRECTORY` names.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .processes import Unmeasurable

PROJECT = Path(__file__).resolve().parent.parent
BUILT = PROJECT / ".tools/peers"
LIMIT = 1800  # seconds for a download or a build


class PeerMissing(Unmeasurable):
    """A peer cannot be built here; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    name: str
    module: str  # of Go
    version: str  # of the module, where no checkout is given
    package: str  # the program's, below the module


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A peer that was built."""

    path: Path
    version: str


PEERS = {
    peer.name: peer
    for peer in (
        Peer(
            name="csi-driver-host-path",
            module="github.com/kubernetes-csi/csi-driver-host-path",
            version="v1.17.0",
            package="./cmd/hostpathplugin",
        ),
        Peer(
            name="aws-ebs-csi-driver",
            module="github.com/kubernetes-sigs/aws-ebs-csi-driver",
            version="v1.63.0",
            package="./cmd",
        ),
    )
}


def build(peer: Peer, checkouts: Mapping[str, Path]) -> Program:
    """Return the program of a peer, built now if it was not before. Raises PeerMissing."""
    go = _go()
    if checkout := checkouts.get(peer.name):
        version = _run("git", "-C", str(checkout), "describe", "--tags", "--always", "--dirty").strip()
        sources = checkout
    else:
        version, sources = peer.version, None
    program = Program(path=BUILT / f"{peer.name}-{version}", version=version)
    if not program.path.exists() or version.endswith("-dirty"):
        BUILT.mkdir(parents=True, exist_ok=True)
        draft = program.path.with_suffix(".new")
        flags = f"-X main.version={version}"  # without one, host-path answers that it is not ready
        sources = sources or _module(go, peer)
        _run(go, "build", "-ldflags", flags, "-o", str(draft), peer.package, directory=sources)
        draft.replace(program.path)
    return program


def _go() -> str:
    try:
        return _run(str(PROJECT / "scripts/go")).strip()
    except PeerMissing as error:
        raise PeerMissing(f"there is no Go to build it with: {error}") from None


def _module(go: str, peer: Peer) -> Path:
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
