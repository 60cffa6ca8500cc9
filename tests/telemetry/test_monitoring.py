"""The dashboard, the alert rules and the manual speak of metrics that a driver really shows, and of all of them."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from csi_multi.host.command import LocalHost

ROOT = Path(__file__).parent.parent.parent
MONITORING = ROOT / "config/monitoring"
MANUAL = ROOT / "docs/operations.md"
SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",), "info": ("_info",)}
LABELS = {"job", "instance", "le", "alertname"}  # Prometheus' own
NAME = re.compile(r"\b((?:csi_multi|process)_\w+)")


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load((MONITORING / "alerts.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    return dict(json.loads((MONITORING / "dashboard.json").read_text()))


def expressions() -> list[str]:
    """All queries of the rules and the dashboard."""
    board = dashboard()
    panels = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    variables = [one["query"]["query"] for one in board["templating"]["list"] if one["type"] == "query"]
    return [*(rule["expr"] for rule in alerts()), *panels, *variables]


def sections() -> dict[str, str]:
    """The manual's sections by their anchors."""
    parts = re.split(r"^#+ (.+)$", MANUAL.read_text(), flags=re.MULTILINE)[1:]
    return {
        re.sub(r"[^\w -]", "", title).lower().replace(" ", "-"): text
        for title, text in zip(parts[::2], parts[1::2], strict=True)
    }


@pytest.fixture(scope="module")
def documented() -> set[str]:
    return set(re.findall(r"`((?:csi_multi)_\w+)`", MANUAL.read_text()))


def shown(show: Any, make: Any) -> dict[str, set[str]]:
    """Every name that a driver shows, with its labels."""
    samples = show(make("fast")).scrape()
    return {
        family.name + suffix: {label for sample in family.samples for label in sample.labels}
        for family in samples.families
        for suffix in SUFFIXES[family.type]
    }


def test_every_metric_that_a_rule_or_a_panel_names_is_shown(show: Any, make: Any) -> None:
    named = {name for text in expressions() for name in NAME.findall(text)}

    assert named - shown(show, make).keys() == set()


def test_every_metric_that_is_shown_has_its_row_in_the_manual(show: Any, make: Any, documented: set[str]) -> None:
    ours = {name for name in shown(show, make) if name.startswith("csi_multi")}
    rows = {name for name in ours if not name.endswith(("_bucket", "_sum", "_count"))}
    histograms = {name.removesuffix("_count") for name in ours if name.endswith("_count")}

    assert documented == rows | histograms


def test_no_label_is_asked_for_that_no_metric_has(show: Any, make: Any, wanted: Any) -> None:
    driver = show(make("fast"))
    driver.client.CreateVolume(**wanted("v"))
    driver.registry.get("fast").set_state("")
    driver.exporter.listener.begin_call("fast", "lvs", "")("ok")
    labels = {label for family in driver.scrape().families for one in family.samples for label in one.labels}
    asked = {
        label.strip()
        for text in expressions()
        for group in re.findall(r"(?:by|on) ?\(([^)]*)\)", text)
        for label in group.split(",")
    } | {label for text in expressions() for label in re.findall(r"(\w+) ?(?:=~|!~|!=|=)\s?[\"$]", text)}

    assert asked - labels - LABELS == set()


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: rule["alert"])
def test_an_alert_says_how_bad_it_is_for_how_long_what_it_means_and_what_to_do(rule: dict[str, Any]) -> None:
    page, _, anchor = rule["annotations"]["runbook_url"].partition("#")

    assert rule["labels"]["severity"] in ("critical", "warning")
    assert re.fullmatch(r"\d+[mh]", rule["for"])
    assert rule["annotations"]["summary"]
    assert rule["annotations"]["description"]
    assert (page, anchor) == ("docs/operations.md", rule["alert"].lower())
    assert len(sections()[anchor].split()) > 30, "a section that helps"


def test_the_manual_has_no_section_for_an_alert_that_is_not_there() -> None:
    told = {anchor for anchor in sections() if anchor.startswith("csimulti")}

    assert told == {rule["alert"].lower() for rule in alerts()}


def test_panels_have_titles_and_do_not_overlap() -> None:
    cells: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        place = panel["gridPos"]
        own = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert panel["title"]
        assert not cells & own, panel["title"]
        assert place["x"] + place["w"] <= 24
        cells |= own


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool (of Prometheus) is not installed")
def test_prometheus_takes_the_rules_and_they_fire_when_they_should(tmp_path: Path) -> None:
    for file in (MONITORING / "alerts.yaml", Path(__file__).with_name("alerts_test.yaml")):
        shutil.copy(file, tmp_path)
    promtool, host = str(shutil.which("promtool")), LocalHost()

    host.run(promtool, "check", "rules", str(tmp_path / "alerts.yaml"))
    host.run(promtool, "test", "rules", str(tmp_path / "alerts_test.yaml"))
