"""No circular imports in any distribution, imports inside functions included."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = [
    ROOT / "csi_multi",
    ROOT / "kit" / "csi_multi_testing",
    *sorted(ROOT.glob("backends/*/csi_multi_*")),
    *sorted(ROOT.glob("examples/*/csi_multi_*")),
]


def modules(package: Path) -> dict[str, str]:
    """Return the source of every module of a package by its name. Generated code is left out."""
    found = {}
    for file in sorted(package.rglob("*.py")):
        if "_proto" not in file.parts:
            name = ".".join(file.relative_to(package.parent).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = file.read_text()
    return found


def imported(name: str, source: str, known: Mapping[str, str], packages: Iterable[str]) -> Iterator[str]:
    """Yield the known modules that a module imports, at any depth of its code and for type checkers too."""
    home = name if name in packages else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            parts = home.split(".")[: len(home.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*parts, *([node.module] if node.module else [])])
            for alias in node.names:
                full = f"{base}.{alias.name}"
                yield from [full] if full in known else [base] if base in known else []


def circles(known: Mapping[str, str]) -> list[list[str]]:
    """Return the groups of modules that import each other, directly or through others."""
    packages = {name.rpartition(".")[0] for name in known}
    edges = {name: set(imported(name, source, known, packages)) - {name} for name, source in known.items()}

    def reachable(start: str) -> set[str]:
        found: set[str] = set()
        todo = [start]
        while todo:
            for other in edges[todo.pop()] - found:
                found.add(other)
                todo.append(other)
        return found

    reach = {name: reachable(name) for name in edges}
    groups = {tuple(sorted(other for other in reach[name] if name in reach[other])) for name in edges}
    return sorted(list(group) for group in groups if group)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_no_modules_import_each_other_in_a_circle(package: Path) -> None:
    assert circles(modules(package)) == []


@pytest.mark.parametrize(
    "source",
    [
        "from . import b",
        "from .b import name",
        "import p.b",
        "from p.b import name",
        "def f():\n    from .b import name",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .b import name",
    ],
)
def test_a_planted_circle_is_found(source: str) -> None:
    known = {"p": "", "p.a": source, "p.b": "from .q import c", "p.q": "", "p.q.c": "from ..a import name"}

    assert circles(known) == [["p.a", "p.b", "p.q.c"]]


def test_modules_in_order_are_no_circle() -> None:
    known = {"p": "from .a import name", "p.a": "from . import b\nfrom .q import c", "p.b": "", "p.q": "", "p.q.c": ""}

    assert circles(known) == []
