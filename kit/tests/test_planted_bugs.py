"""Bugs of the kinds that vendors make, planted in a copy of a working backend: the kit catches each of them.

They were written by people who did not know the kit's checks; these were the hardest to find. Each appears only in a
certain order of calls, between two processes, after a crash, with much data or with unusual names.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = pytest.mark.root  # all these backends use loop devices

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 900.0  # seconds for the checks of one package, on a busy machine
RAMDISK = "examples/third-party-backend"
FILER = "examples/network-backend"
LOOP = "backends/loop"


@dataclass(frozen=True)
class PlantedBug:
    """`edits`: (module, old text, new text) in the package's only import package. `check` is one that catches it."""

    name: str
    distribution: str
    check: str
    edits: tuple[tuple[str, str, str], ...]


BUGS = (
    PlantedBug(
        "a page of a listing ends before a name that another name begins with",
        RAMDISK,
        "listing: every volume is listed exactly once",
        (
            (
                "client.py",
                "(name.removesuffix(suffix) for name in os.listdir(self.directory) if",
                "(name.removesuffix(suffix) for name in sorted(os.listdir(self.directory)) if",
            ),
            (
                "client.py",
                "return sorted(name for name in names if ids.LEAF_SHAPE.fullmatch(name))",
                "return [name for name in names if ids.LEAF_SHAPE.fullmatch(name)]",
            ),
        ),
    ),
    PlantedBug(
        "names in two encodings of one text name one volume",
        RAMDISK,
        "names: nearly equal names give different volumes",
        (
            ("volumes.py", "ids.leaf(request.name)", 'ids.leaf(unicodedata.normalize("NFC", request.name))'),
            ("volumes.py", "from contextlib import", "import unicodedata\nfrom contextlib import"),
        ),
    ),
    PlantedBug(
        "the labels of all volumes are written by way of one file",
        RAMDISK,
        "interleavings: two processes create two volumes",
        (
            ("client.py", 'draft = self.directory / f"{leaf}{DRAFT}"', 'draft = self.directory / f"label{DRAFT}"'),
            ("client.py", "for suffix in (LABEL, DRAFT, IMAGE):", "for suffix in (LABEL, IMAGE):"),
        ),
    ),
    PlantedBug(
        "an expansion writes the new size down before the image has it",
        LOOP,
        "crashes: an expansion completes after a crash at any call",
        (
            (
                "volumes.py",
                "            if size > present:\n                with self.capacity.admit(",
                "            if size > label.size:\n"
                "                self.volumes.replace(leaf, msgspec.structs.replace(label, size=size))\n"
                "            if size > present:\n                with self.capacity.admit(",
            ),
        ),
    ),
    PlantedBug(
        "a creation keeps what an interrupted one has left",
        LOOP,
        "after_crash: another request can follow a creation that crashed",
        (("store.py", "                self._client.empty(new)  # what an interrupted creation left\n", ""),),
    ),
    PlantedBug(
        "a volume can be opened and written while it is cloned",
        RAMDISK,
        "interleaved_copies: a clone is of one point in time if another process writes at any call",
        (
            (
                "devices.py",
                'opening a device"), self.client.locked(leaf):',
                'opening a device"), self.client.locked(leaf, 1):',
            ),
        ),
    ),
    PlantedBug(
        "a clone trusts that one system call copies all of it",
        RAMDISK,
        "large_copies: a clone is complete where each system call copies a part",
        (
            (
                "client.py",
                "        while left > 0 and (copied := os.copy_file_range(source, image, left)):\n"
                "            left -= copied",
                "        os.copy_file_range(source, image, left)",
            ),
        ),
    ),
    PlantedBug(
        "a start looks for labels before it takes the locks",
        RAMDISK,
        "interleavings: a process that starts removes nothing that another one creates",
        (
            (
                "volumes.py",
                "            for leaf in self.client.leaves(IMAGE):\n                with suppress(NotFound, Busy, "
                "FailedPrecondition), self.client.locked(leaf):\n"
                "                    if self.labels.find(leaf) is None:",
                "            labelled = set(self.client.leaves())\n            for leaf in self.client.leaves(IMAGE):\n"
                "                with suppress(NotFound, Busy), self.client.locked(leaf):\n"
                "                    if leaf not in labelled:",
            ),
        ),
    ),
    PlantedBug(
        "the reserve for notes on a full storage is too small",
        RAMDISK,
        "full_storage: the volumes of a full storage can be used",
        (("client.py", "RESERVE = 16 * PAGE", "RESERVE = 16"),),
    ),
    PlantedBug(
        "a node that closes a device gives up what another node holds",
        FILER,
        "other_nodes: closing a volume on another node leaves it open on this one",
        (
            (
                "devices.py",
                "self.client.image(leaf))\n            if self.client.is_held_by(leaf, self.node):",
                "self.client.image(leaf))\n            if self.client.holder(leaf):",
            ),
        ),
    ),
    PlantedBug(
        "a controller that starts releases what its node has open",
        FILER,
        "roles: a process that starts elsewhere leaves what is open on a node",
        (("backend.py", "if self.setting.serves_node:", "if self.setting.node:"),),
    ),
    PlantedBug(
        "a controller asks its own kernel whether a volume is open",
        FILER,
        "roles: a volume that a node uses is not deleted by a controller",
        (
            (
                "devices.py",
                "if holder := self.client.holder(leaf):\n            raise",
                "holder = self.client.holder(leaf)\n"
                "        if self.loop_files.find(self.client.image(leaf)):\n            raise",
            ),
        ),
    ),
    PlantedBug(
        "a page ends where a foreign volume takes a place in it",
        LOOP,
        "paging: pages of volumes go on past what is left out or deleted",
        (
            (
                "listing.py",
                "        return paged(self.volume_store.leaves(), page, load)",
                "        leaves = [leaf for leaf in self.volume_store.leaves() if leaf > page.cursor]\n"
                "        return paged(leaves[: page.limit + 1] if page.limit else leaves, page, load)",
            ),
        ),
    ),
)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_the_kit_catches(bug: PlantedBug, tmp_path: Path) -> None:
    package = copy_of(bug.distribution, tmp_path)
    plant(bug, package)
    run = contract_test(package, tmp_path, [bug.check])
    assert run.returncode == 1, run.stdout
    assert f"::test_contract[{bug.check}] - " in run.stdout, run.stdout


