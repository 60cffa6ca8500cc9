"""Each example, installed as its users would: wheels, a clean environment, no checkout, no other backend.

The driver runs from that environment on a tmpfs of the test's own; nothing may be left when all volumes are deleted.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from csi_multi.contract import CONTRACT
from csi_multi.host import loopdev, mounts
from csi_multi.host.command import LocalHost
from csi_multi.host.privilege import LinuxCapability, held
from csi_multi.process.driver_process import DriverProcess
from csi_multi.rpc.client import Client

pytestmark = pytest.mark.root

ROOT = Path(__file__).parents[2]
KIT = ROOT / "kit"
RUN_TIME = ("grpcio", "msgspec", "protobuf", "pyyaml", "stevedore", "typing-extensions")
MIB = 1 << 20
FILESYSTEM, SIZE = ("ext4", 32 * MIB) if held(LinuxCapability.CAP_SYS_RESOURCE) else ("xfs", 304 * MIB)  # grows online
CONFIG = """\
driver: {{name: own.csi-multi.example, node: n1, default_backend: own, log_style: json}}
backends:
  own: {{kind: {kind}, directory: {directory}}}
"""


@dataclass(frozen=True)
class Example:
    source: Path
    kind: str
    cls: str
    features: list[str]
    marks: tuple[str, ...] = ()  # files by which the backend knows its directory

    @property
    def package(self) -> str:
        return f"csi_multi_{self.kind}"

    def config(self, directory: Path) -> str:
        return CONFIG.format(kind=self.kind, directory=directory)


COMMON = ["Expand", "Clone", "ListVolumes", "Capacity"]
EXAMPLES = (
    Example(ROOT / "examples/third-party-backend", "ramdisk", "RamdiskBackend", ["NodeLocal", *COMMON]),
    Example(ROOT / "examples/network-backend", "filer", "FilerBackend", COMMON, (".filer",)),
)


@pytest.fixture(scope="session", params=EXAMPLES, ids=lambda example: example.kind)
def example(request: pytest.FixtureRequest) -> Example:
    found: Example = request.param
    return found


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheels of the core, the examples and the kit, built as for an upload."""
    target = tmp_path_factory.mktemp("wheels")
    for source in (ROOT, *(one.source for one in EXAMPLES), KIT):
        run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(target), str(source))
    return {wheel.name.partition("-")[0]: wheel for wheel in target.glob("*.whl")}


