"""The files of config/nomad as a test runs them: only what a machine without docker cannot do is changed."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "config/nomad"
ENGINE = Path(__file__).parent / "engine.py"
# Another name of root: to a user "root" exec would give rights that a container, in which the tests run, may not have.
USER = "image-root"
NODES = ("node-1", "node-2")

Job = dict[str, Any]


def copy(directory: Path) -> Path:
    """Copy the files, with the nodes and backends of the tests in the configuration: what docs/deploy.md has one do."""
    shutil.copytree(SOURCE, directory)
    file = directory / "csi-multi.yaml"
    config = yaml.safe_load(file.read_text())
    config["cluster"]["nodes"] = list(NODES)
    config["backends"] = {"scratch": config["backends"]["scratch"]}
    file.write_text(yaml.safe_dump(config))
    return directory


def driver(job: Job) -> Job:
    """Run the driver's tasks with raw_exec and the engine of the tests, which takes docker's block as it is."""
    for group in job["TaskGroups"]:
        for task in group["Tasks"]:
            assert task["Driver"] == "docker"
            plugin = task["CSIPluginConfig"]
            given = {
                "config": {key: value for key, value in task["Config"].items() if key != "image"},
                "plugin": {"type": plugin["Type"], "id": plugin["ID"], "mount_dir": plugin["MountDir"]},
                "host": "${meta.host}",
            }
            words = ["--mount", "--propagation", "unchanged", sys.executable, str(ENGINE), json.dumps(given)]
            task.update(Driver="raw_exec", Config={"command": "unshare", "args": words})
    return job


def app(job: Job) -> Job:
    """Run the user's tasks with exec, as root like the image's, in a root that has the image's programs."""
    for group in job["TaskGroups"]:
        for task in group["Tasks"]:
            assert task["Driver"] == "docker"
            config = task["Config"]
            assert config.pop("image") == "busybox:1"
            config["command"] = f"/bin/{config['command']}"
            task.update(Driver="exec", User=USER)
    return job


def claim(job: Job, name: str, volume: str, *, read_only: bool = False, command: str = "") -> Job:
    """Give the job of a user another name, volume and command."""
    job.update(ID=name, Name=name)
    for group in job["TaskGroups"]:
        group["Volumes"]["data"].update(Source=volume, ReadOnly=read_only)
        for task in group["Tasks"]:
            for mount in task["VolumeMounts"]:
                mount["ReadOnly"] = read_only
            if command:
                task["Config"]["args"] = ["-c", command]
    return job


def volume(name: str, change: Callable[[str], str] = lambda text: text) -> str:
    """Return volume-loop.hcl for a volume of another name, and otherwise changed."""
    text = (SOURCE / "volume-loop.hcl").read_text()
    assert text.count('= "scratch"') == 3  # id, name, and the backend
    return change(text.replace('= "scratch"', f'= "{name}"', 2))
