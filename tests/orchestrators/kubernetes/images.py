"""The images of a cluster, under the names that the chart and the tests ask for, in .tools/kubernetes/images.

The driver's two are the Containerfile's, as tests/deploy builds it without a container engine. They are built again
when a file changes that they are built from; the sidecars' when their program does.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from tests.deploy.image import Builder, Stage, context, stages

from .archive import Image
from .build import PROGRAMS, TOOLS, BuildError
from .versions import PROJECT, SIDECAR_IMAGES, VALUES

IMAGES = TOOLS / "images"
BUSYBOX = "docker.io/library/busybox:1.37"
PAUSE = "registry.k8s.io/pause:3.10"
NODE_PACKAGES = "kmod"  # loop volumes need no others


def archives() -> list[Path]:
    """Return the archives of all images, built now where one is missing or old. Raises BuildError."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    return [*_sidecars(), _busybox(), *_driver()]


def _sidecars() -> list[Path]:
    return [_of_program(program, name) for program, name in SIDECAR_IMAGES.items()]


def _of_program(program: str, name: str) -> Path:
    archive = IMAGES / f"{program}-{name.rpartition(':')[2]}.tar"
    built = PROGRAMS / program
    if not archive.exists() or archive.stat().st_mtime < built.stat().st_mtime:
        with tempfile.TemporaryDirectory(dir=TOOLS) as directory:
            root = _root(Path(directory))
            shutil.copy(built, root / program)
            Image(names=(name,), root=root, entrypoint=(f"/{program}",)).write(archive)
    return archive


def _busybox() -> Path:
    """Return the image of the tests' pods, which is that of all pods' sandboxes, too."""
    archive = IMAGES / "busybox.tar"
    if not archive.exists():
        with tempfile.TemporaryDirectory(dir=TOOLS) as directory:
            root = fill_with_busybox(Path(directory))
            Image(names=(BUSYBOX, PAUSE), root=root, command=("sleep", "1000000000")).write(archive)
    return archive


def fill_with_busybox(directory: Path) -> Path:
    """Make an empty directory the root of an image that has busybox's commands. Raises BuildError."""
    busybox = shutil.which("busybox")
    if not busybox or b"/ld-linux" in Path(busybox).read_bytes()[:4096]:  # its loader, if it has one
        raise BuildError("no static busybox: install the package busybox-static")
    root = _root(directory)
    (root / "bin").mkdir()
    shutil.copy(busybox, root / "bin/busybox")
    for name in subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True).stdout.split():
        if name != "busybox":
            (root / "bin" / name).symlink_to("busybox")
    return root


def _root(directory: Path) -> Path:
    directory.chmod(0o755)
    for name in ("etc", "tmp", "root", "proc", "sys", "dev"):
        (directory / name).mkdir()
    (directory / "tmp").chmod(0o1777)
    (directory / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n")
    (directory / "etc/group").write_text("root:x:0:\nnogroup:x:65534:\n")
    return directory


def _driver() -> list[Path]:
    """Return the archives of the driver's images, whose names contain what they were built from."""
    digest = _digest()
    found = [IMAGES / f"{name}-{digest}.tar" for name in ("controller", "node")]
    if not all(archive.exists() for archive in found):
        for old in (*IMAGES.glob("controller-*"), *IMAGES.glob("node-*")):
            old.unlink()
        print("building the driver's images from the Containerfile: minutes", flush=True)
        _build_driver(dict(zip(("controller", "node"), found, strict=True)))
    return found


def _build_driver(archives: dict[str, Path]) -> None:
    file = stages((PROJECT / "Containerfile").read_text())
    directory = Path(tempfile.mkdtemp(prefix="roots-", dir=TOOLS))
    try:
        builder = Builder(directory, PROJECT, {"NODE_PACKAGES": NODE_PACKAGES})
        builder.base()
        roots = builder.build(file)
        for stage in file:
            if stage.name in archives:
                image = VALUES["image"][stage.name]
                name = f"docker.io/library/{image['repository']}:{image['tag']}"
                _of_stage(stage, roots[stage.name], name).write(archives[stage.name])
    finally:
        subprocess.run(["rm", "-rf", "--one-file-system", str(directory)], check=True)


def _of_stage(stage: Stage, root: Path, name: str) -> Image:
    said: dict[str, Any] = {word: stage.said.get(word, "") for word in ("ENTRYPOINT", "CMD", "USER")}
    return Image(
        names=(name,),
        root=root,
        entrypoint=tuple(json.loads(said["ENTRYPOINT"])),
        command=tuple(json.loads(said["CMD"])),
        user=said["USER"],
        environment=tuple(f"{key}={value}" for key, value in stage.environment.items()),
    )


def _digest() -> str:
    digest = hashlib.sha256(NODE_PACKAGES.encode())
    for file in context(PROJECT):
        if not re.search(r"/(tests|__pycache__)/", str(file)):
            digest.update(os.fsencode(file.relative_to(PROJECT)) + b"\0" + file.read_bytes())
    return digest.hexdigest()[:12]
