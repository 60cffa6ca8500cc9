"""One skeleton for every backend: whoever has learned one finds everything in the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from csi_multi.contract import CONTRACT
from csi_multi.loading.loader import backend_classes

ROOT = Path(__file__).parent.parent
BACKENDS = sorted(ROOT.glob("backends/*"))
EXAMPLES = sorted(ROOT.glob("examples/*-backend"))
LONGEST = 300  # lines of a module

SKELETON = (
    "backend",
    "config",
    "client",
    "errors",
    "labels",
    "volumes",
    "snapshots",
    "devices",
    "capacity",
    "health",
    "listing",
    "explain",
    "importing",
)
# Modules that a backend does not need, and why.
WITHOUT: dict[str, dict[str, str]] = {}
# Modules that are longer, and why.
LONGER = {
    "rbd/backend": "one method for each method of the contract, of which rbd has the most",
    "rbd/client": "one method for each command of rbd and ceph",
}


def package(backend: Path) -> Path:
    return backend / f"csi_multi_{backend.name}"


def modules(backend: Path) -> list[str]:
    return sorted(file.stem for file in package(backend).glob("*.py") if file.stem != "__init__")


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
def test_a_backend_has_the_modules_of_the_skeleton(backend: Path) -> None:
    wanted = set(SKELETON) - set(WITHOUT.get(backend.name, {}))

    assert wanted - set(modules(backend)) == set()
    assert set(WITHOUT.get(backend.name, {})) & set(modules(backend)) == set(), "it has what it is said not to need"


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
def test_the_test_of_a_module_has_its_name(backend: Path) -> None:
    tests = {file.stem.removeprefix("test_") for file in (backend / "tests").glob("test_*.py")}

    assert set(modules(backend)) - tests == set()


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
def test_a_module_of_a_backend_is_short(backend: Path) -> None:
    lines = {file.stem: len(file.read_text().splitlines()) for file in package(backend).glob("*.py")}

    assert {name for name, count in lines.items() if count > LONGEST} == {
        name.partition("/")[2] for name in LONGER if name.startswith(f"{backend.name}/")
    }


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_an_example_has_modules_of_the_skeleton_only_and_a_test_for_each(example: Path) -> None:
    [package] = example.glob("csi_multi_*")
    names = {file.stem for file in package.glob("*.py") if file.stem != "__init__"}

    assert names <= set(SKELETON)
    assert {file.stem.removeprefix("test_") for file in example.glob("tests/test_*.py")} == names | {"contract"}


def test_the_examples_are_written_for_the_present_contract() -> None:
    """Authors copy them."""
    kinds = [path.name.removeprefix("csi_multi_") for one in EXAMPLES for path in one.glob("csi_multi_*")]
    classes, broken = backend_classes(kinds)

    assert broken == {}
    assert {kind: classes[kind].contract for kind in kinds} == dict.fromkeys(kinds, CONTRACT)


def test_the_authors_document_shows_the_skeleton() -> None:
    text = (ROOT / "docs" / "writing-a-backend.md").read_text()

    assert [name for name in SKELETON if f"{name}.py" not in text] == []


def test_the_architecture_names_every_package() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    packages = [file.parent.name for file in (ROOT / "csi_multi").glob("*/__init__.py")]

    assert [name for name in packages if f"`{name}/`" not in text] == []
