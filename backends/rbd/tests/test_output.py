"""JSON texts that follow each other, as one command prints that was asked several questions."""

from __future__ import annotations

import pytest
from csi_multi_rbd.output import documents


@pytest.mark.parametrize(
    ("text", "found"),
    [("", []), ("\n\n", []), ('{"a": 1}\n[2]\n', [{"a": 1}, [2]]), ('\n{\n"a": {}}{}', [{"a": {}}, {}])],
)
def test_every_text_is_a_value(text: str, found: list[object]) -> None:
    assert documents(text) == found


@pytest.mark.parametrize("text", ["{", '{"a": 1}\nStatus: x', "x"])
def test_what_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="Expecting"):
        documents(text)
