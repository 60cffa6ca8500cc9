"""Templates of tag values: the part of Go's templates that users need, and a clear error for the rest."""

from __future__ import annotations

import unicodedata
from contextlib import suppress

import pytest
from csi_multi_ebs.user_tags import VOLUME_TEMPLATE_NAMES, fit_value, render_template, tag_problem
from hypothesis import given
from hypothesis import strategies as st

from csi_multi.contract import InvalidArgument

CLAIM = {"pvc/name": "data-db-0", "pvc/namespace": "ns-prod-abcdef", "pv/name": "pvc-1"}


def rendered(text: str) -> str:
    return render_template(text, VOLUME_TEMPLATE_NAMES, CLAIM)


@pytest.mark.parametrize(
    ("template", "value"),
    [
        ("plain", "plain"),
        ("", ""),
        ("{{ .PVCName }}", "data-db-0"),
        ("{{.PVCNamespace}}/{{.PVCName}} ({{.PVName}})", "ns-prod-abcdef/data-db-0 (pvc-1)"),
        ('{{ .PVCNamespace | contains "prod" }}', "true"),
        ('{{ .PVCNamespace | contains "test" }}', "false"),
        ('{{ .PVCNamespace | field "-" 2 | toUpper }}', "ABCDEF"),
        ('{{ field "-" 0 .PVCNamespace }}', "ns"),
        ('{{ "Text" | toLower }}', "text"),
        ('{{ `raw "}} text` }}', 'raw "}} text'),
        ('{{ "a \\"quoted\\" | }} word" }}', 'a "quoted" | }} word'),
        ("{{ .PVCName | substring 0 4 }}", "data"),
        ("{{ .PVCName | substring 5 -1 }}", "db-0"),
        ("{{ .PVCName | substring -1 99 }}", "data-db-0"),
        ('{{ "abc" | field "" 1 }}', "b"),
        ("{{ 5 }}", "5"),
        ("}} is only text", "}} is only text"),
    ],
)
def test_a_template_is_filled_in(template: str, value: str) -> None:
    assert rendered(template) == value


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{{ .Secret }}", "this name does not exist here; names: .PVCName, .PVCNamespace, .PVName"),
        ("{{ .PVCName.Length }}", "'.PVCName.Length' cannot be read"),
        ("{{ .PVCName | html }}", "function 'html' does not exist; functions: field, substring"),
        ('{{ if eq .PVCName "x" }}a{{ end }}', "function 'if' does not exist"),
        ("{{ toUpper }}", "expected a name, a quoted text or a number"),
        ("{{ toUpper toLower }}", "expected a name, a quoted text or a number"),
        ("{{ .PVCName | field 1 2 }}", "field takes a text, a number, a text"),
        ("{{ .PVCName | toUpper 1 }}", "toUpper takes a text; the last argument comes from the pipe"),
        ('{{ .PVCName | field "-" 9 }}', "field reads past the end of 'data-db-0'"),
        ('{{ .PVCName | field "-" -1 }}', "field reads past the end of"),
        ("{{ $x := 1 }}", "cannot be read"),
        ("{{ (.PVCName) }}", "cannot be read"),
        ("{{- .PVCName }}", "cannot be read"),
        ("{{ .PVCName | }}", "a function is missing"),
        ("{{ | toUpper }}", "a function is missing"),
        ("{{ }}", "a function is missing"),
        ("{{ .PVCName", "write an action as {{ … }}"),
        ("{{ .PVCName }} {{", "write an action as {{ … }}"),
        ('{{ "open }}', "write an action as {{ … }}"),
        ('{{ "bad \\q" }}', "unknown escape"),
        ('{{ .PVCName "x" }}', "function '.PVCName' does not exist"),
    ],
)
def test_what_is_not_supported_is_refused_with_what_is(template: str, says: str) -> None:
    with pytest.raises(InvalidArgument) as found:
        rendered(template)

    assert str(found.value).startswith("template ")
    assert says in str(found.value)


def test_a_name_that_the_sidecar_did_not_tell_names_the_remedy() -> None:
    with pytest.raises(InvalidArgument, match="--extra-create-metadata"):
        render_template("{{ .PVCName }}", VOLUME_TEMPLATE_NAMES, {})


@given(st.text('{}|"`.- \\PVCNametoUpper019', max_size=40))
def test_any_text_is_filled_in_or_refused(template: str) -> None:
    with suppress(InvalidArgument):
        assert "{{ .PVCName }}" not in rendered(template)


def test_a_long_template_is_refused_in_no_time() -> None:
    with pytest.raises(InvalidArgument):
        rendered("{{" + '"a' * 5000)
    with pytest.raises(InvalidArgument):
        rendered("{{ " * 5000)


TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=60)


def legal(found: dict[str, str]) -> bool:
    """Whether EC2, and the rest of AWS, take these tags."""
    return len(found) <= 50 and all(
        0 < len(key) <= 128
        and len(value) <= 256
        and not key.lower().startswith("aws:")
        and all(char in " _.:/=+-@" or unicodedata.category(char)[0] in "LN" for char in key + value)
        for key, value in found.items()
    )


@given(st.text(max_size=300), st.text(max_size=300))
def test_whatever_is_not_objected_to_is_legal(key: str, value: str) -> None:
    assert tag_problem(key, value) or legal({key: value})
    assert legal({"key": fit_value(value)})


def test_what_people_see_is_changed_rather_than_refused() -> None:
    assert fit_value("data base, größe 💾") == "data base_ größe _"
    assert fit_value("aws:x") == "_ws:x"
    assert len(fit_value("n" * 300)) == 256
