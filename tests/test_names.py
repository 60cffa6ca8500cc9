"""Names: one class has one name in the core and the kit; in backends one name has one role."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CORE = [ROOT / "csi_multi", ROOT / "kit" / "csi_multi_testing"]
BACKENDS = sorted([*ROOT.glob("backends/*/csi_multi_*"), *ROOT.glob("examples/*/csi_multi_*")])

# Words that the project once had for itself. A storage engineer does not know what they stand for.
PRIVATE_WORDS = frozenset(
    {
        *("bulkhead", "cutter", "cutting", "door", "doubts", "gathering", "patience", "placing", "rehearsal"),
        *("room", "said", "shelf", "stillness", "told", "wish"),
    }
)

Source = tuple[str, str]  # (path, text)


def sources(packages: Iterable[Path]) -> Iterator[Source]:
    for package in packages:
        for file in sorted(package.rglob("*.py")):
            if "_proto" not in file.parts:
                yield str(file.relative_to(ROOT)), file.read_text()


def classes(source: str) -> list[str]:
    """Return the names of the classes at the top level of a module."""
    return [node.name for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]


def shared_names(modules: Iterable[Source]) -> dict[str, list[str]]:
    """Return the class names that several modules define, with those modules."""
    found = defaultdict(list)
    for path, source in modules:
        for name in classes(source):
            found[name].append(path)
    return {name: paths for name, paths in found.items() if len(paths) > 1}


def names_with_two_roles(modules: Iterable[Source]) -> dict[str, list[str]]:
    """Return the class names that modules of different names define: a role has the same module in every backend."""
    shared = shared_names(modules)
    return {name: paths for name, paths in shared.items() if len({Path(path).name for path in paths}) > 1}


def private_names(source: str) -> list[str]:
    """Return the names of functions, classes, parameters and variables that contain a private word."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.arg(arg=name) | ast.Attribute(attr=name):
                found.add(name)
            case ast.Name(id=name, ctx=ast.Store()):
                found.add(name)
            case _:
                continue
    return sorted(name for name in found if words(name) & PRIVATE_WORDS)


def words(name: str) -> set[str]:
    """Return the words of an identifier: "a_room" and "ARoom" have the word "room"."""
    spaced = "".join(f"_{char.lower()}" if char.isupper() else char for char in name)
    return set(spaced.split("_"))


def test_no_two_classes_of_core_and_kit_share_a_name() -> None:
    assert shared_names(sources(CORE)) == {}


@pytest.mark.parametrize("package", BACKENDS, ids=lambda package: package.name)
def test_no_two_classes_of_a_backend_share_a_name(package: Path) -> None:
    assert shared_names(sources([package])) == {}


def test_a_class_name_stands_for_one_role_in_all_backends() -> None:
    assert names_with_two_roles(sources(BACKENDS)) == {}


@pytest.mark.parametrize(("path", "source"), [pytest.param(*one, id=one[0]) for one in sources([*CORE, *BACKENDS])])
def test_names_are_the_field_s_own(path: str, source: str) -> None:
    assert private_names(source) == [], path


def test_a_shared_name_is_seen() -> None:
    assert shared_names([("a.py", "class Entry: ..."), ("b.py", "class Entry: ...")]) == {"Entry": ["a.py", "b.py"]}


def test_a_second_role_of_a_name_is_seen() -> None:
    one, other = ("loop/freeze.py", "class Gate: ..."), ("rbd/circuit_breaker.py", "class Gate: ...")

    assert names_with_two_roles([one, other])
    assert not names_with_two_roles([one, ("rbd/freeze.py", "class Gate: ...")])


@pytest.mark.parametrize(
    "source",
    [
        "class PoolDoor: ...",
        "def _told(): ...",
        "def f(wish): ...",
        "room = 1",
        "self.shelf = 1",
        "def f():\n    said = 1",
    ],
)
def test_a_private_word_is_seen(source: str) -> None:
    assert private_names(source)


def test_a_word_is_looked_for_whole() -> None:
    assert not private_names("indoor = 1\nclass Mushroom: ...")
