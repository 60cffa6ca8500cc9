"""Stands for docker where a task runs: the root, mounts and rights of a container, with this machine's programs in it.

    unshare --mount --propagation unchanged python engine.py '{"config": {...}, "plugin": {...}, "host": ...}'

`config` is the task's block for docker, unchanged; `plugin` says what Nomad would have docker mount; `host` is the
directory that stands for the root of the node's own disk. In the image's place is the virtual environment.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

MACHINE = ("/sys", "/lib/modules")  # what the nodes of a test share; any other directory is the node's own
ROOT = Path("/mnt")  # a directory of every machine; what is mounted there is seen by the container alone
PROGRAM = Path(sys.executable).parent / "csi-multi"


def run(*command: object) -> None:
    subprocess.run([str(word) for word in command], check=True)


def bind(source: Path, root: Path, target: str, propagation: str = "private") -> None:
    """Mount a directory, with all that is mounted in it, at its place below the root."""
    place = root / target.lstrip("/")
    place.mkdir(parents=True, exist_ok=True)
    run("mount", "--rbind", source, place)
    if propagation != "shared":
        run("mount", f"--make-r{propagation}", place)


def machine(root: Path, hidden: Path) -> None:
    """Put the directories of this machine below the root, without those of the tests: a container does not see them."""
    run("mount", "-t", "tmpfs", "root", root)
    for entry in sorted(Path("/").iterdir()):
        if entry.is_symlink():
            (root / entry.name).symlink_to(entry.readlink())
        elif entry.is_dir() and entry != ROOT:
            bind(entry, root, entry.name)
    run("umount", "--recursive", root / str(hidden).lstrip("/"))


def enter(root: Path) -> None:
    """Make it the root. What is mounted elsewhere stays mounted there: the old root no longer tells others."""
    old = root / "old"
    old.mkdir()
    run("pivot_root", root, old)
    os.chdir("/")
    run("mount", "--make-rslave", "/old")
    run("umount", "--lazy", "/old")
    Path("/old").rmdir()


def once(targets: list[str]) -> None:
    """Refuse two mounts in one place, as docker does."""
    for target in targets:
        if targets.count(target) > 1:
            raise SystemExit(f"Duplicate mount point: {target}")


def mounts(root: Path, task: dict[str, Any], data: Path) -> None:
    """Mount what Nomad mounts into a container of docker, and what the task asks for."""
    plugin, state = task["plugin"], data / "client" / "csi"
    for name in ("local", "secrets", "alloc"):
        variable = {"local": "NOMAD_TASK_DIR", "secrets": "NOMAD_SECRETS_DIR", "alloc": "NOMAD_ALLOC_DIR"}[name]
        bind(Path(os.environ[variable]), root, name)
        os.environ[variable] = f"/{name}"
    bind(state / "plugins" / os.environ["NOMAD_ALLOC_ID"], root, plugin["mount_dir"], "shared")
    bind(state / plugin["type"] / plugin["id"], root, "/local/csi", "shared")
    volumes = task["config"].get("volumes", [])
    once(["/dev", "/local/csi", plugin["mount_dir"], *(volume.split(":")[1] for volume in volumes)])
    for volume in volumes:
        source, target, mode = (*volume.split(":"), "")[:3]
        place = Path(source)
        if source not in MACHINE or not place.exists():
            place = Path(task["host"] + source)
            place.mkdir(parents=True, exist_ok=True)  # as docker does
        bind(place, root, target, "slave" if mode == "rslave" else "private")
    run("mount", "--bind", Path(task["host"]) / "etc/hosts", root / "etc/hosts")


def main() -> None:
    task = json.loads(sys.argv[1])
    config = task["config"]
    data = Path(os.environ["NOMAD_ALLOC_DIR"]).parents[2]
    machine(ROOT, data.parents[1])
    mounts(ROOT, task, data)
    enter(ROOT)
    rights = [] if config.get("privileged") else ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]
    command = [*rights, str(PROGRAM), *config["args"]]
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
