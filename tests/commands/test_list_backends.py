"""`csi-multi backends` tells what is installed, and why it cannot be used where it cannot."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest

from csi_multi.commands.cli import main
from csi_multi.contract import CONTRACT

GOOD = "from csi_multi_testing.memory import MemoryBackend as Own"
HEAD = "from csi_multi_testing.memory import MemoryBackend\nfrom csi_multi.contract import backend as b\n"

Install = Callable[..., str]
Rows = Callable[[], dict[str, list[dict[str, Any]]]]


@pytest.fixture
def rows(capsys: pytest.CaptureFixture[str]) -> Rows:
    """What --json prints, by kind."""

    def run() -> dict[str, list[dict[str, Any]]]:
        found: dict[str, list[dict[str, Any]]] = {}
        main(["backends", "--json"])
        for row in json.loads(capsys.readouterr().out):
            found.setdefault(row["kind"], []).append(row)
        return found

    return run


def test_a_good_backend_is_told_with_all_that_matters(install: Install, rows: Rows) -> None:
    source = "class Own(b.Expand, b.NodeLocal):\n    contract = (1, 0)\n"
    methods = [*_abstract("Expand"), *_abstract("NodeLocal")]
    source += "".join(f"    def {name}(self, *words): ...\n" for name in methods)
    package = install("good", HEAD + source, version="1.1")

    assert rows()["good"] == [
        {
            "kind": "good",
            "class": f"{package}:Own",
            "distribution": package,
            "version": "1.1",
            "contract": [1, 0],
            "features": ["NodeLocal", "Expand"],
            "problem": "",
        }
    ]


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import absent_module_of_nobody", "ModuleNotFoundError"),
        ("raise SystemExit('goodbye')", "goodbye"),
        (f"{HEAD}class Own(MemoryBackend): contract = (2, 0)", "was written for contract (2, 0)"),
        (
            f"{HEAD}class Own(MemoryBackend, b.NodeHealthReporter):\n    def node_volume_health(self, handle): ...",
            "lacks node_storage_health",
        ),
    ],
)
def test_a_broken_backend_is_told_with_the_reason(source: str, reason: str, install: Install, rows: Rows) -> None:
    package = install("bad", source)
    install("good", GOOD)

    found = rows()
    [bad] = found["bad"]
    assert reason in bad["problem"]
    assert (bad["class"], bad["distribution"], bad["contract"], bad["features"]) == (
        f"{package}:Own",
        package,
        None,
        [],
    )
    assert found["good"][0]["problem"] == ""


def test_a_kind_that_is_provided_twice_names_both_providers_and_imports_neither(install: Install, rows: Rows) -> None:
    packages = [install("mem", GOOD), install("other", GOOD), install("mem", GOOD)]

    found = rows()

    assert sorted(one["distribution"] for one in found["mem"]) == [packages[0], packages[2]]
    for one in found["mem"]:
        assert one["problem"] == f"provided by {packages[0]}:Own of {packages[0]} and " + (
            f"{packages[2]}:Own of {packages[2]}; remove one of them"
        )
    assert packages[0] not in sys.modules
    assert found["other"][0]["problem"] == ""


def test_the_exit_code_tells_whether_one_is_broken(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install("good", GOOD)
    assert main(["backends"]) == 0

    install("bad", "import absent_module_of_nobody")
    assert main(["backends"]) == 1
    assert main(["backends", "--json"]) == 1


def test_the_table_is_aligned_and_one_line_per_backend(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install("a-long-name", GOOD)
    install("bad", "raise OSError('first line\\nsecond line')")

    main(["backends"])

    head, *lines = capsys.readouterr().out.splitlines()
    column = head.index("FEATURES")
    [good] = [line for line in lines if line.startswith("a-long-name ")]
    [bad] = [line for line in lines if line.startswith("bad ")]
    assert good[column - 2 : column] == bad[column - 2 : column] == "  "
    assert good[column:].startswith("Attach, ")
    assert f" {CONTRACT[0]}.{CONTRACT[1]} " in good
    assert bad[column:].startswith("BROKEN: ")
    assert bad.endswith("first line second line")


def test_what_a_package_prints_while_it_is_imported_stays_out_of_the_output(install: Install, rows: Rows) -> None:
    install("loud", f"print('hello')\n{GOOD}")

    assert rows()["loud"][0]["problem"] == ""


def test_where_nothing_is_installed_it_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("csi_multi.commands.list_backends.entry_points", lambda **_: [])

    assert main(["backends"]) == 0
    assert "install one" in capsys.readouterr().out


def _abstract(feature: str) -> list[str]:
    from csi_multi.contract import backend

    return sorted(getattr(backend, feature).__abstractmethods__)
