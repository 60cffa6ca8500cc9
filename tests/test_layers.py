"""Who may import whom: an ast walk over the sources, and proof that it sees violations."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CORE = ROOT / "csi_multi"

# Layers from top to bottom; a module may import its own layer and those below.
LAYERS = (
    {"__main__", "commands"},
    {"process"},
    {"telemetry"},
    {"cluster"},
    {"rpc"},
    {"loading"},
    {"core", "node", "kubernetes"},
    {"config", "host", "logs"},
    {"contract"},
    {"_proto"},
)
CONTRACT = {"contract", "host"}  # what a backend may import
GRPC_ALLOWED = {"rpc", "cluster", "_proto", "process.driver_process", "commands.demo"}  # the last two call a driver
SUBPROCESS_ALLOWED = {"host.command"}
# Where foreign code is run, or what nothing else does: any failure must be survived.
BROAD = {
    "commands.cli",  # verbs of other packages
    "rpc.interceptor",
    "loading.instance",
    "loading.registry",
    "loading.loader",
    "loading.reload",
    "loading.backend_validation",
    "loading.backend_proxy",
    "host.supervised",
    "node.frozen_leftovers",
    "logs.handlers",
}


def modules() -> Iterator[tuple[str, str]]:
    """Yield (name below csi_multi, source)."""
    for file in sorted(CORE.rglob("*.py")):
        if file.parent.name != "_proto":
            name = ".".join(file.relative_to(CORE).with_suffix("").parts)
            yield name.removesuffix(".__init__"), file.read_text()


def imports(name: str, source: str) -> Iterator[str]:
    """Yield the absolute name of everything a module imports, at any depth of its code."""
    package = name.split(".")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: -node.level]) if node.level else ""
            stem = ".".join(part for part in (base, node.module or "") if part)
            yield from ([f"{stem}.{alias.name}" for alias in node.names] if stem in ("csi_multi",) else [stem])


def broad_handlers(source: str) -> Iterator[int]:
    """Yield the lines of handlers that swallow any error.

    One that ends in a bare `raise` only cleans up; one that ends in `future.set_exception(error)` hands it on.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ExceptHandler):
            last = node.body[-1]
            if isinstance(last, ast.Raise) and last.exc is None:
                continue
            if node.name and ast.unparse(last).endswith(f".set_exception({node.name})"):
                continue
            caught = [one.id for one in ast.walk(node.type) if isinstance(one, ast.Name)] if node.type else [""]
            if {"Exception", "BaseException", ""} & set(caught):
                yield node.lineno


def violations(name: str, source: str) -> list[str]:
    """Say what a module of the core imports although it must not."""
    top = name.split(".")[0]
    rank = next((number for number, layer in enumerate(LAYERS) if top in layer), 0)
    found = []
    for target in imports(f"csi_multi.{name}", source):
        head, _, rest = target.partition(".")
        own = rest.split(".")[0]
        grpc = head == "grpc" or target.startswith("google.protobuf") or own == "_proto"
        if grpc and not {top, name} & GRPC_ALLOWED:
            found.append(f"{name} imports {target}: gRPC and protobuf belong to rpc/")
        if head == "subprocess" and name not in SUBPROCESS_ALLOWED:
            found.append(f"{name} imports {target}: commands are run by host/command.py")
        if head.startswith("csi_multi_"):
            found.append(f"{name} imports {target}: the core depends on no backend and not on the kit")
        if head == "csi_multi" and own and next((n for n, one in enumerate(LAYERS) if own in one), rank) < rank:
            found.append(f"{name} imports {target}: that is a layer above")
    if name not in BROAD:
        found += [f"{name}:{line} catches everything" for line in broad_handlers(source)]
    return found


def backend_violations(name: str, source: str) -> list[str]:
    """Say what a module of a backend imports although it must not."""
    found = []
    for target in imports(f"csi_multi_x.{name}", source):
        head, _, rest = target.partition(".")
        if head in ("grpc", "subprocess") or target.startswith("google.protobuf"):
            found.append(f"{name} imports {target}")
        if head == "csi_multi" and rest.split(".")[0] not in CONTRACT:
            found.append(f"{name} imports {target}: only the contract modules are for backends")
    return found + [f"{name}:{line} catches everything" for line in broad_handlers(source)]


@pytest.mark.parametrize(("name", "source"), [pytest.param(*pair, id=pair[0]) for pair in modules()])
def test_a_module_imports_only_what_lies_below_it(name: str, source: str) -> None:
    assert violations(name, source) == []


BACKENDS = sorted([*ROOT.glob("backends/*/csi_multi_*/**/*.py"), *ROOT.glob("examples/*/csi_multi_*/**/*.py")])


@pytest.mark.parametrize("file", BACKENDS, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_a_backend_imports_only_the_contract(file: Path) -> None:
    assert backend_violations(file.stem, file.read_text()) == []


def test_every_module_of_the_core_has_its_layer() -> None:
    known = set().union(*LAYERS)

    assert {name.split(".")[0] for name, _ in modules()} - known == {"__init__"}


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("core.locks", "import grpc"),
        ("core.locks", "def f():\n    import grpc"),
        ("node.stage", "from google.protobuf import message"),
        ("node.stage", "from .._proto import csi_pb2"),
        ("node.stage", "from csi_multi._proto import csi_pb2"),
        ("node.stage", "import subprocess"),
        ("host.sysfs", "from subprocess import run"),
        ("loading.registry", "import csi_multi_loop"),
        ("loading.registry", "from csi_multi_loop.backend import LoopBackend"),
        ("loading.registry", "from csi_multi_testing import memory"),
        ("process.serve", "def f():\n    from csi_multi_testing.conformance import conformance"),
        ("contract.model", "from ..loading.registry import Registry"),
        ("contract.backend", "from ..core import idempotent"),
        ("core.idempotent", "from ..rpc.status import CODES"),
        ("node.stage", "from ..rpc import convert"),
        ("host.command", "from ..core.locks import Locks"),
        ("core.idempotent", "try:\n    x = 1\nexcept Exception:\n    pass"),
        ("core.idempotent", "try:\n    x = 1\nexcept (ValueError, BaseException):\n    pass"),
        ("core.idempotent", "try:\n    x = 1\nexcept:\n    pass"),
    ],
)
def test_a_violation_is_seen(name: str, source: str) -> None:
    assert violations(name, source)


@pytest.mark.parametrize(
    "source",
    [
        *("import grpc", "import subprocess", "from google.protobuf.message import Message"),
        *("from csi_multi.rpc import convert", "from csi_multi.loading import registry", "import csi_multi.node.stage"),
        *("from csi_multi.core.locks import Locks", "try:\n    x = 1\nexcept Exception:\n    pass"),
    ],
)
def test_a_backends_violation_is_seen(source: str) -> None:
    assert backend_violations("backend", source)


def test_what_is_allowed_is_not_a_violation() -> None:
    assert not violations(
        "rpc.convert", "import grpc\nfrom ..loading.instance import Instance\nfrom ..contract import ids"
    )
    assert not violations("host.command", "import subprocess")
    assert not violations("node.stage", "try:\n    x = 1\nexcept BaseException:\n    x = 2\n    raise")
    assert not backend_violations("backend", "from csi_multi.host import sysfs\nfrom csi_multi.contract import model")