@pytest.fixture(scope="session")
def clean(example: Example, wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin directory of an environment with the core, the example and what they need at run time, nothing else."""
    return environment(tmp_path_factory.mktemp("clean"), wheels["csi_multi"], wheels[example.package])


@pytest.fixture
def with_kit(example: Example, wheels: dict[str, Path], tmp_path: Path) -> Path:
    """The bin directory of an environment with the core, the example and the kit."""
    names = ("csi_multi", example.package, "csi_multi_testing")
    return environment(tmp_path / "with-kit", *(wheels[name] for name in names))


@pytest.fixture
def memory(example: Example, tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of the test's own. What a failed test leaves is removed, because it takes memory."""
    directory = tmp_path / "memory"
    directory.mkdir()
    LocalHost().run("mount", "-t", "tmpfs", "-o", f"size={5 * SIZE}", "tmpfs", str(directory))
    for mark in example.marks:
        (directory / mark).touch()
    yield directory
    below = [one.target for one in mounts.table() if one.target.startswith(f"{tmp_path}/")]
    for target in reversed(below):
        if target != str(directory):
            LocalHost().run("umount", target)
    for device, file in loopdev.bound_devices().items():
        if file.startswith(f"{directory}/"):
            LocalHost().run("losetup", "--detach", str(device))
    LocalHost().run("umount", str(directory))


@pytest.fixture
def client(example: Example, clean: Path, memory: Path, tmp_path: Path) -> Iterator[Client]:
    """A client of the driver that the clean environment runs."""
    driver = DriverProcess(tmp_path, example.config(memory), program=(str(clean / "csi-multi"),))
    connected = driver.start()
    yield connected
    connected.close()
    assert driver.stop() == 0


def test_the_core_has_no_backend_in_it(wheels: dict[str, Path]) -> None:
    with zipfile.ZipFile(wheels["csi_multi"]) as core:
        [points] = [name for name in core.namelist() if name.endswith("entry_points.txt")]

        assert {name.partition("/")[0].partition("-")[0] for name in core.namelist()} == {"csi_multi"}
        assert "csi_multi.backends" not in core.read(points).decode()


def test_the_installed_example_is_listed_and_no_other_backend(example: Example, clean: Path) -> None:
    found = json.loads(run(str(clean / "csi-multi"), "backends", "--json"))

    assert found == [
        {
            "kind": example.kind,
            "class": f"{example.package}.backend:{example.cls}",
            "distribution": f"csi-multi-{example.kind}",
            "version": "0.1.0",
            "contract": [*CONTRACT],
            "features": example.features,
            "problem": "",
        }
    ]


def test_the_example_needs_neither_pytest_nor_the_checkout(example: Example, clean: Path) -> None:
    script = f"import {example.package}.backend as b, importlib.util as u; print(b.__file__, u.find_spec('pytest'))"
    file, _, pytest_there = run(str(clean / "python"), "-P", "-c", script).strip().partition(" ")

    assert file.startswith(str(clean.parent))
    assert pytest_there == "None"


def test_check_lists_the_features_and_capabilities(example: Example, clean: Path, memory: Path, tmp_path: Path) -> None:
    config = tmp_path / "csi.yaml"
    config.write_text(example.config(memory))

    output = run(str(clean / "csi-multi"), "check", str(config))

    assert f"backend own (default): {example.kind}: {', '.join(example.features)}" in output
    assert "CLONE_VOLUME" in output


MOUNTED = {"mount": {"fs_type": FILESYSTEM}, "access_mode": {"mode": "SINGLE_NODE_WRITER"}}
RAW = {"block": {}, "access_mode": {"mode": "SINGLE_NODE_WRITER"}}


@pytest.mark.parametrize("capability", [MOUNTED, RAW], ids=["mounted", "raw"])
def test_a_volume_lives_and_dies_and_leaves_nothing(
    capability: dict[str, Any], example: Example, client: Client, memory: Path, tmp_path: Path
) -> None:
    node = Node(client, capability, tmp_path)
    before = client.GetCapacity().available_capacity
    volume = create(client, "pvc-1", capability)
    file = node.publish(volume)
    wanted = fill(file)

    larger = client.ControllerExpandVolume(volume_id=volume, capacity_range={"required_bytes": 2 * SIZE})
    assert larger.node_expansion_required
    size = node.size()
    client.NodeExpandVolume(volume_id=volume, volume_path=str(node.target))
    assert node.size() > 1.5 * size
    assert digest(file) == wanted

    node.unpublish(volume)
    clone = create(client, "pvc-2", capability, of=volume)
    copy = node.publish(clone)
    assert digest(copy) == wanted
    node.unpublish(clone)
    assert digest(node.publish(volume)) == wanted
    node.unpublish(volume)
    assert {entry.volume.volume_id for entry in client.ListVolumes().entries} == {volume, clone}

    for one in (volume, clone):
        client.DeleteVolume(volume_id=one)
    assert leftovers(tmp_path, memory) == [*example.marks]
    assert client.GetCapacity().available_capacity == before


class Node:
    """What kubelet does with one volume at a time."""

    def __init__(self, client: Client, capability: dict[str, Any], directory: Path) -> None:
        self._client = client
        self._capability = capability
        self._staging = directory / "staging"
        self._staging.mkdir()
        self.target = directory / "target"

    def publish(self, volume: str) -> Path:
        """Stage and publish; return the file to write to."""
        fields = {"volume_id": volume, "staging_target_path": str(self._staging), "volume_capability": self._capability}
        self._client.NodeStageVolume(**fields)
        self._client.NodePublishVolume(**fields, target_path=str(self.target))
        return self.target if "block" in self._capability else self.target / "data"

    def unpublish(self, volume: str) -> None:
        self._client.NodeUnpublishVolume(volume_id=volume, target_path=str(self.target))
        self._client.NodeUnstageVolume(volume_id=volume, staging_target_path=str(self._staging))

    def size(self) -> int:
        if "block" not in self._capability:
            status = os.statvfs(self.target)
            return status.f_blocks * status.f_frsize
        with self.target.open("rb") as device:
            return device.seek(0, os.SEEK_END)


def create(client: Client, name: str, capability: dict[str, Any], of: str = "") -> str:
    source = {"volume_content_source": {"volume": {"volume_id": of}}} if of else {}
    size = {"required_bytes": 2 * SIZE if of else SIZE}
    made = client.CreateVolume(name=name, capacity_range=size, volume_capabilities=[capability], **source)
    return str(made.volume.volume_id)


def fill(file: Path) -> str:
    """Write random bytes through to the device, and return their digest."""
    data = os.urandom(4 * MIB)
    with file.open("r+b" if file.exists() else "wb") as opened:
        opened.write(data)
        opened.flush()
        os.fsync(opened.fileno())
    return hashlib.sha256(data).hexdigest()


def digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.sha256(opened.read(4 * MIB)).hexdigest()


def leftovers(directory: Path, memory: Path) -> list[str]:
    """Return files of volumes, loop devices and mounts that are still there; the tmpfs itself is not counted."""
    found = [one.target for one in mounts.table() if one.target.startswith(f"{memory.parent}/")]
    found.remove(str(memory))
    found += [
        f"{device} on {file}" for device, file in loopdev.bound_devices().items() if file.startswith(f"{directory}/")
    ]
    found += [str(path) for path in (directory / "target", *(directory / "staging").iterdir()) if path.exists()]
    return found + os.listdir(memory)


def environment(directory: Path, *wheels: Path) -> Path:
    """Create a virtual environment with these wheels and the pinned packages; return its bin directory."""
    venv.create(directory, with_pip=True)
    pinned = directory / "requirements.txt"
    pinned.write_text("".join(locked(name) for name in RUN_TIME))
    pip = (str(directory / "bin/python"), "-m", "pip", "--quiet", "--disable-pip-version-check")
    run(*pip, "install", "--require-hashes", "-r", str(pinned))
    run(*pip, "install", "--no-deps", "--no-index", *map(str, wheels))
    run(*pip, "check")
    return directory / "bin"


def locked(name: str) -> str:
    """Return a package's pin with its hashes, as requirements.lock has it."""
    lock = (ROOT / "requirements.lock").read_text()
    found = re.search(rf"^{re.escape(name)}==.*(?:\n    --hash.*)+\n", lock, re.MULTILINE)
    assert found, f"{name} is not in requirements.lock"
    return found[0]


def run(*words: str) -> str:
    """Run a program outside of the checkout and of its variables; return what it prints."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd="/", env=environment)
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


def test_without_the_kit_its_verb_names_the_package(clean: Path) -> None:
    words = [str(clean / "csi-multi"), "conformance", "--list"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd="/")

    assert done.returncode == 2
    assert "which is not installed: pip install csi-multi-testing" in done.stderr
    assert "conformance: needs package csi-multi-testing" in run(str(clean / "csi-multi"), "--help")


def test_the_kit_brings_its_verb(with_kit: Path) -> None:
    command = (str(with_kit / "csi-multi"), "conformance")

    assert "--storage FILE" in run(*command, "--help")
    assert "needs package" not in run(command[0], "--help")
    assert "creation: a volume can be created found and deleted (wire)" in run(*command, "--list")


@pytest.mark.slow
def test_the_kit_passes_over_the_wire_and_in_process(
    example: Example, with_kit: Path, memory: Path, tmp_path: Path
) -> None:
    if example.kind != EXAMPLES[0].kind and not os.environ.get("MATRIX"):
        pytest.skip("make matrix: the same checks as in the example's own tests, a minute or more")
    config, storage, report = tmp_path / "csi.yaml", tmp_path / "storage.yaml", tmp_path / "report.json"
    config.write_text(example.config(memory))
    storage.write_text(f"storage: {{size: {MIB}, files: [{memory}]}}")

    options = ("--config", config, "--backend", "own", "--storage", storage, "--json", report, "--sanity", "no")
    run(str(with_kit / "csi-multi"), "conformance", *map(str, options), "--yes")

    results = json.loads(report.read_text())["results"]
    states = {one["name"]: one["state"] for one in results}
    assert "failed" not in states.values()
    for name in ("a creation completes once after a crash at any call", "a creation survives kill 9 at any moment"):
        assert states[name] == "passed"
    assert os.listdir(memory) == [*example.marks]