@pytest.mark.parametrize("distribution", sorted({bug.distribution for bug in BUGS}))
def test_without_a_bug_the_same_checks_pass(distribution: str, tmp_path: Path) -> None:
    checks = sorted({bug.check for bug in BUGS if bug.distribution == distribution})
    run = contract_test(copy_of(distribution, tmp_path), tmp_path, checks)
    assert (run.returncode, f"{len(checks)} passed" in run.stdout) == (0, True), run.stdout


def copy_of(distribution: str, directory: Path) -> Path:
    package = directory / Path(distribution).name
    shutil.copytree(ROOT / distribution, package, ignore=shutil.ignore_patterns("__pycache__", ".*", "*.egg-info"))
    return package


def plant(bug: PlantedBug, package: Path) -> None:
    for module, old, new in bug.edits:
        (file,) = package.glob(f"csi_multi_*/{module}")
        text = file.read_text()
        assert old in text, f"{file.name} has changed: write this bug for it as it is now"
        file.write_text(text.replace(old, new))


def contract_test(package: Path, directory: Path, checks: list[str]) -> subprocess.CompletedProcess[str]:
    """Run these checks of the package's own test of the contract, with this copy of the package."""
    options = ["-q", "-p", "no:cacheprovider", "-c", f"{ROOT}/pyproject.toml", f"--basetemp={directory}/run"]
    tests = [f"{package}/tests/test_contract.py::test_contract[{check}]" for check in checks]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, *tests],
        cwd=package,
        env={**os.environ, "PYTHONPATH": str(package), "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "1000"},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=LIMIT,
        check=False,
    )
