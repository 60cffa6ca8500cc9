"""The report as JUnit XML, which CI systems read: a suite per group."""

from __future__ import annotations

from xml.etree.ElementTree import Element, SubElement, indent, tostring

from .check import CheckState
from .report import CheckResult, ConformanceReport, groups


def as_junit(report: ConformanceReport) -> str:
    """Return the document. The texts of a CheckResult hold no character that XML forbids."""
    top = Element("testsuites", _numbers(report.results, report.seconds), name=f"csi-multi {report.backend.kind}")
    for group, results in groups(report.results).items():
        seconds = sum(one.seconds for one in results)
        about = {"name": f"{report.backend.instance}.{group}", "timestamp": report.started}
        suite = SubElement(top, "testsuite", _numbers(results, seconds), **about)
        facts = SubElement(suite, "properties")
        for name, value in (("package", report.backend.package), ("driver", report.driver)):
            SubElement(facts, "property", name=name, value=value)
        for one in results:
            _case(suite, one)
    indent(top)
    return tostring(top, encoding="unicode", xml_declaration=True) + "\n"


def _numbers(results: tuple[CheckResult, ...] | list[CheckResult], seconds: float) -> dict[str, str]:
    failed = sum(one.state is CheckState.FAILED for one in results)
    skipped = sum(one.state is CheckState.SKIPPED for one in results)
    counts = {"tests": len(results), "failures": failed, "errors": 0, "skipped": skipped}
    return {**{name: str(count) for name, count in counts.items()}, "time": f"{seconds:.3f}"}


def _case(suite: Element, one: CheckResult) -> None:
    about = {"classname": one.group, "name": one.name, "time": f"{one.seconds:.3f}"}
    case = SubElement(suite, "testcase", about)
    if one.state is CheckState.FAILED:
        first = one.text.partition("\n")[0]
        SubElement(case, "failure", message=first, type=one.where).text = one.text
    if one.state is CheckState.SKIPPED:
        SubElement(case, "skipped", message=one.text)
    if one.notes:
        SubElement(case, "system-out").text = "\n".join(one.notes)
    if one.log:
        SubElement(case, "system-err").text = one.log
