"""The report of a conformance run, as text and as JSON. junit.py writes it for CI systems."""

from __future__ import annotations

import os
import platform
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import fields
from importlib.metadata import version

import msgspec

from .check import CheckState
from .storage import Storage
from .storage_file import StorageFile

LAST = ("csi-sanity", "instance")  # groups
SCHEMA = 1  # of the JSON report: raised when a field changes its meaning or goes away
SLOWEST, SLOW_SECONDS = 5, 1.0  # how many checks are named for the time that they took, and from which time on

# Characters that XML 1.0 cannot hold, not even escaped: control characters, which would also change a terminal,
# and surrogates, which no encoding accepts.
UNPRINTABLE = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def escape(text: str) -> str:
    """Return the text with every character that a report cannot hold as an escape sequence."""
    return UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape", "surrogatepass").decode(), text)


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """One check, or one spec of csi-sanity."""

    group: str
    name: str
    where: str  # wire, backend or csi-sanity
    state: CheckState
    text: str = ""  # why it failed or was skipped
    seconds: float = 0.0
    notes: tuple[str, ...] = ()
    log: str = ""  # of a failure: the end of the log, and the traceback of an unexpected error

    def __post_init__(self) -> None:
        """Escape the texts: some come from foreign code and programs."""
        for name in ("name", "text", "log"):
            msgspec.structs.force_setattr(self, name, escape(getattr(self, name)))
        msgspec.structs.force_setattr(self, "notes", tuple(map(escape, self.notes)))


class MachineInfo(msgspec.Struct, frozen=True, kw_only=True):
    system: str = msgspec.field(default_factory=platform.platform)
    python: str = msgspec.field(default_factory=platform.python_version)
    cpus: int = msgspec.field(default_factory=lambda: os.cpu_count() or 0)
    root: bool = msgspec.field(default_factory=lambda: os.geteuid() == 0)


class BackendInfo(msgspec.Struct, frozen=True, kw_only=True):
    instance: str
    kind: str
    package: str
    features: tuple[str, ...]


class ConformanceReport(msgspec.Struct, frozen=True, kw_only=True):
    schema: int = SCHEMA
    driver: str = msgspec.field(default_factory=lambda: f"csi-multi {version('csi-multi')}")
    machine: MachineInfo = msgspec.field(default_factory=MachineInfo)
    backend: BackendInfo
    started: str  # ISO 8601, UTC
    seconds: float
    complete: bool  # False: interrupted
    results: tuple[CheckResult, ...]

    def count(self, state: CheckState) -> int:
        return sum(one.state is state for one in self.results)

    @property
    def logs(self) -> dict[str, str]:
        """The log of each failure, by the name of its file."""
        failed = [one for one in self.results if one.state is CheckState.FAILED]
        return {f"failure-{number}.log": one.log for number, one in enumerate(failed, 1)}

    @property
    def passed(self) -> bool:
        return self.complete and not self.count(CheckState.FAILED)


def as_json(report: ConformanceReport) -> str:
    return msgspec.json.format(msgspec.json.encode(report)).decode()


def groups(results: Iterable[CheckResult]) -> dict[str, list[CheckResult]]:
    """Return the results by group: the kit's groups first, then csi-sanity and the run as a whole."""
    found: dict[str, list[CheckResult]] = defaultdict(list)
    for one in sorted(results, key=lambda one: LAST.index(one.group) if one.group in LAST else -1):
        found[one.group].append(one)
    return found


def as_text(report: ConformanceReport, log: str = "") -> str:
    """Return the report for a terminal; `log` is the directory of the logs, "" if they are removed."""
    parts = [_notes(report.results), _skips(report.results), _failures(report, log), _slowest(report.results)]
    parts += [_table(report), _last_line(report, log)]
    return "\n\n".join(part for part in parts if part)


def _table(report: ConformanceReport) -> str:
    rows: list[Sequence[str]] = [("group", *(state.value for state in CheckState), "seconds")]
    for group, results in groups(report.results).items():
        counts = Counter(one.state for one in results)
        rows.append(
            (group, *(str(counts[state]) for state in CheckState), f"{sum(one.seconds for one in results):.1f}")
        )
    totals = (str(report.count(state)) for state in CheckState)
    rows.append(("all", *totals, f"{report.seconds:.1f}"))
    wide = max(len(row[0]) for row in rows)
    return "\n".join(f"  {name:<{wide}}" + "".join(f"{cell:>10}" for cell in cells) for name, *cells in rows)


def _failures(report: ConformanceReport, directory: str) -> str:
    failed = [one for one in report.results if one.state is CheckState.FAILED]
    lines = []
    for one, (file, log) in zip(failed, report.logs.items(), strict=True):
        lines += [f"FAILED  {one.group}: {one.name} ({one.where})", *_indented(one.text)]
        lines += [f"    log: {directory}/{file}"] if directory and log else []
    return "\n".join(lines)


def _skips(results: Iterable[CheckResult]) -> str:
    reasons: dict[str, list[str]] = defaultdict(list)
    for one in results:
        if one.state is CheckState.SKIPPED:
            reasons[one.text].append(one.name)
    lines = []
    for reason, names in sorted(reasons.items()):
        lines.append(f"SKIPPED {len(names)}: {reason}")
        lines += [f"    {name}" for name in names]
    if any("Storage." in reason for reason in reasons):
        lines.append(
            "Storage.<name>: set it in the file of --storage; --list shows its keys. "
            f"Only in pytest can be given: {', '.join(_only_in_pytest())}."
        )
    return "\n".join(lines)


def _only_in_pytest() -> list[str]:
    """Return the optional fields of Storage that the file of --storage does not have."""
    given = {"connect", *StorageFile.__struct_fields__}
    return [one.name for one in fields(Storage) if one.name not in given]


def _notes(results: Iterable[CheckResult]) -> str:
    lines = [f"  {one.name}: {note}" for one in results for note in one.notes]
    return "\n".join(["Measured:", *lines]) if lines else ""


def _slowest(results: Iterable[CheckResult]) -> str:
    slow = sorted((one for one in results if one.seconds >= SLOW_SECONDS), key=lambda one: -one.seconds)
    lines = [f"  {one.seconds:7.1f} s  {one.group}: {one.name}" for one in slow[:SLOWEST]]
    return "\n".join(["Slowest:", *lines]) if lines else ""


def _last_line(report: ConformanceReport, log: str) -> str:
    counts = ", ".join(f"{report.count(state)} {state.value}" for state in CheckState)
    verdict = "passed" if report.passed else "failed" if report.complete else "stopped early"
    about = f"backend {report.backend.instance} ({report.backend.kind}, {report.backend.package})"
    kept = f"\nlogs: {log}" if log else ""
    return f"{about}: {verdict}: {counts}, {report.seconds:.1f} s{kept}"


def _indented(text: str) -> list[str]:
    return [f"    {line}" for line in text.splitlines()]
