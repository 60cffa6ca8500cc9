"""Templates of tag values: the part of Go's that users need, and a clear word about the rest."""

from __future__ import annotations

from contextlib import suppress

import pytest
from csi_multi_ebs.templates import OF_VOLUME, render
from hypothesis import given
from hypothesis import strategies as st

from csi_multi.contract import InvalidArgument

CLAIM = {"pvc/name": "data-db-0", "pvc/namespace": "ns-prod-abcdef", "pv/name": "pvc-1"}


def rendered(text: str) -> str:
    return render(text, OF_VOLUME, CLAIM)


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
        ("{{ .Secret }}", "there is no such name here; names: .PVCName, .PVCNamespace, .PVName"),
        ("{{ .PVCName.Length }}", "'.PVCName.Length' is not understood"),
        ("{{ .PVCName | html }}", "there is no function 'html'; functions: field, substring"),
        ('{{ if eq .PVCName "x" }}a{{ end }}', "there is no function 'if'"),
        ("{{ toUpper }}", "names, texts and numbers have a meaning"),
        ("{{ toUpper toLower }}", "names, texts and numbers have a meaning"),
        ("{{ .PVCName | field 1 2 }}", "field takes a text, a number, a text"),
        ("{{ .PVCName | toUpper 1 }}", "toUpper takes a text, the last one from the pipe"),
        ('{{ .PVCName | field "-" 9 }}', "field asks for more than 'data-db-0' has"),
        ('{{ .PVCName | field "-" -1 }}', "field asks for more than"),
        ("{{ $x := 1 }}", "is not understood"),
        ("{{ (.PVCName) }}", "is not understood"),
        ("{{- .PVCName }}", "is not understood"),
        ("{{ .PVCName | }}", "something is missing"),
        ("{{ | toUpper }}", "something is missing"),
        ("{{ }}", "something is missing"),
        ("{{ .PVCName", "an action is {{ … }}"),
        ("{{ .PVCName }} {{", "an action is {{ … }}"),
        ('{{ "open }}', "an action is {{ … }}"),
        ('{{ "bad \\q" }}', "unknown escape"),
        ('{{ .PVCName "x" }}', "there is no function '.PVCName'"),
    ],
)
def test_what_is_not_supported_is_refused_with_what_is(template: str, says: str) -> None:
    with pytest.raises(InvalidArgument) as found:
        rendered(template)

    assert str(found.value).startswith("template ")
    assert says in str(found.value)


def test_a_name_that_the_sidecar_did_not_tell_names_the_remedy() -> None:
    with pytest.raises(InvalidArgument, match="--extra-create-metadata"):
        render("{{ .PVCName }}", OF_VOLUME, {})


@given(st.text('{}|"`.- \\PVCNametoUpper019', max_size=40))
def test_any_text_is_filled_in_or_refused(template: str) -> None:
    with suppress(InvalidArgument):
        assert "{{ .PVCName }}" not in rendered(template)


def test_a_long_template_is_refused_in_no_time() -> None:
    with pytest.raises(InvalidArgument):
        rendered("{{" + '"a' * 5000)
    with pytest.raises(InvalidArgument):
        rendered("{{ " * 5000)
