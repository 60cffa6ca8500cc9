"""What a release consists of, in dist/: wheels, source archives, chart, plugin of kubectl, the images' arguments."""

from __future__ import annotations

import filecmp
import os
import re
import shutil
import subprocess
import sys
import tempfile
from datetime import UTC, date, datetime
from pathlib import Path

from .versions import ReleaseError, Version, distributions

PLUGIN = "config/kubectl/kubectl-csi_multi"
ARGUMENT = re.compile(r'^ARG (\w+)=(?:"(.*)"|(.*))$', re.MULTILINE)


def build(root: Path, version: Version, day: date) -> Path:
    """Make everything anew in dist/, and return that directory."""
    out = root / "dist"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    for directory in distributions(root):
        package(directory, out, day)
    chart(root, out)
    shutil.copy2(root / PLUGIN, out)
    build_arguments(root, out, version, day)
    return out


def package(directory: Path, out: Path, day: date) -> None:
    """Build the source archive of one distribution, and its wheel from that; the same source gives the same files."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(directory)]
    _run(command, directory, SOURCE_DATE_EPOCH=str(epoch(day)))


def chart(root: Path, out: Path) -> None:
    """Package the chart. Raises ReleaseError when config/kubernetes is not what it renders."""
    helm = _run([str(root / "scripts/helm")], root).strip()
    _run([helm, "package", str(root / "config/helm/csi-multi"), "--destination", str(out)], root)
    with tempfile.TemporaryDirectory() as rendered:
        _run([str(root / "scripts/manifests"), rendered], root)
        names = [file.name for file in Path(rendered).iterdir()]
        _, differ, missing = filecmp.cmpfiles(rendered, root / "config/kubernetes", names, shallow=False)
    if differ or missing:
        raise ReleaseError(f"config/kubernetes is stale: {', '.join(sorted(differ + missing))}; run `make manifests`")


def build_arguments(root: Path, out: Path, version: Version, day: date) -> None:
    """Write the arguments of the Containerfile as this release has them, to be given with --build-arg-file."""
    arguments = {name: quoted or bare for name, quoted, bare in ARGUMENT.findall((root / "Containerfile").read_text())}
    arguments |= {"SOURCE_DATE_EPOCH": str(epoch(day)), "CONTROLLER_PACKAGES": "ceph-common"}  # all backends are inside
    commands = [
        f"# podman build --build-arg-file dist/images.args --target {target} -t csi-multi-{target}:{version} ."
        for target in ("controller", "node")
    ]
    lines = [*commands, *(f"{name}={value}" for name, value in arguments.items())]
    (out / "images.args").write_text("\n".join(lines) + "\n")


def epoch(day: date) -> int:
    """Return the first second of the day, which all archives carry as their time."""
    return int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp())


def _run(command: list[str], directory: Path, **environment: str) -> str:
    done = subprocess.run(
        command, cwd=directory, env=os.environ | environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ReleaseError(f"{' '.join(command)} failed:\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout
