"""The reports of a conformance run: text, JSON and JUnit, the progress line, and what csi-sanity reports."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest
from csi_multi_testing import memory, sanity
from csi_multi_testing.check import CheckState
from csi_multi_testing.junit import as_junit
from csi_multi_testing.progress import Progress
from csi_multi_testing.report import BackendInfo, CheckResult, ConformanceReport, as_json, as_text, escape

from csi_multi.config.document import ConfigError

NASTY = '\x00\x1b[31m]]> <b> & "q" \ud800 ￾ 🙂\ttab'
PASSED = CheckResult(
    group="creation", name="one", where="wire", state=CheckState.PASSED, seconds=1.5, notes=("3 calls met",)
)
FAILED = CheckResult(
    group="creation", name="two", where="backend", state=CheckState.FAILED, text="found 1\nwanted 2", log="{}"
)
SKIPPED = CheckResult(
    group="sizes", name="three", where="wire", state=CheckState.SKIPPED, text="Storage.nodes not given"
)
FOREIGN = CheckResult(group="csi-sanity", name="spec", where="csi-sanity", state=CheckState.PASSED)


def report(*results: CheckResult, complete: bool = True) -> ConformanceReport:
    backend = BackendInfo(instance="fast", kind="lvm", package="csi-multi-lvm 1.2", features=("Clone",))
    return ConformanceReport(
        backend=backend, started="2026-01-01T00:00:00+00:00", seconds=2.0, complete=complete, results=results
    )


def test_the_text_has_every_failure_skip_note_and_a_table() -> None:
    text = as_text(report(FOREIGN, PASSED, FAILED, SKIPPED), "/tmp/logs")

    assert "FAILED  creation: two (backend)\n    found 1\n    wanted 2\n    log: /tmp/logs/failure-1.log" in text
    assert "SKIPPED 1: Storage.nodes not given\n    three" in text
    assert "  one: 3 calls met" in text
    rows = [line.split() for line in text.splitlines() if line.startswith("  ")]
    assert ["creation", "1", "1", "0", "1.5"] in rows
    assert ["all", "2", "1", "1", "2.0"] in rows
    assert [row[0] for row in rows if row[0] in ("creation", "sizes", "csi-sanity")][-1] == "csi-sanity"
    assert "backend fast (lvm, csi-multi-lvm 1.2): failed: 2 passed, 1 failed, 1 skipped, 2.0 s" in text
    assert text.endswith("\nlogs: /tmp/logs")


def test_the_slowest_checks_are_named() -> None:
    times = {f"check {number}": float(number) for number in range(8)}
    results = [msgspec.structs.replace(PASSED, name=name, seconds=seconds) for name, seconds in times.items()]

    text = as_text(report(*results, SKIPPED))

    assert "Slowest:\n      7.0 s  creation: check 7\n      6.0 s  creation: check 6\n" in text
    assert text.count(" s  creation: ") == 5
    assert "Slowest" not in as_text(report(SKIPPED))


def test_a_run_that_did_not_end_has_not_passed() -> None:
    assert report(PASSED).passed
    assert not report(PASSED, complete=False).passed
    assert "stopped early" in as_text(report(PASSED, complete=False))


def test_the_json_says_what_ran_where() -> None:
    found = json.loads(as_json(report(PASSED, FAILED)))

    assert found["schema"] == 1
    assert found["driver"].startswith("csi-multi ")
    assert found["machine"]["python"]
    assert found["backend"] == {
        "instance": "fast",
        "kind": "lvm",
        "package": "csi-multi-lvm 1.2",
        "features": ["Clone"],
    }
    assert [(one["name"], one["state"], one["log"]) for one in found["results"]] == [
        ("one", "passed", ""),
        ("two", "failed", "{}"),
    ]


def test_the_junit_report_has_a_suite_per_group() -> None:
    top = ElementTree.fromstring(as_junit(report(PASSED, FAILED, SKIPPED)).encode())

    assert {name: top.get(name) for name in ("tests", "failures", "skipped", "errors", "time")} == {
        "tests": "3",
        "failures": "1",
        "skipped": "1",
        "errors": "0",
        "time": "2.000",
    }
    assert [suite.get("name") for suite in top] == ["fast.creation", "fast.sizes"]
    failure = next(top.iter("failure"))
    assert (failure.get("message"), failure.text) == ("found 1", "found 1\nwanted 2")
    assert next(top.iter("skipped")).get("message") == "Storage.nodes not given"
    assert next(top.iter("system-out")).text == "3 calls met"


def test_a_skip_names_what_only_pytest_can_give() -> None:
    text = as_text(report(SKIPPED))

    for name in ("importable", "read_only_calls", "capability", "foreign_handles", "restarted", "layers", "foreign"):
        assert name in text
    assert not re.search(r"Only in pytest.*\b(connect|nodes|power_cut)\b", text)


def test_no_text_can_spoil_the_junit_report() -> None:
    nasty = [
        CheckResult(group="g", name=NASTY, where="wire", state=state, text=NASTY, log=NASTY) for state in CheckState
    ]

    top = ElementTree.fromstring(as_junit(report(*nasty)).encode())

    assert len(list(top.iter("testcase"))) == 3
    assert next(top.iter("failure")).text == escape(NASTY)
    assert escape(NASTY).startswith(r"\x00\x1b[31m]]>")
    assert r"\ud800" in escape(NASTY)


def test_the_json_report_takes_any_text_that_a_driver_can_say() -> None:
    nasty = CheckResult(group="g", name="n", where="wire", state=CheckState.FAILED, text=NASTY)

    assert json.loads(as_json(report(nasty)))["results"][0]["text"] == escape(NASTY)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_one_line_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    out = Terminal()
    progress = Progress(2, out)

    for one in (FAILED, PASSED):
        progress.begin(one.group, one.name * 40)
        progress.end(one)
    progress.done()

    lines = out.getvalue().split("\r\x1b[K")
    assert "\n" not in out.getvalue()
    assert lines[2].startswith("████████████············ 1/2, 1 failed  creation: one")
    assert max(map(len, lines)) == 59
    assert lines[-1] == ""


def test_elsewhere_every_check_has_a_line() -> None:
    out = io.StringIO()
    progress = Progress(1, out)

    progress.begin("creation", "one")
    progress.end(PASSED)
    progress.done()

    assert out.getvalue() == "PASSED     1.50 s  creation: one (wire)\n"


@pytest.mark.parametrize(
    ("wanted", "only", "suite"),
    [
        ("no", "", sanity.SanitySuite(disabled=True)),
        ("auto", "creation", sanity.SanitySuite(disabled=True)),
        ("auto", "sanity", sanity.SanitySuite("/opt/csi-sanity")),
        ("sh", "", sanity.SanitySuite("/bin/sh")),
    ],
)
def test_csi_sanity_is_chosen(monkeypatch: pytest.MonkeyPatch, wanted: str, only: str, suite: Any) -> None:
    monkeypatch.setenv("CSI_SANITY", "/opt/csi-sanity")
    monkeypatch.setattr("shutil.which", lambda program: f"/bin/{program}")

    assert sanity.choose_suite(wanted, only) == suite


def test_csi_sanity_that_is_not_there_is_skipped_unless_it_was_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CSI_SANITY", raising=False)
    monkeypatch.setattr("shutil.which", lambda _program: None)

    skipped = list(sanity.choose_suite("auto", "").results(None, memory.storage()))  # type: ignore[arg-type]

    assert [(one.state, one.text.partition(":")[0]) for one in skipped] == [
        (CheckState.SKIPPED, "csi-sanity was not found"),
    ]
    with pytest.raises(ConfigError, match="no such program"):
        sanity.choose_suite("/opt/csi-sanity", "")


def test_ginkgos_report_is_read(tmp_path: Path) -> None:
    specs = [
        {"LeafNodeType": "BeforeSuite"},
        {
            "LeafNodeType": "It",
            "ContainerHierarchyTexts": ["Node Service"],
            "LeafNodeText": "should work",
            "State": "failed",
            "RunTime": 1_500_000_000,
            "Failure": {"Message": "expected\nmore"},
        },
    ]
    file = tmp_path / "report.json"
    file.write_text(json.dumps([{"SpecReports": specs}]))

    assert sanity.specs(file) == [sanity.GinkgoSpec("Node Service > should work", "failed", "expected\nmore", 1.5)]
    assert sanity.specs(tmp_path / "absent.json") == []
