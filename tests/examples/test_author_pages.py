"""The pages for authors of backends say what the code does: every function, lock, limit and secret, and no other."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import csi_multi.host
from csi_multi.contract import FEATURES, TIME_LIMIT, Backend, backend, model
from csi_multi.loading import admission, loader, registry
from csi_multi.loading.backend_proxy import contract_methods
from csi_multi.node import format as formatting
from csi_multi.process import serve
from csi_multi.rpc.capabilities import CAPABILITIES
from csi_multi.rpc.rules import RULES

DOCS = Path(__file__).parents[2] / "docs"
HOST, CALLS, IMAGE = (DOCS / f"backend-{name}.md" for name in ("host", "calls", "image"))
WORD = re.compile(r"`([^`\n]+)`")
SNIPPETS = [
    pytest.param(snippet, id=f"{page.stem}-{number}")
    for page in (HOST, CALLS, IMAGE)
    for number, snippet in enumerate(re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL))
]


def section(page: Path, heading: str) -> str:
    found = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", page.read_text(), re.MULTILINE | re.DOTALL)
    assert found, f"{page.name} has no section {heading!r}"
    return found[1]


def rows(text: str) -> Iterator[list[str]]:
    """Yield the cells of all tables in a text, without headings."""
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        for line in table.splitlines()[2:]:
            yield [cell.strip() for cell in line[1:-1].split("|")]


@pytest.mark.parametrize("snippet", SNIPPETS)
def test_the_python_of_a_page_can_be_run(snippet: str) -> None:
    exec(compile(snippet, "snippet", "exec"), {})


def host_names() -> set[str]:
    """Return module.name of every function and class that a module of csi_multi.host defines for others."""
    found = set()
    for one in pkgutil.iter_modules(csi_multi.host.__path__):
        module = importlib.import_module(f"csi_multi.host.{one.name}")
        for name, value in vars(module).items():
            if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__ and callable(value):
                found.add(f"{one.name}.{name}")
    return found


NOT_FOR_BACKENDS = {
    "command.Process",  # what open_streams is given
    "command.start",  # for demos and tests
    "sysfs.DeviceGone",  # named in the column of errors, without its module
    "privilege.LinuxCapability",
}
OF_THE_ENGINE = ("mount_calls.", "loop_calls.")  # the page names the modules


def test_the_page_of_the_host_has_every_function_of_the_toolbox_and_no_other() -> None:
    modules = "|".join(one.name for one in pkgutil.iter_modules(csi_multi.host.__path__))
    named = set(re.findall(rf"\b((?:{modules})\.[A-Za-z]\w+)", HOST.read_text()))

    assert named - host_names() == set()
    assert {name for name in host_names() - named if not name.startswith(OF_THE_ENGINE)} == NOT_FOR_BACKENDS


def test_the_page_names_the_methods_of_the_classes_of_the_toolbox() -> None:
    from csi_multi.host.blockdev import BlockDevices
    from csi_multi.host.device_notes import DeviceNotes
    from csi_multi.host.loopfile import LoopDevices

    words = set(WORD.findall(HOST.read_text()))
    for cls in (BlockDevices, DeviceNotes, LoopDevices):
        assert {name for name in vars(cls) if not name.startswith("_")} - words == set()


def with_secrets() -> set[str]:
    """Return the methods of the contract that get secrets, in a parameter or in their request."""
    found = set()
    for cls in (Backend, *FEATURES):
        for name, function in contract_methods(cls).items():
            hints = typing.get_type_hints(function, {**vars(backend), **vars(model)})
            if any(parameter == "secrets" or _has_secrets(hint) for parameter, hint in hints.items()):
                found.add(name)
    return found


def _has_secrets(hint: Any) -> bool:
    return (
        inspect.isclass(hint)
        and dataclasses.is_dataclass(hint)
        and "secrets" in {field.name for field in dataclasses.fields(hint)}
    )


def test_the_table_of_secrets_has_every_method_that_gets_some_and_no_other() -> None:
    named = {name for row in rows(section(CALLS, "Secrets")) for name in WORD.findall(row[0])}

    assert named == with_secrets()


def test_the_deadline_is_where_the_page_says() -> None:
    (text,) = re.findall(r"in\s+the\s+requests\s+of\s+(.*?)\.\s+The\s+other\s+methods", CALLS.read_text(), re.DOTALL)
    requests = {
        name
        for cls in (Backend, *FEATURES)
        for name, function in contract_methods(cls).items()
        for hint in typing.get_type_hints(function, {**vars(backend), **vars(model)}).values()
        if inspect.isclass(hint)
        and dataclasses.is_dataclass(hint)
        and "deadline" in {field.name for field in dataclasses.fields(hint)}
    }

    assert set(WORD.findall(text)) == requests


def test_the_time_limits_of_the_page_are_those_of_the_driver() -> None:
    text = section(CALLS, "Time limits and deadlines")
    limits = {row[0]: row[1] for row in rows(text)}
    expected = (
        loader.IMPORT_LIMIT,
        loader.CONSTRUCTOR_LIMIT,
        registry.CHECK_LIMIT,
        TIME_LIMIT,  # of a command
        TIME_LIMIT,  # of a call
        formatting.LONG_TIME_LIMIT,
        registry.CLOSE_LIMIT,
        serve.DRAIN_LIMIT,
    )

    assert [float(limit.split()[0]) for limit in limits.values()] == list(expected)
    values = yaml.safe_load((DOCS.parent / "config/helm/csi-multi/values.yaml").read_text())
    assert f"wait {values['sidecars']['timeoutSeconds']} s" in text
    threads = section(CALLS, "Threads and locks")
    assert f"up to {admission.WAIT_LIMIT:g} s" in threads
    assert f"for {admission.HANGING_AFTER:g} s" in threads


def test_the_table_of_locks_has_every_rpc_that_takes_some_and_no_other() -> None:
    table = [row for row in rows(section(CALLS, "Threads and locks")) if row[0].startswith(tuple(RULES))]
    named = {rpc: row for row in table for rpc in row[0].split(", ")}

    assert set(named) == {rpc for rpc, rule in RULES.items() if rule.exclusive or rule.shared}
    for rpc, row in named.items():
        assert bool(row[1]) == bool(RULES[rpc].exclusive), rpc
        assert bool(row[2]) == bool(RULES[rpc].shared), rpc


def test_the_table_of_alpha_has_every_feature_that_needs_it_and_no_other() -> None:
    needs: dict[str, bool] = {}
    for _, _, feature, alpha in CAPABILITIES:
        needs[feature.__name__] = needs.get(feature.__name__, True) and alpha

    named = {name for row in rows(section(CALLS, "What needs `alpha`")) for name in WORD.findall(row[0])}
    assert named == {feature for feature, alpha in needs.items() if alpha}
